"""doctor.py --job on a real Slurm: healthy nodes, and ranks that were broken on purpose.

A fault is text that is added to the program of the ranks in the test's clone.
"""

import json
import os
import re
import signal
import sys
import time

import pytest
from support import processes

pytestmark = pytest.mark.xdist_group("doctor_job")  # one waits for the end of all ranks

MAIN = 'if __name__ == "__main__":'
# What rank 3 does before it begins a stage; on two nodes it is the second rank of node2.
AT_STAGE = """\
begin_any = Rank.begin
def begin(self, stage):
    if self.number == 3 and stage.startswith({stage!r}):
        {body}
    begin_any(self, stage)
Rank.begin = begin
"""
# One value of the sums of 4 MiB is wrong on node2.
WRONG_SUM = """\
run = Rank.run
def run_with_wrong_sum(self):
    import torch.distributed as dist
    all_reduce = dist.all_reduce
    def wrong(data, **options):
        all_reduce(data, **options)
        if data.nbytes == 4 << 20 and NODE == "node2":
            data[1000] += 1
    dist.all_reduce = wrong
    run(self)
Rank.run = run_with_wrong_sum
"""


class Doctor:
    """Runs it in jobs, with a fault or a time limit that its program does not have."""

    def __init__(self, clone):
        self.clone = clone
        self.program = clone.root / "extras/job_check/inside/check_ranks.py"
        self.whole = self.program.read_text()
        self.command = [sys.executable, clone.root / "doctor.py", "--job", "--json"]

    def __call__(self, *options, fault=""):
        """Run it with options of salloc to its end; return what it found, by topic."""
        assert self.whole.count(MAIN) == 1
        self.program.write_text(self.whole.replace(MAIN, f"{fault}{MAIN}"))
        return self.report(["salloc", "--quiet", *options, *self.command])

    def report(self, command, **environment):
        """Run a command to its end; return what it found: states and texts by topic."""
        environment = {**self.clone.environment, **environment}
        done = processes.run(command, env=environment, cwd=self.clone.root, check=False)
        try:
            found = json.loads(done.stdout)["findings"]
        except json.JSONDecodeError:
            pytest.fail(f"no report: {done.stdout}\n{done.stderr}", pytrace=False)
        assert done.returncode == any(each["state"] == "problem" for each in found)
        assert all(each["fix"] for each in found if each["state"] != "ok")
        topics = {each["topic"]: [] for each in found}
        for each in found:
            topics[each["topic"]].append((each["state"], each["text"]))
        topics.pop("nodes", None)  # on this one machine other work makes nodes slow
        return topics

    def set_time_limit(self, seconds):
        """Let it end after so many seconds."""
        file = self.clone.root / "extras/job_check/diagnosis.py"
        text, count = re.subn(r"_TIME_LIMIT = \d+", f"_TIME_LIMIT = {seconds}", file.read_text())
        assert count == 1
        file.write_text(text)


@pytest.fixture(scope="module")
def clone(make_job_clone, tmp_path_factory):
    """Give a clone whose jobs have PyTorch."""
    return make_job_clone(tmp_path_factory.mktemp("doctor"))


@pytest.fixture
def doctor(clone, slurm):
    """Give a function that runs it in a job."""
    doctor = Doctor(clone)
    doctor.set_time_limit(400)  # this machine can be busy
    yield doctor
    doctor.program.write_text(doctor.whole)


def test_healthy_nodes(doctor):
    found = doctor("--nodes=3")
    assert found["ranks"] == [("ok", "6 on 3 nodes by gloo: all are done")]
    assert found["rendezvous"] == [("ok", "by IPv4: all ranks")]
    assert found["sums"] == [
        ("ok", "right for 0.0625 MiB, 0.25 MiB, 1 MiB, 2 MiB, 4 MiB, 8 MiB, 64 MiB")
    ]
    ((state, text),) = found["bandwidth"]
    assert state == "ok"
    assert re.match(r"\d+\.\d\d GB/s at 8 MiB, \d+\.\d\d GB/s at 64 MiB; ", text)
    assert "network" not in found  # that is NCCL's


