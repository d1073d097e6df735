"""Messages of real programs, provoked on this machine, are explained."""

import json
import shlex
import sys

import pytest

FOREIGN = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xff\x00"  # of no machine that there is


@pytest.fixture
def topics(root, run):
    """Give a function that runs a command, which fails, and names what is explained of its log."""

    def explained(argv, **options):
        done = run(argv, check=False, **options)
        doctor = [sys.executable, root / "doctor.py", "explain", "-", "--json"]
        said = json.loads(run(doctor, input=done.stdout + done.stderr).stdout)
        return {each["topic"] for each in said["findings"]}

    return explained


PYTHON = {
    "package missing": "import no_such_package",
    "open files": "import os; a = [os.open('/', 0) for _ in range(1 << 22)]",
    "port in use": "import socket as s; a = s.create_server(('', 0)); "
    "s.create_server(a.getsockname())",
    "crash": "import faulthandler, os; faulthandler.enable(); os.abort()",
}


@pytest.mark.parametrize("topic", PYTHON)
def test_messages_of_python(topic, topics):
    assert topic in topics([sys.executable, "-c", PYTHON[topic]])


def test_foreign_program(topics, tmp_path):
    (tmp_path / "foreign").write_bytes(FOREIGN)
    (tmp_path / "foreign").chmod(0o755)
    assert "wrong architecture" in topics(["bash", "-c", "./foreign"])


def test_no_network(topics, airgapped):
    argv = ["git", "ls-remote", "https://nowhere.example.org/x.git"]
    assert "no name for the host" in topics(airgapped(argv))


def test_full_disk(topics, small_disk):
    folder = small_disk(2)
    assert "disk full" in topics(["dd", "if=/dev/zero", f"of={folder}/file"])


@pytest.mark.needs("apptainer")
def test_damaged_image(topics, tmp_path):
    (tmp_path / "bad.sif").write_bytes(bytes(4096))
    assert "image missing" in topics(["apptainer", "exec", tmp_path / "bad.sif", "true"])


def test_what_is_not_in_the_table_is_shown_as_it_is(root, run, tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    done = run(["bash", "-c", "./script"], check=False, cwd=tmp_path)
    said = run([sys.executable, root / "doctor.py", "explain", "-"], input=done.stderr).stdout
    assert said.startswith("nothing to explain")  # a shell can go on after it
    code = "class OddError(Exception): pass\nraise OddError('odd')"
    done = run([sys.executable, "-c", code], check=False)
    said = run([sys.executable, root / "doctor.py", "explain", "-"], input=done.stderr).stdout
    assert said.splitlines() == [
        "first error (not in the table): standard input, line 1",
        "         OddError: odd",
        "         raised in <string>, line 2",
    ]


def test_messages_of_slurm(topics, slurm):
    refused = ["srun", "--partition=no-such-partition", "true"]
    assert "partition refused" in topics(refused, env=slurm.environment)
    assert "request refused" in topics(["srun", "--mem=9999G", "true"], env=slurm.environment)
    assert "program not found" in topics(["srun", "no-such-program"], env=slurm.environment)


def test_log_of_a_job_without_a_run_is_named(root, run, slurm, tmp_path):
    (tmp_path / "job").write_text("#!/bin/sh\nsrun no-such-program\n")
    log = tmp_path / "its log"
    job = slurm.submit(f"--output={log}", tmp_path / "job", cwd=tmp_path)
    slurm.wait(job)
    explain = [sys.executable, root / "doctor.py", "explain"]
    environment = {**slurm.environment, "HOME": str(tmp_path)}
    done = run([*explain, job], env=environment, check=False)
    assert done.returncode == 1
    assert f"name its log: python3 doctor.py explain {shlex.quote(str(log))}\n" in done.stderr
    assert "program not found" in run([*explain, log], env=environment).stdout
    done = run([*explain, "999999"], env=environment, check=False)
    assert "name its log: python3 doctor.py explain slurm-999999.out\n" in done.stderr
