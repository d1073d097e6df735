"""Recorded runs, and how one is started again."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from lib.configuration.paths import Paths
from lib.configuration.tables import find_files
from lib.jobs.job_files import JobFile, read_job_file
from lib.jobs.options import Option, read_options
from lib.jobs.request import slurm_facts
from lib.jobs.sweep import escaped
from lib.script.errors import LongshipError
from lib.script.records import read_record
from lib.script.trust import check_trusted, is_own

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


# What a record says of that which a launcher starts.
NAMED = ("image", "image_sha256", "image_state", "overlay", "overlay_sha256", "venv")
# What a re-run reads of a run; programs write other files there, with the user's umask.
_READ = (
    *("record.json", "launcher", "start.bash", "configuration.json", "slurm.txt", "arguments"),
    *("options", "job.sbatch", "job.salloc", "repositories"),
)
# Options that were about that one submission.
_ONCE = ("begin", "dependency", "hold")


def recorded_run(paths: Paths, name: str, command: str = "python3 submit.py rerun") -> Path:
    """Return the directory of a run, found by job ID, name or path; the command is for hints."""
    found = find_runs(paths, name)
    if len(found) == 1:
        return found[0]
    if found:
        names = [each.name for each in found]
        raise LongshipError(
            f'{len(found)} runs are named "{name}": {", ".join(names[-5:])}',
            f"name one of them: {command} {names[-1]}",
        )
    records = find_files(paths.runs, "*/record.json")
    newest = sorted(records, key=lambda each: each.lstat().st_mtime)[-5:]
    names = ", ".join(each.parent.name for each in reversed(newest))
    raise LongshipError(
        f'no run "{name}" in {paths.runs}',
        f"newest runs: {names}"
        if names
        else "there are no runs yet; submit a job: python3 submit.py SITE/JOB.sbatch",
    )


def find_runs(paths: Paths, name: str) -> list[Path]:
    """Return the directories of all runs of a job ID, name or path; of an array, of its tasks."""
    for each in (Path(name), paths.runs / name):
        if os.path.isfile(each / "record.json"):
            return [each.resolve()]
    recorded = [each.parent for each in find_files(paths.runs, "*/record.json")]
    found = [each for each in recorded if name in each.name.split("-", 1)]
    found = found or [each for each in recorded if each.name.partition("_")[0] == name]
    found = [each.resolve() for each in [*filter(is_own, found)] or found]
    return sorted(found, key=lambda run: (len(run.name), run.name))  # task 2 before task 10


def recorded_job(run: Path) -> tuple[JobFile, list[Option], tuple[str, ...]]:
    """Return the job script of a run, its sbatch options, and its arguments."""
    record = read_record(run / "record.json")
    try:
        typed = shlex.split((run / "options").read_bytes().decode(errors="surrogateescape"))
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
        text = (run / "arguments").read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise LongshipError(
            f"the record of {run.name} is incomplete: {error.strerror}: {run / 'arguments'}",
            "submit the job again: python3 submit.py SITE/JOB.sbatch",
        ) from error
    arguments = tuple(text.split("\0")[:-1])
    if task:
        arguments = tuple(map(escaped, arguments))
    name = "job.salloc" if (run / "job.salloc").exists() else "job.sbatch"
    job = read_job_file(run, str(run / name))._replace(path=run / name)
    return job, options, arguments


def _given_options(record: Mapping[str, str], run: Path) -> list[Option]:
    """Return what Slurm says that a job has asked for."""
    options = [
        Option(option, record[name])
        for name, option in _OPTIONS.items()
        if record.get(name, "") not in _UNKNOWN and (name, record[name]) != _GIVEN
    ]
    try:
        text = (run / "slurm.txt").read_text(encoding="utf-8", errors="surrogateescape")
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


def check_own(run: Path) -> None:
    """Stop if others own a run or can change it: its files are executed again."""
    hint = "they may have changed the run: submit the job again: python3 submit.py SITE/JOB.sbatch"
    read = [*(run / each for each in _READ), *find_files(run, "repositories/*")]
    for each in read:
        check_trusted(each, run.parents[1], hint=hint)


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


def check_still_there(run: Path) -> dict[str, str]:
    """Stop if something that a run was started with no longer exists.

    Return what the record says about it: image, overlay, venv, and their checksums.
    """
    record = read_record(run / "record.json")
    found = {name: record.get(name, "") for name in NAMED}
    needed = {name: found[name] for name in ("image", "overlay", "venv")}
    needed.update(launcher=str(run / "launcher"), configuration=str(run / "configuration.json"))
    for name, path in needed.items():
        if path.startswith("/") and not os.path.exists(path):
            raise LongshipError(
                f"the {name} of run {run.name} no longer exists: {path}",
                "submit the job with the current settings: python3 submit.py SITE/JOB.sbatch",
            )
    return found
