"""Job scripts, and the machine that each is for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from lib.configuration.sites import Machine
from lib.configuration.tables import find_files
from lib.jobs.options import Option, read_header
from lib.script.errors import LongshipError, suggest
from lib.script.records import read_file

# The machine in a job script; one that builds something starts no run.
_STARTS = re.compile(r"^start_job ([\w-]+)", re.MULTILINE)
_SOURCES = re.compile(
    r"^[^#\n]*(\bsource .*lib/shell/job\.bash|not submitted from the clone)", re.MULTILINE
)
_BUILDS = re.compile(r"\.py --machine ([\w-]+)")
_SERVES = re.compile(r"^serve_(\w+)", re.MULTILINE)
_SHARDS = re.compile(r"^srun .* shard\b", re.MULTILINE)
# The scripts of a stack, and the step of its settings that each reads.
_STEPS = {
    "run_training.sh": "training",
    "run_evaluation.sh": "training",
    "preprocess_data.sh": "data",
}


class JobFile(NamedTuple):
    """A job script."""

    path: Path  # relative to the repository if it is in it
    machine: str  # "" if it names none
    header: list[Option]  # its #SBATCH directives
    needs_image: bool  # it starts something in the environment
    script: str  # of the stack, which it starts; or ""
    step: str  # of the stack: training, data or ""
    mode: str  # of the data step: all, or shard in many processes
    serves: str  # ssh, to an editor in which users change the clone; jupyter; or ""

    @property
    def is_interactive(self) -> bool:
        """Whether it is for salloc, which reads no header."""
        return self.path.suffix == ".salloc"


def read_job_file(
    root: Path, name: str, verbs: Iterable[str] = (), *, is_recorded: bool = False
) -> JobFile:
    """Read a job script; a relative path begins in the working directory or in the repository.

    The verbs are what else could have been meant. That of a recorded run can be older than this
    version of Longship.
    """
    for path in (Path(name), root / name):
        if os.path.isfile(path):
            break
    else:
        existing = [str(each.relative_to(root)) for each in job_files(root)]
        named = [each for each in existing if each.rpartition("/")[2] == name]
        site = [each for each in existing if each.startswith(name.partition("/")[0] + "/")]
        allowed = named or site or [*verbs, "SITE/JOB.sbatch"]
        raise LongshipError(f"job script not found: {name}", suggest(name, allowed))
    path = path.resolve()
    try:
        text = read_file(path).decode(errors="surrogateescape")
    except OSError as error:
        raise LongshipError(f"cannot read {name}: {error.strerror}", f"ls -l {name}") from error
    if not text.startswith("#!"):
        run = f"python3 container_run.py python {name}; or submit a job script that starts it"
        raise LongshipError(
            f"{name} is not a job script: its first line does not begin with #!",
            run if path.suffix == ".py" else "write into its first line: #!/usr/bin/env bash",
        )
    if "\r\n" in text:
        raise LongshipError(
            f"{name} has DOS line ends, which sbatch refuses", f"run: sed -i 's/\\r$//' {name}"
        )
    if _SOURCES.search(text) and "declare -F start_job" not in text and not is_recorded:
        raise LongshipError(
            f"{name} sources lib/shell/job.bash without a check of whose file it is",
            "remove the lines from that `source` up to start_job, or copy those of a job script in "
            "local/: docs/how-to/jobs.md#write-your-own-job-script",
        )
    starts = _STARTS.search(text)
    machine = starts or _BUILDS.search(text)
    shown = path.relative_to(root) if root in path.parents else path
    serves = _SERVES.search(text)
    script = next((each for each in _STEPS if each in text), "")
    header = read_header(text, str(shown))
    return JobFile(
        path=shown,
        machine=machine[1] if machine else "",
        header=header,
        needs_image=starts is not None,
        script=script,
        step=_STEPS.get(script, ""),
        mode="shard" if _SHARDS.search(text) else "all",
        serves=serves[1] if serves else "",
    )


def job_files(root: Path) -> list[Path]:
    """Return all job scripts of the repository."""
    return sorted(each for kind in ("sbatch", "salloc") for each in find_files(root, f"*/*.{kind}"))


def check_machine(job: JobFile, chosen: str, machines: Mapping[str, Machine]) -> None:
    """Stop if a job is for another site than the target machine, `chosen`."""
    own, target = machines.get(job.machine), machines[chosen]
    if own and target.recognise and own.site_file != target.site_file:
        raise LongshipError(
            f"{job.path} is for {own.name}, but this machine is {target.name}",
            f"job scripts for this machine: {Path(target.site_file).parent}/*.sbatch",
        )
