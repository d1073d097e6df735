"""The speed of a run, and how it compares with the last good run of the same kind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from lib.configuration.stacks import load_stack
from lib.configuration.tables import find_files
from lib.jobs.runs import NAMED, steps_of
from lib.script.output import number
from lib.script.records import content_of, readable_values, seconds_between
from lib.script.trust import is_own

_RUNS = 50  # of which the records are read
_TAIL = 1 << 24  # bytes at the end of the metrics
_STEPS = 10  # which a speed needs at least, after the warm-up
_EPOCH = "1970-01-01T00:00:00Z"
# What two runs of the same kind have in common, besides script, arguments and settings.
_KIND = ("machine", "cluster", "stack", "nodes", "gpus", "spare_nodes", "values")
# Settings that do not change the speed: where the results are, and when the training ends.
_FREE = ("run_name", "steps")
_FREE_ARGUMENT = re.compile(rb"\0--(?:run-name|steps)(?:=[^\0]*|\0[^\0]*)")
# Keys of the record that may differ, by their words.
_RECORDED = {
    **{"image": NAMED[:3], "runtime": ("runtime",)},
    **{"partition": ("partition", "qos"), "nodes": ("nodelist",)},
}


def speed_of(root: Path, run: Path, record: Mapping[str, str]) -> float | None:
    """Return the median of the tokens per second of a run, without the first fifth of its steps.

    None if too few steps are known to be of this run: other jobs write to the same file.
    """
    metrics = load_stack(root, record.get("stack", "")).metrics
    began = seconds_between(_EPOCH, record.get("started", ""))
    speeds: dict[float, float] = {}  # a step that is repeated after a failure counts once
    for line in steps_of(run, metrics["files"], _TAIL):
        step, time, speed = (line.get(each, 0) for each in ("step", "time", metrics["speed"]))
        if step > 0 and speed > 0 and time >= began > 0:
            speeds[step] = speed
    values = [speed for _, speed in sorted(speeds.items())][len(speeds) // 5 :]
    return median(values) if len(values) >= _STEPS else None


def comparison(run: Path, record: Mapping[str, str], speed: float) -> str:
    """Return how the speed of a run compares with that of the last good one; "" without one."""
    kind = _kind(run, record)
    for other in _last_runs(run):
        earlier = readable_values(other / "record.json")
        before = number(earlier.get("tokens_per_s", ""))
        is_whole = earlier.get("stopped", "") in ("", "timed out")
        is_good = earlier.get("exit_code") == "0" and is_whole
        if not before or not is_good or not is_own(other) or _kind(other, earlier) != kind:
            continue
        percent = round(100 * (speed / before - 1))
        words = f"{abs(percent)} % {'faster' if percent > 0 else 'slower'} than"
        differences = [*_differences(run, record, other, earlier)] or ["nothing known differs"]
        name = other.name.partition("-")[0]
        return f"{words if percent else 'as fast as'} run {name}: {', '.join(differences)}"
    return ""


def _last_runs(run: Path) -> list[Path]:
    """Return the other runs with the highest job IDs, the highest first."""
    found = [re.match("[0-9]+", each) for each in os.listdir(run.parent) if each != run.name]
    numbered = sorted(((int(each[0]), each.string) for each in found if each), reverse=True)
    return [run.parent / name for _, name in numbered[:_RUNS]]


def _settings(run: Path, table: str) -> Any:
    """Return a table of the configuration of a run; if it cannot be read, what no other run has."""
    with suppress(ValueError, LookupError, TypeError):
        return json.loads(content_of(run / "configuration.json"))[table]
    return str(run)


def _kind(run: Path, record: Mapping[str, str]) -> tuple[Any, ...]:
    """Return what a run trains, and on what."""
    training = _settings(run, "training")
    if isinstance(training, dict):
        training = {name: value for name, value in training.items() if name not in _FREE}
    arguments = _FREE_ARGUMENT.sub(b"", b"\0" + content_of(run / "arguments"))
    script = content_of(run / "job.sbatch").splitlines()
    code = [line for line in script if not line.startswith(b"#")]
    return training, arguments, code, [record.get(each, "") for each in _KIND]


def _differences(
    run: Path, record: Mapping[str, str], other: Path, earlier: Mapping[str, str]
) -> Iterator[str]:
    """Yield what differs between two runs, or is not known of one of them."""
    for name, keys in _RECORDED.items():
        here, there = ([values.get(key, "") for key in keys] for values in (record, earlier))
        if here != there:
            yield f"other {name}"
    if _settings(run, "environment") != _settings(other, "environment"):
        yield "other environment variables"
    for name, pattern in (("packages", "packages.txt"), ("code", "repositories/*")):
        here, there = (
            {file.name: content_of(file) for file in find_files(each, pattern)}
            for each in (run, other)
        )
        if not here or not there:
            yield f"{name} not recorded"
        elif here != there:
            yield f"other {name}"
