"""What quickstart.sh says, and what it does before anything is installed."""

import os
import shutil
from pathlib import Path

import pytest
from support.terminal import Terminal

from lib import ROOT
from lib.script.render import render

SCRIPT = Path(ROOT, "quickstart.sh")
TEXT = SCRIPT.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_starts_nothing(option, run, clean_environment):
    done = run([SCRIPT, option], env={**clean_environment, "HOME": "/nowhere"})
    assert done.stdout.startswith("Usage: ./quickstart.sh\n") and done.stderr == ""


def test_shell_without_arrays_hands_over_to_bash(run, clean_environment):
    done = run(["sh", SCRIPT, "--help"], env=clean_environment)
    assert done.stdout.startswith("Usage: ./quickstart.sh\n") and done.stderr == ""


@pytest.mark.parametrize("words", [["--hlep"], ["--dry-run"], ["train.py"]])
def test_unknown_argument_is_refused(words, run):
    done = run([SCRIPT, *words], check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: unknown argument: {words[0]}\nhint: ./quickstart.sh --help\n"


def test_own_clone_is_found_whatever_cdpath_says(run, clean_environment, tmp_path):
    clone = SCRIPT.parent
    (tmp_path / clone.name).mkdir()
    env = {**clean_environment, "CDPATH": str(tmp_path)}
    done = run(["bash", f"{clone.name}/{SCRIPT.name}", "--help"], env=env, cwd=clone.parent)
    assert done.stdout.startswith("Usage: ./quickstart.sh\n") and done.stderr == ""


def test_packages_that_a_bundle_brought_are_kept(run, clean_environment, tmp_path):
    for name in ("quickstart.sh", "lib/script/messages.bash", "requirements/host.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SCRIPT.parent / name, tmp_path / name)
    for name in (".cache/bundle/unpacked", ".venv/lib/click.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    done = run([tmp_path / "quickstart.sh"], env=clean_environment, check=False)
    assert (done.returncode, "unpacked from a bundle" in done.stderr) == (1, True)
    assert (tmp_path / ".venv/lib/click.py").exists()


def test_what_it_prints_fits_a_terminal():
    texts = TEXT.split("cat <<'EOF'\n")[1:]
    assert len(texts) == 2
    lines = [line for text in texts for line in text.split("\nEOF\n")[0].splitlines()]
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize(("value", "said"), [("", "next: a command\n"), ("1", "")])
def test_next_step_that_it_does_itself_is_not_named(value, said, run, clean_environment):
    env = {**clean_environment, "LONGSHIP_QUICKSTART": value}
    script = render("a test", ["next_step 'a command'"])
    assert run(["bash", "-c", script], env=env).stderr == said
    assert "LONGSHIP_QUICKSTART=1 .venv/bin/python3 set_up.py install\n" in TEXT


def test_number_of_compiled_files_is_shown(clean_environment, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    inside = f"inside() {{ printf 'Compiling %s\\n' {{1..250}}; cat {fifo}; }}"
    lines = [inside, "longship_library=", f"venv_compile {tmp_path} 1 ''", "echo done"]
    command = ["bash", "-c", render("a test", lines)]
    with Terminal(command, env=clean_environment, cwd=tmp_path) as terminal:
        terminal.expect("200 files")
        fifo.write_text("")
        assert terminal.end() == 0
    assert terminal.said.endswith("\r\x1b[Kdone\r\n")
