"""Job files: what Slurm runs, and the machine that each is for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lib.configuration.sites import Machine
from lib.configuration.tables import find_files
from lib.jobs.sbatch import Option, read_header
from lib.script.errors import LongshipError, near_miss

# The name that a job file gives its machine; one that builds something has no run to start.
_STARTS = re.compile(r"^start_job ([\w-]+)", re.MULTILINE)
_BUILDS = re.compile(r"\.py --machine ([\w-]+)")
_SHARDS = re.compile(r"^srun .* shard\b", re.MULTILINE)


class JobFile(NamedTuple):
    """A checked-in job.

    Parameters
    ----------
    path : pathlib.Path
        The file; relative to the repository where it lies in it.
    machine : str
        The machine that it is for; empty where it does not say.
    header : list of Option
        Its ``#SBATCH`` lines.
    needs_image : bool
        Whether it starts something in the environment.
    step : str
        What of the stack that is: ``training``, ``data`` or nothing.
    mode : str
        How it starts the data step: ``all``, or ``shard`` in many tasks.
    """

    path: Path
    machine: str
    header: list[Option]
    needs_image: bool
    step: str
    mode: str

    @property
    def is_interactive(self) -> bool:
        """Whether it is for salloc, which reads no header itself."""
        return self.path.suffix == ".salloc"


def read_job_file(root: Path, name: str) -> JobFile:
    """Read a job file, named from the folder at hand or from the repository.

    Raises
    ------
    LongshipError
        If there is none.
    """
    for path in (Path(name), root / name):
        if os.path.isfile(path):
            break
    else:
        there = [str(each.relative_to(root)) for each in job_files(root)]
        site = [each for each in there if each.startswith(name.partition("/")[0] + "/")]
        allowed = site or ["status", "rerun", "SITE/JOB.sbatch"]
        raise LongshipError(f"job script not found: {name}", near_miss(name, allowed))
    path = path.resolve()
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise LongshipError(f"cannot read {name}: {error.strerror}", f"ls -l {name}") from error
    if not text.startswith("#!"):
        run = f"python3 container_run.py python {name}; or submit a job script that starts it"
        raise LongshipError(
            f"{name} is not a job script: its first line does not begin with #!",
            run if path.suffix == ".py" else "write into its first line: #!/usr/bin/env bash",
        )
    starts = _STARTS.search(text)
    machine = starts or _BUILDS.search(text)
    shown = path.relative_to(root) if root in path.parents else path
    steps = {"run_training.sh": "training", "preprocess_data.sh": "data"}
    header = read_header(text, str(shown))
    return JobFile(
        path=shown,
        machine=machine[1] if machine else "",
        header=header,
        needs_image=starts is not None,
        step=next((step for script, step in steps.items() if script in text), ""),
        mode="shard" if _SHARDS.search(text) else "all",
    )


def job_files(root: Path) -> list[Path]:
    """Return all checked-in jobs."""
    return sorted(each for kind in ("sbatch", "salloc") for each in find_files(root, f"*/*.{kind}"))


def check_machine(root: Path, job: JobFile, chosen: str, machines: Mapping[str, Machine]) -> None:
    """Stop where a job is for another site than the one at hand.

    Parameters
    ----------
    root : pathlib.Path
        The repository.
    job : JobFile
        From `read_job_file`.
    chosen : str
        The machine that was recognised or named.
    machines : mapping
        All, by name.

    Raises
    ------
    LongshipError
        With the jobs of this site.
    """
    own, here = machines.get(job.machine), machines[chosen]
    if own and here.recognise and own.site_file != here.site_file:
        site = Path(here.site_file).parent
        found = [each.relative_to(root) for each in job_files(root)]
        files = [each for each in found if each.parent == site]
        raise LongshipError(
            f"{job.path} is for {own.name}, but this machine is {here.name}",
            f"job scripts for this machine: {', '.join(map(str, files)) or 'none'}",
        )
