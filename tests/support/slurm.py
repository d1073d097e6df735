"""A Slurm cluster for tests: three compute nodes without a way out, see servers/slurm.sh."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from support import needs, processes

SERVER = Path(__file__).resolve().parents[1] / "integration/servers/slurm.sh"
FINAL = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
# Seconds between two questions to Slurm: each starts a program, which the tests beside pay for.
POLL = 0.3
# Values are not quoted: a folder's blanks are told from the next name by its capital and its "=".
FACT = re.compile(r"([A-Z][\w:/]*)=(.*?)(?= +[A-Z][\w:/]*=| *$)", re.DOTALL)


class Slurm:
    """The cluster as a user on its login node sees it; the environment names it."""

    def __init__(self, environment):
        self.environment = environment

    def run(self, argv, *, env=None, **options):
        """Run a command list to its end, see `processes.run`; `env` is added to the environment."""
        __tracebackhide__ = True
        return processes.run(argv, env={**self.environment, **(env or {})}, **options)

    def submit(self, *argv, **options):
        """Submit a job with the options and script of sbatch; return its number."""
        __tracebackhide__ = True
        return self.run(["sbatch", "--parsable", *argv], **options).stdout.strip().split(";")[0]

    def facts(self, job):
        """Give what Slurm knows of a job: `JobState`, `NodeList`, `Restarts`, `StdOut`, ...

        Of an array it is the first job that Slurm names.
        """
        __tracebackhide__ = True
        said = self.run(["scontrol", "show", "job", "--oneliner", job]).stdout
        first = said.partition("\nJobId=")[0]  # an argument of a job can hold a newline
        return dict(FACT.findall(first))

    def wait(self, job, *states, timeout=600, until=lambda: False):
        """Wait until a job is in one of the states, by default in a final one; return its state.

        Or until something that it brings about, also with its end.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        while True:
            state = self.facts(job)["JobState"]
            if until() or state in (states or FINAL):
                return state
            if state in FINAL or time.monotonic() > deadline:
                wanted = " or ".join(states) or "at its end"
                pytest.fail(f"job {job} is {state}, not {wanted}:\n{self.log(job)}", pytrace=False)
            time.sleep(POLL)

    def log(self, job):
        """Give what a job has printed so far, or that it has printed nothing."""
        path = Path(self.facts(job).get("StdOut", os.devnull))
        return path.read_text(errors="backslashreplace") if path.exists() else f"no file {path}"

    def on_node(self, node, argv, **options):
        """Run a command on one node to its end, by srun; return its CompletedProcess."""
        __tracebackhide__ = True
        return self.run(["srun", f"--nodelist={node}", "--ntasks=1", *argv], **options)

    def cancel_all(self, timeout=300):
        """Cancel this user's jobs, and wait until their processes are gone."""
        deadline = time.monotonic() + timeout
        while self.run(["squeue", "--me", "--noheader"]).stdout:
            self.run(["scancel", "--me", "--quiet"], check=False)
            assert time.monotonic() < deadline, self.run(["squeue", "--me"]).stdout
            time.sleep(0.2)


@pytest.fixture(scope="session")
def slurm_cluster(require, session_environment):
    """Give the cluster for what is made once per session; root starts one if none answers."""
    require("slurm")
    if needs.cluster_answers():
        yield Slurm({**session_environment, "SLURM_CONF": os.environ["SLURM_CONF"]})
        return
    # Not in pytest's folder: a socket's path must be short.
    folder = tempfile.mkdtemp(prefix="longship-slurm-")
    start = [SERVER, "start", folder]
    try:
        started = subprocess.run(start, stdout=subprocess.PIPE, text=True, check=True)
        yield Slurm({**session_environment, "SLURM_CONF": started.stdout.strip()})
    finally:
        subprocess.run([SERVER, "stop", folder], check=True)
        shutil.rmtree(folder)


@pytest.fixture
def slurm(slurm_cluster):
    """Give the cluster to a test, whose jobs end with it."""
    yield slurm_cluster
    slurm_cluster.cancel_all()