def test_wrong_sums(doctor):
    found = doctor("--nodes=2", fault=WRONG_SUM)
    assert found["ranks"] == [("ok", "4 on 2 nodes by gloo: all are done")]
    ((state, text),) = found["sums"]
    assert state == "problem"
    assert re.fullmatch(r"\d+ wrong sums of 4 MiB: node2 \(rank 2 3\)", text)


def test_rank_that_dies_is_named_and_not_those_that_waited_for_it(doctor):
    fault = AT_STAGE.format(stage="all_reduce of 4 MiB", body="os.kill(os.getpid(), 11)")
    found = doctor("--nodes=2", fault=fault)
    told = "node2 (rank 3): ended with signal 11, in: all_reduce of 2 MiB among all ranks"
    assert found["ranks"] == [("problem", told)]
    assert found["sums"][0][1].endswith("2 MiB")


def test_rank_that_hangs_is_named_within_the_time(doctor):
    stop = "os.kill(os.getpid(), 19)"  # nothing but SIGKILL ends it then
    doctor.set_time_limit(100)
    begin = time.monotonic()
    found = doctor("--nodes=2", fault=AT_STAGE.format(stage="all_reduce of 4 MiB", body=stop))
    assert time.monotonic() - begin < 150
    told = "node2 (rank 3) did not get beyond: all_reduce of 2 MiB among all ranks"
    assert found["ranks"] == [("problem", told)]
    processes.wait_until(lambda: not ranks())


def test_bandwidth_below_what_is_expected(doctor, request):
    site = doctor.clone.root / "local/site.toml"
    text = site.read_text()
    request.addfinalizer(lambda: site.write_text(text))
    table = "[machines.local.expected]\nbus_bandwidth = 163\nnodes = 2\n"
    site.write_text(f"{text}\n{table}")
    ((state, told),) = doctor("--nodes=2")["bandwidth"]
    assert state == "problem"
    assert told.endswith(": less than half of the 163 GB/s expected")


def test_environment_without_pytorch(slurm, make_job_clone, jupyter_environment, tmp_path):
    doctor = Doctor(make_job_clone(tmp_path, packages=jupyter_environment))
    told = doctor("--nodes=2")["ranks"]
    missing = "ModuleNotFoundError: No module named 'torch', in: import of PyTorch"
    assert told == [("problem", f"all ranks: {missing}")]


def test_interrupted_from_outside_nothing_is_left(doctor, slurm):
    job = slurm.submit("--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait(job, "RUNNING")
    environment = {**doctor.clone.environment, "SLURM_JOB_ID": job}
    process = doctor.clone.start("doctor.py", "--job", env=environment, cwd=doctor.clone.root)
    try:
        processes.wait_until(lambda: ranks() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=processes.PATIENCE)
        assert process.returncode == 130, said + errors
    finally:
        processes.end_group(process)
        process.communicate()
    processes.wait_until(lambda: not ranks())


def ranks():
    """Give the processes of ranks."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0] == b"python" and words[1].endswith(b"/inside/check_ranks.py"):
            found.append(pid)
    return found


def test_line_of_a_job_script_checks_tasks_that_slurm_starts(doctor):
    clone = doctor.clone
    (clone.root / "local/look.sbatch").write_text(
        "#!/usr/bin/env bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n"
        'start_job local "$@"\npython3 doctor.py --job || exit\nsrun echo "the job goes on"\n'
    )
    log = clone.finish("local/look.sbatch").log
    assert "4 on 2 nodes by gloo" in log
    assert log.count("the job goes on") == 4


def test_outside_of_a_job_it_says_what_to_type(doctor):
    command = doctor.clone.command("doctor.py", "--job")
    done = processes.run(command, env=doctor.clone.environment, check=False)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert error == "error: not in a job: SLURM_JOB_ID is not set"
    assert "salloc" in hint
