"""Random trees, edits, kills, full disks, removals and neighbours of jobs.

Each job runs what its submission saw, or fails, and says why.
"""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from extras.frozen.tests.test_frozen_code import HOSTILE, Frozen, files_of

NAMES = ("train.py", "lib/model.py", "run.sh", "a/b/c", *HOSTILE)


class History:
    """A clone with repositories in it, one next to it, and the jobs that were submitted."""

    def __init__(self, run, environment, folder, seed):
        self.frozen, self.random = Frozen(run, environment, folder), random.Random(seed)
        self.tool = folder / "project/repos/tool"
        self.jobs = []  # archive, and what the submission saw
        frozen = self.frozen
        frozen.start()
        frozen.write(".gitignore", "*.log\n/outputs/\n")
        self.tool.mkdir(parents=True)
        frozen.git("init", "--quiet", at=self.tool)  # without a commit
        frozen.write("tool.py", "first\n", at=self.tool)
        other = frozen.start("model.py", at=folder / "other")
        frozen.git("submodule", "--quiet", "add", other, "third party/sub")
        frozen.commit()
        frozen.git("init", "--quiet", "empty")

    def seen(self):
        """Give what a submission sees: all files but those that git ignores."""
        frozen = self.frozen
        files = {f"longship/{name}": each for name, each in files_of(frozen.clone).items()}
        files |= {f"tool/{name}": each for name, each in files_of(self.tool).items()}
        return {
            name: each
            for name, each in files.items()
            if not name.endswith(".log") and "/outputs/" not in name
        }

    def edit(self):
        """Write, remove, link, ignore, make executable or commit something."""
        frozen, choice = self.frozen, self.random.choice
        top = choice([frozen.clone, self.tool, frozen.clone / "third party/sub"])
        path = top / choice(NAMES)
        kind = choice(["write", "write", "remove", "link", "ignored", "mode", "commit"])
        if kind == "commit" and top != self.tool:
            return frozen.git("commit", "--quiet", "--all", "--allow-empty", "--message=x", at=top)
        if kind == "ignored":
            frozen.write("outputs/step", str(self.random.random()), at=frozen.clone)
            return frozen.write("x.log", "", at=frozen.clone)
        if kind == "mode" and path.is_file() and not path.is_symlink():
            return path.chmod(choice([0o644, 0o755, 0o700]))
        if os.path.lexists(path):
            path.unlink()
        if kind == "write":
            frozen.write(path.name, f"{self.random.random()}\r\n", at=path.parent)
        if kind == "link":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(choice(["train.py", "no such file", "."]))
        return None

    def submit(self):
        """Submit a job."""
        archive = self.frozen.freeze(self.tool)
        self.jobs.append((archive, self.seen()))

    def submit_and_kill(self):
        """Kill a submission with its children, at any moment."""
        process = subprocess.Popen(
            ["bash", "-c", self.frozen.script(self.tool)],
            env=self.frozen.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(self.random.random() * 0.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def submit_on_a_full_disk(self):
        """Submit while only some kilobytes can be written."""
        limit = f"ulimit -f {self.random.randrange(1, 40)}\n"
        archive = self.frozen.freeze(self.tool, before=limit, check=False)
        if self.frozen.said.returncode == 0:
            self.jobs.append((archive, self.seen()))

    def prune(self):
        """Let a month pass; the jobs are in the queue, or Slurm has lost them."""
        for each in self.frozen.store.glob("*"):
            os.utime(each, (1, 1))
        queued = self.random.choice(
            ["echo '1999-01-01T00:00:00  0'", "echo '2026-01-01T00:00:00  0'", ""]
        )
        self.frozen.program("squeue", queued)
        self.submit()

    def damage(self):
        """Let a neighbour write into its copy, and sometimes into the archive itself."""
        copies = [*self.frozen.folder.glob("run-*/code/*/*.py")]
        for each in copies:
            if each.is_file() and not each.is_symlink():
                each.write_text("of a neighbour\n")
        if self.jobs and self.random.random() < 0.2:
            archive, _ = self.random.choice(self.jobs)
            if archive.exists():
                archive.chmod(0o600)
                archive.write_bytes(archive.read_bytes()[: self.random.randrange(20_000)])

    def start(self):
        """Start a pending job, and check what it runs."""
        if not self.jobs:
            return
        archive, seen = self.jobs.pop(self.random.randrange(len(self.jobs)))
        run = self.frozen.folder / f"run-{self.random.random()}"
        done = self.frozen.start_job(archive, run, check=False)
        if done.returncode == 0:
            assert files_of(run / "code") == seen
        else:
            error = done.stderr.splitlines()[-2]
            missing = "error: cannot copy the code of this job to /tmp on "
            damaged = f"error: the code of this job is damaged: {archive}"
            assert error.startswith(damaged if archive.exists() else missing)
            assert not run.exists()


STEPS = [
    *[History.edit] * 8,
    *[History.submit] * 3,
    *[History.start] * 3,
    *(History.submit_and_kill, History.submit_on_a_full_disk, History.prune, History.damage),
]


@pytest.mark.parametrize(
    ("seeds", "steps"),
    [(range(1), 25), pytest.param(range(100, 112), 60, marks=pytest.mark.slow)],
    ids=["one", "many"],
)
def test_each_job_runs_what_its_submission_saw_or_says_why_not(
    seeds, steps, run, clean_environment, tmp_path
):
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        history = History(run, dict(clean_environment), folder, seed)
        for step in history.random.choices(STEPS, k=steps):
            step(history)
        while history.jobs:
            history.start()
        shutil.rmtree(folder)
