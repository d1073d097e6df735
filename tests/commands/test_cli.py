"""What all entry scripts share: --help, which has to do without documentation, and wrong calls."""

import copy
import os
import re
import shlex
import shutil
import sys

import pytest
from click.testing import CliRunner
from support.repository import Clone

from lib import ROOT, VERSION
from lib.commands import command_line
from lib.commands.submit import submit
from lib.commands.verbs import find_command, find_scripts
from lib.script.errors import LongshipError

# Those of the host; train.py and preprocess_data.py run inside.
SCRIPTS = [f"{each}.py" for each in find_scripts()]
MODES = [each for each in map(find_command, find_scripts()) if each.params[0].name == "mode"]


@pytest.mark.parametrize("command", MODES, ids=lambda each: each.name)
def test_help_explains_each_mode_on_a_line_of_its_own(command):
    text = CliRunner().invoke(command, ["--help"]).output
    (modes,) = (each.type.choices for each in command.params if each.name == "mode")
    for mode in modes:
        assert re.search(rf"^  {mode} +\w", text, re.MULTILINE), text
    assert "\\b" not in text


def test_start_of_a_job_explains_itself():
    text = CliRunner().invoke(submit, ["begin", "--help"], prog_name="submit.py").output
    assert text.startswith("Usage: submit.py begin [OPTIONS] MACHINE [ARGUMENTS]...\n")
    assert "scontrol show job" in text and "$LONGSHIP_CONFIGURATION" in text


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_fits_a_terminal(script, run, clean_environment):
    environment = {**clean_environment, "COLUMNS": "80"}
    text = run([sys.executable, f"{ROOT}/{script}", "--help"], env=environment).stdout
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_version_is_printed(script, run, clean_environment):
    env = {**clean_environment, "PYTHONSAFEPATH": "1"}  # Python does not look beside the script
    done = run([sys.executable, f"{ROOT}/{script}", "--version"], env=env)
    assert done.stdout == f"Longship {VERSION}\n"


def test_options_of_submit_are_known_beside_those_of_sbatch():
    words = ["local/run_training_local.sbatch", "--chian=2"]
    with pytest.raises(LongshipError) as error:
        submit.main(words, standalone_mode=False)
    assert error.value.hint.startswith("did you mean --chain?")


def test_what_is_typed_again_is_no_dry_run_and_holds_no_password(monkeypatch):
    words = ["download", "--dry-run", "--machine", "jwb", "--", "-i", "https://me:" + "secret@x"]
    monkeypatch.setattr("sys.argv", ["set_up.py", *words])
    assert command_line("set_up.py") == "python3 set_up.py download --machine jwb"


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        ("set_up.py instal", 'unknown mode: "instal"', 'did you mean "install"? valid values: ins'),
        (
            "set_up.py install x",
            'unexpected argument: "x"',
            "pass pip options after --: python3 set_up.py dow",
        ),
        (
            "set_up.py update titan --abort",
            "--continue and --abort are for all repositories that an update has stopped in",
            "leave out titan",
        ),
        ("build_container.py onlin", 'unknown mode: "onlin"', 'did you mean "online"?'),
        ("build_overlay.py --lst", "no such option: --lst", "did you mean --list?"),
        ("container_run.py --dryrun x", "no such option: --dryrun", "did you mean --dry-run?"),
        (
            "container_run.py --machine",
            "option '--machine' requires an arg",
            "run: python3 container",
        ),
        pytest.param(
            "doctor.py explan x",
            'unknown verb: "explan"',
            'did you mean "explain"? valid values: explain, job, site',
            marks=pytest.mark.extras("explain", "job_check", "site_check"),
        ),
        ("move_built_container_to_active.py --lis", "no such option: --lis", "did you mean --l"),
        ("submit.py", "missing argument: SITE/JOB.sbatch", "run: python3 submit.py --h"),
        ("submit.py cancel 5", 'unknown verb: "cancel"', "run: scancel JOB"),
        ("submit.py logs", 'unknown verb: "logs"', "run: python3 submit.py status"),
        pytest.param(
            "submit.py explain 4711",
            'unknown verb: "explain"',
            "run: python3 doctor.py explain",
            marks=pytest.mark.extras("explain"),
        ),
        ("submit.py begin", "missing argument: MACHINE", "run: python3 submit.py begin --help"),
        pytest.param(
            "submit.py end a b",
            "got unexpected extra argument (b)",
            "run: python3 submit.py end",
            marks=pytest.mark.extras("usage"),
        ),
        ("submit.py begin --mach a", "no such option: --mach", "see: python3 submit.py begin --h"),
        pytest.param(
            "submit.py rerun",
            "missing argument: RUN",
            "run: python3 submit.py rerun --help",
            marks=pytest.mark.extras("rerun"),
        ),
        (
            "submit.py --nodes=2 --yes local/run_training_local.sbatch -- --steps 1",
            "--nodes=2 is an option of sbatch, which must follow SITE/JOB.sbatch",
            "python3 submit.py local/run_training_local.sbatch --nodes=2 --yes -- --steps 1",
        ),
        ("submit.py -N 2", "-N is an option of sbatch", "python3 submit.py SITE/JOB.sbatch -N 2"),
        ("submit.py --nodez=2 x", "no such option: --nodez", "see: python3 submit.py --help"),
        (
            "submit.py --chain=0 x",
            "invalid value for '--chain': 0 is not",
            "run: python3 submit.py",
        ),
    ],
)
def test_wrong_call_is_two_lines(call, error, hint, script):
    done = script(*call.split(), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"error: {error}")
    assert second.startswith(f"hint: {hint}")


