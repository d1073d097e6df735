"""completion.py: what is answered on TAB, as the shells ask for it, from another folder."""

import copy
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from support.forks import clone_with_forks
from test_structure import ENTRIES

ROOT = Path(__file__).resolve().parents[3]
JOB = "jsc/run_training_jwb.sbatch"


@pytest.fixture(scope="module")
def shared_clone(root, tmp_path_factory):
    """Give a clone whose path needs quoting."""
    with clone_with_forks(root, tmp_path_factory.mktemp("completion") / "it's a clone") as clone:
        yield clone


@pytest.fixture
def clone(shared_clone, clean_environment):
    """Give that clone on a machine that no site describes; a test may change these two files."""
    clone = copy.copy(shared_clone)
    clone.environment = clean_environment
    clone.configure("")
    shutil.copy(ROOT / "jsc/site.toml", clone.root / "jsc")
    return clone


@pytest.fixture
def scratch(clone):
    return Path(clone.environment["HOME"], "longship-data/scratch")


@pytest.fixture
def answer(clone):
    """Give a function that asks as zsh what the last word can become: (kind, value, help)..."""

    def ask(script, *words, env=None):
        __tracebackhide__ = True
        env = {**asked(clone, script, *words), **(env or {})}
        done = clone.type("completion.py", env=env, cwd="/")
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        helps = ("" if each == "_" else each for each in lines[2::3])
        return list(zip(lines[0::3], lines[1::3], helps))

    return ask


def asked(clone, script, *words, shell="zsh"):
    """Give the environment that click's function of a shell sets."""
    typed = ["python3", shlex.quote(str(clone.root / script)), *words]
    return {
        **clone.environment,
        "_LONGSHIP_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": ("\n" if shell == "bash" else " ").join(typed),
        "COMP_CWORD": str(len(typed) - 1),
    }


@pytest.fixture
def values(answer):
    """Give a function that asks for the values alone; all are plain."""

    def ask(*words, **options):
        __tracebackhide__ = True
        found = answer(*words, **options)
        assert {kind for kind, _, _ in found} <= {"plain"}
        return [value for _, value, _ in found]

    return ask


def record(scratch, name):
    folder = scratch / "runs" / name
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"job": name.partition("-")[0]}))


@pytest.mark.parametrize("script", [path.name for path in ENTRIES])
def test_options_are_those_of_help(script, values, clone):
    said = clone.type(script, "--help").stdout
    shown = set(re.findall(r"^  (--[\w-]+)", said, re.MULTILINE))
    assert "--help" in shown
    assert set(values(script, "-")) == shown
    assert values(script, "--he") == ["--help"]


@pytest.mark.parametrize("script", ["container_run.py", "submit.py"])
def test_machines_and_stacks_say_what_they_are(script, answer):
    assert ("plain", "jwb", "JUWELS Booster") in answer(script, "--machine", "")
    assert answer(script, "--machine=lu") == [("plain", "lumi", "LUMI")]
    assert [value for _, value, _ in answer(script, "--stack", "t")] == ["torchtitan", "trl"]
    assert all(about for _, _, about in answer(script, "--stack", ""))


@pytest.mark.parametrize("script", ["container_run.py", "submit.py"])
def test_configuration_is_a_file(script, answer):
    assert answer(script, "--configuration", "x") == [("file", "x", "")]
    assert answer(script, "--configuration=x") == [("file", "x", "")]


@pytest.mark.parametrize(
    "script, modes",
    [
        ("build_container.py", ["online", "download", "offline"]),
        ("build_overlay.py", ["online", "download", "offline"]),
        ("bundle.py", ["pack", "verify", "unpack"]),
        ("set_up.py", ["install", "update", "download", "offline", "save-patches"]),
        ("doctor.py", ["explain", "job", "site"]),
        ("completion.py", ["bash", "zsh", "fish"]),
    ],
)
def test_modes(script, modes, values):
    assert values(script, "") == modes
    assert values(script, modes[-1][:2]) == [each for each in modes if each[:2] == modes[-1][:2]]
    assert values(script, "nothing") == []


def test_option_that_was_given_is_not_offered_again(values):
    assert "--force" in values("build_container.py", "--locked", "-")
    assert "--locked" not in values("build_container.py", "--locked", "-")


def test_jobs_of_a_site_that_was_typed(answer, values):
    jobs = sorted(str(each.relative_to(ROOT)) for each in ROOT.glob("lumi/*.s[ab]*"))
    assert values("submit.py", "lumi/") == jobs
    assert values("submit.py", "lu") == jobs
    assert answer("submit.py", "jsc/run_training_jw") == [("plain", JOB, "")]


def test_job_of_ones_own_is_a_file(answer):
    for begun in ("../mine", "/home/me/", "mine.sb"):
        assert answer("submit.py", begun) == [("file", begun, "")]


def test_what_follows_the_marker_is_the_jobs_own(answer):
    assert answer("submit.py", JOB, "--", "--mach") == [("file", "--mach", "")]
    assert answer("submit.py", JOB, "--", "--machine", "") == [("file", "", "")]
    assert answer("set_up.py", "download", "--", "--no") == [("file", "--no", "")]


def test_runs_and_ids_of_jobs_the_newest_first(answer, values, scratch):
    for name in ("999-old", "4711-train", "10001-longer", "4712-never-started"):
        record(scratch, name)
    (scratch / "runs/4712-never-started/record.json").unlink()
    (scratch / "runs/configurations-1").mkdir()
    assert values("submit.py", "rerun", "") == ["10001-longer", "4711-train", "999-old"]
    assert values("submit.py", "rerun", "4") == ["4711-train"]
    assert answer("submit.py", JOB, "--after", "47", env={"LONGSHIP_MACHINE": "local"}) == [
        ("plain", "4711", "train")
    ]
    assert answer("doctor.py", "explain", "4") == [("plain", "4711", "train")]
    assert answer("doctor.py", "explain", "slurm-4") == [("file", "slurm-4", "")]


