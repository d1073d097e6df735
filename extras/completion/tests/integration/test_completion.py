"""TAB, pressed on a terminal in each of the three shells."""

import re
import shlex
import sys
import time

import pytest
from support.processes import PATIENCE
from support.repository import Clone
from support.terminal import Terminal

PROMPT = "function fish_prompt; printf 'ready> '; end"  # the others take $PS1
SHELLS = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", f"--init-command={PROMPT}", "--interactive"],
}
LOAD = {
    "bash": 'eval "$(python3 "{0}" bash)"',
    "zsh": 'eval "$(python3 "{0}" zsh)"',
    "fish": 'python3 "{0}" fish | source',
}
BEGIN = "\x01"  # Ctrl-A: to the begin of the line

NEEDED = [
    pytest.param("bash"),
    *(pytest.param(each, marks=pytest.mark.needs("shells")) for each in ("zsh", "fish")),
]
each_shell = pytest.mark.parametrize("name", NEEDED)


class Shell(Terminal):
    """A shell that somebody types in; `ready> ` is its prompt."""

    def do(self, line):
        """Type a line, and wait until it has ended."""
        begin = len(self.said)
        self.type(f"{line}\n")
        self.type("printf '%s%s\\n' do ne\n")
        self.read_until(r"done\s.*ready> ", begin)
        return self.said[begin:]

    def words(self, typed):
        """Give the words that the shell sees after what was typed, TAB and Enter."""
        __tracebackhide__ = True
        said = self.do(f"{typed}\t{BEGIN}printf '<%s>' ")
        return re.findall(r"<([^<>%\r\n]*)>", said)

    def read_until(self, pattern, begin):
        __tracebackhide__ = True
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, self.said[begin:], re.DOTALL):
            if not self._read(deadline):
                pytest.fail(f"{pattern} was never shown:\n{self.said}", pytrace=False)


@pytest.fixture
def clone(root, clean_environment, tmp_path):
    """Give a clone whose path needs quoting, and a `python3` that has click."""
    clone = Clone(root, tmp_path / "it's a clone", clean_environment)
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    path = f"{python.parent}:{clean_environment['PATH']}"
    clone.environment = {**clean_environment, "PATH": path, "PS1": "ready> "}
    return clone


@pytest.fixture
def here(tmp_path):
    """Give the folder to type in, with two files; the clone is beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("two words.toml", "train_it.py"):
        (folder / name).touch()
    return folder


@pytest.fixture
def shell(clone, here, request):
    """Give a function that starts a shell with the completion of the clone."""

    def start(name, before=""):
        opened = Shell(SHELLS[name], env=clone.environment, cwd=here)
        request.addfinalizer(lambda: opened.__exit__())
        opened.do(before or ":")
        opened.do(LOAD[name].format(clone.root / "completion.py"))
        return opened

    return start


@each_shell
def test_words_are_completed(name, shell):
    there = shell(name)
    script = r"../it\'s\ a\ clone/submit.py"
    job = "jsc/run_training_jwb.sbatch"
    begun = ["python3", "../it's a clone/submit.py"]
    assert there.words(f"python3 {script} jsc/run_training_jw") == [*begun, job]
    assert there.words(f"python3 {script} --stack torcht")[2:] == ["--stack", "torchtitan"]
    assert there.words(f"python3 {script} --machine be") == [*begun, "--machine", "berzelius"]
    assert there.words(f"python3 -u {script} --mach") == [begun[0], "-u", begun[1], "--machine"]
    assert there.words(f"{script} stat") == [begun[1], "status"]
    script = script.replace("submit", "doctor")
    assert there.words(f"python3 {script} ex")[2:] == ["explain"]


@each_shell
def test_folder_of_a_site_is_completed_step_by_step(name, shell):
    there = shell(name)
    there.do(r"cd ../it\'s\ a\ clone")
    assert there.words("./submit.py ber\tpreprocess_data_p") == [
        "./submit.py",
        "berzelius/preprocess_data_parallel_berzelius.sbatch",
    ]


@each_shell
def test_files_are_left_to_the_shell(name, shell):
    there = shell(name)
    script = r"../it\'s\ a\ clone/container_run.py"
    begun = ["python3", "../it's a clone/container_run.py"]
    quoted = [*begun, "--configuration", "two words.toml"]
    assert there.words(f"python3 {script} --configuration two") == quoted
    assert there.words(f'python3 {script} --configuration "two') == quoted
    if name != "fish":
        joined = there.words(f"python3 {script} --configuration=two")[2]
        assert joined == quoted[2] + "=" + quoted[3]
    assert there.words(f"python3 {script} python tra") == [*begun, "python", "train_it.py"]


@each_shell
def test_what_is_no_script_of_ours_is_completed_as_before_and_not_started(name, shell, here):
    """A script of an older clone would take what was typed for its own words."""
    (here / "submit.py").write_text("open('started', 'w')")
    there = shell(name)
    assert there.words("python3 tra") == ["python3", "train_it.py"]
    assert there.words("python3 submit.py tra") == ["python3", "submit.py", "train_it.py"]
    assert there.words("ls two") == ["ls", "two words.toml"]
    assert not (here / "started").exists()


@each_shell
def test_nothing_is_said_where_the_answer_fails(name, shell, clone):
    there = shell(name)
    for broken in ("set_up", "submit"):
        (clone.root / f"lib/commands/{broken}.py").write_text("broken(")
    assert there.words(r"python3 ../it\'s\ a\ clone/set_up.py --mach")[2:] == ["--mach"]
    there.words(r"python3 ../it\'s\ a\ clone/submit.py --machine ")
    assert "Error" not in there.said and "Traceback" not in there.said


@pytest.mark.needs("shells")
def test_zsh_shows_what_a_name_stands_for(shell):
    there = shell("zsh")
    there.type("python3 ../it\\'s\\ a\\ clone/submit.py --machine j\t\t")
    there.expect("JUWELS Booster")


@pytest.mark.needs("shells")
def test_fish_shows_what_a_name_stands_for(shell):
    """Its list of choices needs a better terminal than ours: it prints what it would show."""
    said = shell("fish").do('complete -C "python3 ../it\\\'s\\ a\\ clone/submit.py --machine j"')
    assert "JUWELS Booster" in said


@each_shell
def test_it_can_be_loaded_twice(name, shell, clone):
    there = shell(name)
    there.do(LOAD[name].format(clone.root / "completion.py"))
    assert there.words(r"python3 ../it\'s\ a\ clone/set_up.py inst")[2:] == ["install"]


@pytest.mark.needs("shells")
@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_text_is_read_without_a_word(name, clone, run):
    text = run([sys.executable, clone.root / "completion.py", name]).stdout
    done = run([name, "-n"], input=text)
    assert done.stderr == ""
