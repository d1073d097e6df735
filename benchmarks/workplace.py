"""A directory in place of a shared file system: an image, configurations, launchers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tables import MissingError

ROOT = Path(__file__).resolve().parent.parent

CONFIGURATION = """\
machine = "local"
[paths]
project_dir = {folder}
scratch_dir = {scratch}
[container]
runtime = {runtime}
image = {image}
[packages]
requirements = {requirements}
overlay = {overlay}
"""


class Workplace:
    """The directory of a benchmark.

    Parameters
    ----------
    folder : pathlib.Path
        Directory for all files.
    image : pathlib.Path, optional
        A SIF file; without one the runtime is the host.
    """

    def __init__(self, folder: Path, image: Path | None = None) -> None:
        self.folder, self.image = folder, None
        if image:  # shared like everything else
            self.image = folder / "image.sif"
            if not self.image.exists():
                shutil.copy(image, self.image)

    def configure(
        self, kind: str, requirements: str = "", overlay: str = "", image: Path | None = None
    ) -> None:
        """Write a configuration under a name; each has its own scratch directory."""
        image = image or self.image
        facts = {
            "folder": self.folder / "project",
            "scratch": self.folder / kind,
            "runtime": "apptainer" if image else "host",
            "image": image or "",
            "requirements": requirements,
            "overlay": overlay,
        }
        # the first launch would make it, and do more than those after it
        facts["scratch"].mkdir(0o700, exist_ok=True)
        written = {name: json.dumps(str(value)) for name, value in facts.items()}
        text = CONFIGURATION.format(**written)
        (self.folder / f"{kind}.toml").write_text(text, encoding="utf-8")

    def environ(self, kind: str) -> dict[str, str]:
        """Return the environment with that configuration."""
        environ = {**os.environ, "LONGSHIP_CONFIGURATION": str(self.folder / f"{kind}.toml")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as for users, who have compiled modules
        return environ

    def script(self, kind: str, name: str, *arguments: str) -> str:
        """Run one of the scripts with that configuration; return what it prints."""
        command = [sys.executable, str(ROOT / name), *arguments]
        return run(command, self.environ(kind))

    def launcher(self, kind: str) -> Path:
        """Write a launcher with that configuration."""
        file = self.folder / f"{kind}.launcher"
        self.script(kind, "container_run.py", "--launcher", str(file))
        return file

    @contextlib.contextmanager
    def answering_late(self, delay: float) -> Iterator[Counter[str]]:
        """Let each operation in the directory take so many milliseconds longer, with empty caches.

        Yields the numbers of operations, which are there after the end.
        """
        need("a file system that answers late", ("fusermount3",))
        counts: Counter[str] = Counter()
        folder = str(self.folder)
        command = [sys.executable, str(ROOT / "benchmarks/delayed.py"), folder, str(delay)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            while not os.path.ismount(folder):
                if process.poll() is not None:
                    raise RuntimeError("delayed.py cannot mount, see above")
                time.sleep(0.05)
            yield counts
        finally:
            if process.poll() is None:
                # lazily: the processes of a container may still be ending
                subprocess.run(["fusermount3", "-u", "-z", folder], check=True)
            counts.update(json.loads(process.communicate()[0] or "{}"))


def for_jobs(environ: dict[str, str]) -> dict[str, str]:
    """Put this Python, which has the scripts' packages, first on PATH for jobs.

    Only for jobs: the runtime searches PATH for its helpers, which other topics count.
    """
    return {**environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"}


def run(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    """Run a command that is not measured; return its output, and show the error if it fails."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, env=environ, **pipes)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stderr}{done.stdout}")
    return done.stdout.strip()


def need(topic: str, programs: Iterable[str]) -> None:
    """Fail if a program is missing."""
    absent = [each for each in programs if not shutil.which(each)]
    if absent:
        raise MissingError(f"{topic} needs {', '.join(absent)}, which this machine does not have")


def has_slurm() -> bool:
    """Tell whether Slurm responds."""
    if not shutil.which("sbatch"):
        return False
    try:
        return subprocess.run(["sinfo"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