def test_scratch_of_another_configuration(values, clone, tmp_path):
    record(tmp_path / "other", "5-run")
    (tmp_path / "two words.toml").write_text(f'paths.scratch_dir = "{tmp_path}/other"\n')
    words = ["--configuration", str(tmp_path / "two\\ words.toml"), "rerun", ""]
    assert values("submit.py", *words) == ["5-run"]
    assert values("submit.py", *words[2:]) == []


def test_command_is_the_users_own(answer):
    assert answer("container_run.py", "--online", "py") == [("file", "py", "")]
    for words in (["--mach"], ["--machine="], ["x.py", "--machine", ""], [""]):
        assert answer("container_run.py", "python", *words) == [("file", words[-1], "")]
    assert answer("container_run.py", "--", "--mach") == [("file", "--mach", "")]
    assert answer("container_run.py", "--launcher", "") == [("file", "", "")]


def test_folder_of_a_bundle(answer):
    assert answer("bundle.py", "pack", "") == [("dir", "", "")]
    assert answer("bundle.py", "pack", "/a", "--allow", "") == [("file", "", "")]


@pytest.mark.parametrize("typed", ["lu", r"l\u", "'lu", '"lu', '"lu"'])
def test_words_come_as_they_were_typed(typed, values):
    assert values("set_up.py", "--machine", typed) == ["lumi"]
    assert values("set_up.py", '"--machine"', typed) == ["lumi"]


def test_nothing_in_a_word_is_evaluated(answer, tmp_path):
    for typed in ("$(touch evil)", "`touch evil`", "--stack=$(touch evil)", "\\", "'", ""):
        answer("set_up.py", typed, typed, typed)
    assert not list(tmp_path.rglob("evil"))


def test_hostile_words_break_nothing(answer, hostile_arguments):
    assert isinstance(answer("submit.py", *hostile_arguments), list)


@pytest.mark.parametrize("broken", ["machine = [", 'machine = "nowhere"\n', "unknown = 1\n"])
def test_broken_configuration_leaves_the_rest(broken, values, clone):
    clone.configure(broken)
    assert "jwb" in values("set_up.py", "--machine", "")
    assert "pytorch" in values("set_up.py", "--stack", "")
    assert values("submit.py", "rerun", "") == []
    assert JOB in values("submit.py", "jsc/")


def test_broken_site_leaves_the_jobs(values, clone):
    (clone.root / "jsc/site.toml").write_text("[")
    assert values("set_up.py", "--machine", "") == []
    assert JOB in values("submit.py", "jsc/")


def test_account_that_is_missing_leaves_the_rest(values):
    """Where paths hold {account}, nothing is known of runs."""
    assert values("submit.py", "rerun", "", env={"LONGSHIP_MACHINE": "jwb"}) == []
    assert JOB in values("submit.py", "jsc/", env={"LONGSHIP_MACHINE": "jwb"})


@pytest.mark.needs("strace")
def test_no_program_is_started_for_an_answer(clone, run, tmp_path):
    """Not sbatch, not a container's runtime: Python's own start is the only one."""
    said = tmp_path / "trace"
    for words in (
        ["submit.py", ""],
        ["submit.py", JOB, "--after", ""],
        ["doctor.py", "explain", ""],
    ):
        trace = ["strace", "-f", "-e", "trace=execve", "-o", said]
        run([*trace, *clone.command("completion.py")], env=asked(clone, *words))
        assert said.read_text().count("execve(") == 1


def test_a_launch_reads_nothing_of_it(clone, run):
    clone.configure('container.runtime = "host"\npackages.requirements = ""\n')
    watch = [sys.executable, "-X", "importtime", clone.root / "container_run.py"]
    said = run([*watch, "--dry-run", "true"], env=clone.environment).stderr
    assert "lib.runtimes.launch" in said and "click.core" in said
    assert "extras.completion" not in said and "shell_completion" not in said
    said = run([*watch, "true"], env=clone.environment).stderr
    assert "lib.runtimes.launch" in said
    assert not {"click", "dataclasses", "inspect"} & set(re.findall(r"([\w.]+)$", said, re.M))


@pytest.mark.parametrize(
    "typed", ["python3 submit.py al", "python3 -m submit.py al", "python3 other.py al", "ls al"]
)
def test_files_are_offered_where_no_script_of_ours_is_called(typed, clone):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    env = {**asked(clone, ""), **words}
    assert clone.type("completion.py", env=env, cwd="/").stdout == "file\nal\n_\n"


def test_bash_takes_words_apart(clone, scratch):
    record(scratch, "10001-longer")
    for words, value in (
        (["--machine", "=", "lu"], "lumi"),
        (["--machine", "="], "local"),
        (["--machine", "=", "local", "rerun", "1"], "10001-longer"),
    ):
        env = asked(clone, "submit.py", *words, shell="bash")
        said = clone.type("completion.py", env=env).stdout.splitlines()
        assert f"plain,{value}" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_text_registers_the_names_of_all_scripts(shell, clone):
    said = clone.type("completion.py", shell).stdout
    names = max((line.split() for line in said.splitlines()), key=len)
    assert {path.name for path in ENTRIES} | {"python", "python3"} <= set(names)


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "x"]])
def test_wrong_call_says_what_to_type(words, clone):
    done = clone.type("completion.py", *words, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint: run: python3 completion.py --help" in done.stderr
    shown = clone.type("completion.py", "--help").stdout
    for shell in ("bash", "zsh", "fish"):
        assert f"python3 ~/longship/completion.py {shell}" in shown