def test_copy_of_a_clone_runs_its_own_configuration(root, tmp_path, clean_environment):
    """Nothing that a launch leaves behind leads the next one elsewhere."""
    first = Clone(root, tmp_path / "first", clean_environment)
    first.configure('[container]\nruntime = "host"\n[packages]\nrequirements = ""\n')
    roots = {"HOME": str(tmp_path), "LONGSHIP_MACHINE": "local"}
    before = list(first.root.iterdir())
    show = ["sh", "-c", 'echo "$LONGSHIP_ROOT $GREETING"']
    for _ in range(2):
        done = first.container_run(*show, env=roots)
    assert done.stdout == f"{first.root} \n"
    assert list(first.root.iterdir()) == before
    second = copy.copy(first)
    second.root = shutil.copytree(first.root, tmp_path / "second")
    (second.root / "configuration.local.toml").write_text('environment.set = { GREETING = "me" }\n')
    assert second.container_run(*show, env=roots).stdout == f"{second.root} me\n"


@pytest.mark.parametrize("words", ["--help", "--dry-run true"])
@pytest.mark.parametrize("output", [">&-", ">/dev/full", "</dev/null >&- <&- 2>&-"])
def test_output_that_cannot_be_written_is_no_traceback(words, output, run, clean_environment):
    command = f'"$0" "$1/container_run.py" {words} {output}'
    environment = {**clean_environment, "LONGSHIP_MACHINE": "local"}
    done = run(["bash", "-c", command, sys.executable, ROOT], env=environment, check=False)
    told = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert done.returncode == ("full" in output)
    if "full" in output:
        assert told[0] == "error: cannot read or write the output: No space left on device"
        assert told[1].startswith("hint: ") and len(told) == 2
    else:
        assert told == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_folder_that_is_gone_is_told(script, run, tmp_path):
    gone = 'mkdir "$2/gone"; cd "$2/gone"; rmdir "$2/gone"; "$0" "$1"'
    done = run(["bash", "-c", gone, sys.executable, f"{ROOT}/{script}", tmp_path], check=False)
    first, second = done.stderr.splitlines()
    assert (done.returncode, second) == (1, "hint: run: cd")
    assert first.startswith("error: cannot use the current directory: ")


def test_interrupt_that_python_would_drop_ends_a_script(root, run):
    """One that comes while a weak reference dies, as when a module has been read."""
    text = "import lib, os, signal, weakref\nclass A: pass\ndef main():\n    a = A()\n"
    text += "    b = weakref.ref(a, lambda _: os.kill(os.getpid(), signal.SIGINT))\n    del a\n"
    text += "    print('on')\nlib.start(main)\n"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = run([sys.executable, "-c", text], env=environment, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "error: interrupted before anything was started\n"


REPORTS = [
    "submit.py status --json",
    pytest.param("submit.py report --csv", marks=pytest.mark.extras("reports")),
    "move_built_container_to_active.py --list",
    "build_overlay.py --list --json",
    "build_overlay.py --print-path",
    pytest.param("doctor.py explain job.log", marks=pytest.mark.extras("explain")),
]


@pytest.mark.parametrize("words", REPORTS)
def test_dry_run_of_a_report_is_a_script_that_runs_nothing(words, script, run):
    text = script(*words.split(), "--dry-run").stdout
    assert re.fullmatch(r"#!/usr/bin/env bash\n# Longship: [^\n]+\n# [^\n]+\n", text)
    done = run(["bash", "-c", text])
    assert done.stdout + done.stderr == ""


@pytest.mark.extras("evaluate")
def test_runtime_of_two_jobs_is_named_once(script, tmp_path):
    (tmp_path / "c.toml").write_text(f'machine = "local"\npaths.scratch_dir = "{tmp_path}"\n')
    job = ["local/run_training_local.sbatch", "--then", "evaluate", "--dry-run"]
    done = script("submit.py", f"--configuration={tmp_path}/c.toml", *job)
    assert done.stderr.count("note: running dir") == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            ": >closed; CALL >/dev/full; echo $? >&2",
            "error: cannot read or write the output: No space left",
        ),
        ("{ CALL; echo $? >&2; } | { exec <&-; : >closed; }", "141\n"),  # SIGPIPE
        (": >closed; CALL >&-; echo $? >&2", "0\n"),
    ],
)
def test_report_that_nobody_can_read_ends_quietly(call, said, run, clean_environment, tmp_path):
    # before anything is written
    text = f"#!/bin/bash\nuntil [[ -e {tmp_path}/closed ]]; do sleep 0.05; done\n"
    (tmp_path / "squeue").write_text(text)
    (tmp_path / "squeue").chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    command = shlex.join([sys.executable, f"{ROOT}/submit.py", "status"])
    done = run(["bash", "-c", call.replace("CALL", command)], env=env)
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) <= 3
