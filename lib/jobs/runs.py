"""Recorded runs: how one is found, and whether what it was started with is still there."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from lib.configuration.paths import Paths
from lib.configuration.tables import find_files
from lib.script.errors import LongshipError
from lib.script.hooks import hooks
from lib.script.records import open_file, read_record, readable_values
from lib.script.trust import check_trusted, is_own

# What a record says of that which a launcher starts.
NAMED = ("image", "image_sha256", "image_state", "overlay", "overlay_sha256", "venv")
_CHANGED = "they may have changed the run: submit the job again: python3 submit.py SITE/JOB.sbatch"
_WITH_CURRENT = "submit the job with the current settings: python3 submit.py SITE/JOB.sbatch"
_WRITTEN = " bytes, written at "
_LARGEST = 1e30  # number that is a measurement
_SEARCHED = 1 << 25  # bytes at the end of a log
_BEGUN = b"longship: run "  # the first line of each start of a job, in the same log
# How programs print a step, also in colour, or name a checkpoint; "to step 400" is none.
STEP = re.compile(
    rb"(?i)(?<!\bto )(?:\b|(?<=\dm)|(?<=global_))(?:step|iteration|checkpoint)['\"]?[-_:= ]*"
    rb"(\d+)(?!\.?\d)"
)
NO_STEP = re.compile(rb"\*\*\* STEP|StepId|[Jj]ob step|srun: |slurmstepd: |longship: ")
# What a re-run reads of a run; programs write other files there, with the user's umask.
_READ = (
    *("record.json", "launcher", "start.bash", "configuration.json", "slurm.txt", "arguments"),
    *("options", "job.sbatch", "job.salloc", "repositories"),
)


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
    hint = "list them: python3 submit.py status; or give the path of a run, with a /"
    raise LongshipError(f'no run "{name}"' + f" in {paths.runs}" * ("/" not in name), hint)


def find_runs(paths: Paths, name: str) -> list[Path]:
    """Return the directory of a path, or all of the user's runs of a job ID or name.

    A path contains a "/": a directory that a colleague has made where a command is typed is not
    the run of its name. Of an array, they are those of its tasks.
    """
    if "/" in name:
        return [Path(name).resolve()] if os.path.isfile(Path(name, "record.json")) else []
    recorded = [each.parent for each in find_files(paths.runs, "*/record.json")]
    own = [each for each in recorded if owner_of(each) == os.geteuid()]
    found = [each for each in own if each.name == name]
    found = found or [each for each in own if name in each.name.split("-", 1)]
    found = found or [each for each in own if each.name.partition("_")[0] == name]
    found = [each.resolve() for each in [*filter(is_own, found)] or found]
    return sorted(found, key=lambda run: (len(run.name), run.name))  # task 2 before task 10


def owner_of(run: Path) -> int:
    """Return whose run it is, as a number: what others have put into it is not of the run."""
    return run.lstat().st_uid


def steps_of(run: Path, patterns: Sequence[str], last: int = 1 << 28) -> Iterator[dict[str, float]]:
    """Yield the numbers of each step in a run's results, files of JSON Lines.

    The last bytes of each file are read. What is cut off, and no measurement, such as Infinity, is
    left out.
    """
    own = [each for each in patterns if each.endswith(".jsonl")]
    for file in (each for pattern in own for each in find_files(run / "outputs", pattern)):
        for line in _end_of(file, last).splitlines():
            with suppress(ValueError, RecursionError, AttributeError):
                yield {
                    name: value
                    for name, value in json.loads(line).items()
                    if isinstance(value, (int, float)) and abs(value) < _LARGEST
                }


def _end_of(file: Path, last: int) -> bytes:
    """Return the last bytes of a regular file, nothing if it cannot be read."""
    with suppress(OSError), open_file(file) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - last))
        return stream.read(last)
    return b""


def steps_of_chain(paths: Paths, job: str, cluster: str) -> list[str]:
    """Return the highest steps of a job and of the one that it resumed; "" for an unknown one."""
    steps = []
    for _ in range(2):
        found = find_files(paths.runs, f"{glob.escape(job)}-*/record.json") if job else []
        records = [readable_values(each) for each in found if is_own(each.parent)]
        record = next((each for each in records if each.get("cluster", "") == cluster), {})
        log = record.get("log")
        step = highest_step(Path(log), all_starts=True) if log else None
        steps.append("" if step is None else str(step))
        job = record.get("goes_on_from", "")
    return steps


def highest_step(log: Path, *, all_starts: bool = False) -> int | None:
    """Return the highest step of a training that the last start in a job's log names, if any.

    An evaluation can count steps of its own.
    """
    found = []
    for line in reversed(_end_of(log, _SEARCHED).splitlines()):
        if line.startswith(_BEGUN) and not all_starts:
            break
        if not NO_STEP.search(line):
            found += [int(each[-18:]) for each in STEP.findall(line)]
    return max(found, default=None)


def check_own(run: Path, hint: str = _CHANGED) -> None:
    """Stop if others own a run or can change it: its files are executed again, or published."""
    read = [*(run / each for each in _READ), *find_files(run, "repositories/*")]
    for each in read:
        check_trusted(each, run.parents[1], hint=hint)


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
                _WITH_CURRENT,
            )
    _check_same_image(run, found["image"], found["image_state"])
    return found


def _check_same_image(run: Path, image: str, state: str) -> None:
    """Stop if an image's file has another state than when the run started."""
    # whole seconds: not every file system keeps more
    then, now = (each.partition(".")[0] for each in (state, image_state(image)))
    if then in ("", now):
        return
    hint, (size, written, seconds) = _WITH_CURRENT, then.partition(_WRITTEN)
    if written and now.startswith(size + written):
        hint = f"if it is the same file: touch -d @{seconds} {quote(image)}; if not, {hint}"
    message = f"the image of run {run.name} has another size or time than at its start: {image}"
    raise LongshipError(message, hint)


def image_state(image: str) -> str:
    """Return size and time of an image's file; "" for one that is no file, or is missing."""
    if not image.startswith("/") or not os.path.exists(image):
        return ""
    found = os.stat(image)
    return f"{found.st_size}{_WRITTEN}{found.st_mtime_ns / 1e9:.9f}"


def values_of(run: Path, record: Mapping[str, str]) -> tuple[dict[str, str], list[LongshipError]]:
    """Return what extras know of a run now, as keys of its record, and what they cannot read."""
    values: dict[str, str] = {}
    problems: list[LongshipError] = []
    for known in hooks("values").values():
        more, found = known(run, record)
        values.update(more)
        problems += found
    return values, problems
