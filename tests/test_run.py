"""The bash of a job's start and end: lib/shell/run.bash and failure.bash."""

import pytest

from lib.script import render

NOISE = "0: [W101 socket.cpp:1] nothing of interest\n"


@pytest.fixture
def bash(run, clean_environment, tmp_path):
    """Give a function that runs lines with the functions they use."""

    def run_lines(*lines, env=None, check=True):
        script = tmp_path / "script.sh"
        script.write_text(render("a test", lines))
        environment = {**clean_environment, **(env or {})}
        return run(["bash", script], env=environment, check=check)

    return run_lines


@pytest.fixture
def first_failure(bash, tmp_path):
    """Give a function that says who failed first in a log."""

    def tell(text):
        log = tmp_path / "a log"
        log.write_text(text)
        return bash("RUN_DIR=/runs/1-x", f"first_failure '{log}'").stdout

    return tell


TRACEBACK = (
    "1: [rank 6] Traceback (most recent call last):\n"
    '1: [rank 6]   File "train.py", line 1\n'
    "0: [rank 2] RuntimeError: connection closed by peer\n"
    "1: [rank 6] ValueError: no data\n"
    "0: [rank 2] more of it\n"
    "srun: error: node2: task 1: Exited with exit code 1\n"
    "srun: error: node1: task 0: Terminated\n"
)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            NOISE + TRACEBACK,
            "task 1 failed first, rank 6 on node2: Exited with exit code 1\n"
            "  Traceback (most recent call last):\n"
            '    File "train.py", line 1\n'
            "  ValueError: no data\n",
        ),
        (
            "longship: run /runs/1-x\n0: error: an old one\nlongship: run /runs/1-x\n" + TRACEBACK,
            "task 1 failed first, rank 6 on node2: Exited with exit code 1\n"
            "  Traceback (most recent call last):\n"
            '    File "train.py", line 1\n'
            "  ValueError: no data\n",
        ),
        (
            "  7: doing well\nsrun: error: node3: tasks 7-9: Killed\n",
            "task 7 failed first on node3: Killed\n",
        ),
        (
            "10: FATAL: could not open image\n",
            "task 10 failed first\n  FATAL: could not open image\n",
        ),
        (NOISE, ""),
        ("", ""),
    ],
)
def test_first_to_fail_is_told_with_what_it_said(log, told, first_failure):
    assert first_failure(log) == told


def test_long_message_is_cut(first_failure):
    log = "0: error: x\n" + "0: more\n" * 100
    assert len(first_failure(log).splitlines()) == 1 + 40


def test_bytes_of_any_kind_in_a_log_do_no_harm(bash, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"0: \xff\xfe\x1b[31m%s$(touch x)\n0: error: \xc3( `touch y`\n\x00\n")
    told = bash("RUN_DIR=/r", f"first_failure '{log}'").stdout
    assert told.startswith("task 0 failed first\n  error: ")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "y").exists()


def test_gpus_that_are_dealt_out_unevenly_are_told(bash):
    environment = {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS": "a100:4"}
    told = bash("set_shape 3", env=environment, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith(
        "error: Slurm has dealt a100:4 GPUs out unevenly to 2 nodes\nhint: "
    )


@pytest.mark.parametrize(
    ("said", "exit_code", "goes_on"),
    [
        ("JobId=7 JobState=TIMEOUT Reason=x", "", True),
        ("JobId=7 JobState=NODE_FAIL Reason=x", "", True),
        ("JobId=7 JobState=COMPLETED Reason=x", "0", True),
        ("JobId=7 JobState=FAILED Reason=x", "1", False),
        ("JobId=7 JobState=CANCELLED Reason=x", "", False),
        ("JobId=7 JobState=OUT_OF_MEMORY Reason=x", "", False),
        ("", "0", True),  # Slurm has forgotten it
        ("", "143", True),
        ("", "", True),
        ("", "1", False),
    ],
)
def test_chain_goes_on_unless_the_program_failed(said, exit_code, goes_on, bash, tmp_path):
    """scontrol is a stand-in here, for states that take minutes or a broken node to reach."""
    programs = tmp_path / "bin"
    programs.mkdir()
    ends = "" if said else "exit 1\n"
    (programs / "scontrol").write_text(f"#!/bin/sh\n{ends}echo '{said}'\n")
    (programs / "scontrol").chmod(0o755)
    (tmp_path / "7-train").mkdir()
    (tmp_path / "7-train/record.json").write_text(
        f'{{\n  "job": "7",\n  "exit_code": "{exit_code}"\n}}\n'
    )
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    told = bash(f"RUN_DIR='{tmp_path}/8-train'", "check_chain 7", env=path, check=False)
    assert told.returncode == (0 if goes_on else 1)
    assert goes_on or "error: job 7, which this one goes on from, is " in told.stderr


@pytest.mark.parametrize("code", [0, 1, 7, 143])
def test_end_keeps_the_exit_code_when_the_record_cannot_be_written(code, bash, tmp_path):
    lines = (
        f"RUN_DIR='{tmp_path}/none' log= facts=(job 1)",
        "trap 'end_run $?' EXIT",
        f"exit {code}",
    )
    assert bash(*lines, check=False).returncode == code
