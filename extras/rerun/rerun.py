"""How a recorded run is started again."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from lib.jobs.job_files import JobFile, read_job_file
from lib.jobs.options import Option, read_options
from lib.jobs.size import slurm_facts
from lib.script.errors import LongshipError
from lib.script.records import read_file, read_record

# What the record says of a job that sbatch itself submitted, and the option that asks for it. The
# header says the rest.
_OPTIONS = {
    "name": "job-name",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "nodes": "nodes",
    "time_limit": "time",
}
# Slurm's words for what nobody asked for, and the QOS that it then gives.
_UNKNOWN = ("", "(null)", "N/A")
_GIVEN = ("qos", "normal")
# Options that were about that one submission.
_ONCE = ("begin", "dependency", "hold")


def recorded_job(run: Path) -> tuple[JobFile, list[Option], tuple[str, ...]]:
    """Return the job script of a run, its sbatch options, and its arguments."""
    record = read_record(run / "record.json")
    try:
        typed = shlex.split(read_file(run / "options").decode(errors="surrogateescape"))
        options = [each for each in read_options(typed) if each.name not in _ONCE]
    except OSError:  # submitted by sbatch itself
        options = _given_options(record, run)
    except ValueError as error:
        raise LongshipError(
            f"the record of {run.name} is damaged: {error}: {run / 'options'}",
            "submit the job again: python3 submit.py SITE/JOB.sbatch",
        ) from error
    task = record.get("job", "").partition("_")[2]
    if task:  # of an array: this one alone
        options.append(Option("array", task))
    try:
        text = read_file(run / "arguments").decode(errors="surrogateescape")
    except OSError as error:
        raise LongshipError(
            f"the record of {run.name} is incomplete: {error.strerror}: {run / 'arguments'}",
            "submit the job again: python3 submit.py SITE/JOB.sbatch",
        ) from error
    arguments = tuple(text.split("\0")[:-1])
    name = "job.salloc" if (run / "job.salloc").exists() else "job.sbatch"
    job = read_job_file(run, str(run / name), is_recorded=True)._replace(path=run / name)
    return job, options, arguments


def _given_options(record: Mapping[str, str], run: Path) -> list[Option]:
    """Return what Slurm says that a job has asked for."""
    options = [
        Option(option, record[name])
        for name, option in _OPTIONS.items()
        if record.get(name, "") not in _UNKNOWN and (name, record[name]) != _GIVEN
    ]
    try:
        text = read_file(run / "slurm.txt").decode(errors="surrogateescape")
        facts = slurm_facts(text)
    except (OSError, LongshipError):
        return options
    wanted = {
        "gres": re.sub(r"gres[:/]", "", facts.get("TresPerNode", "")),
        "constraint": facts.get("Features", ""),
        "cpus-per-task": facts.get("CPUs/Task", ""),
        "mem": facts.get("MinMemoryNode", ""),
    }
    unasked = ("0", "1", *_UNKNOWN)
    return options + [Option(name, value) for name, value in wanted.items() if value not in unasked]


def check_clone(run: Path, root: Path) -> None:
    """Stop if a run belongs to another clone: its launcher starts the files of that clone."""
    clone = read_record(run / "record.json").get("repository", "")
    if not clone or os.path.realpath(clone) == os.path.realpath(root):
        return
    if os.path.exists(clone):
        hint = f"cd {shlex.quote(clone)} && python3 submit.py rerun {run.name}"
    else:
        link = shlex.join(["ln", "-s", str(root), clone])
        hint = f"that clone no longer exists; if you moved it, run: {link}"
    raise LongshipError(f"run {run.name} belongs to the clone {clone}, not to {root}", hint)
