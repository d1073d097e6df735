"""A scaling study: its jobs, and what they have measured."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from lib.configuration.partitions import time_text
from lib.configuration.paths import Paths
from lib.configuration.stacks import load_stack
from lib.configuration.tables import find_files
from lib.jobs.runs import steps_of, values_of
from lib.script.errors import LongshipError
from lib.script.output import number
from lib.script.records import read_file, readable_values, seconds_between
from lib.script.trust import is_own

# Exit codes of a job that Slurm's signals have ended: USR1 and TERM, before and at the time limit.
_SIGNALLED = ("138", "143")


class Study(NamedTuple):
    """What was asked for; the file that describes it is written before its first job."""

    name: str
    job: str  # the job script
    machine: str
    stack: str
    nodes: tuple[int, ...]  # in ascending order
    trials: int
    steps: int
    batch: int  # sequences per step; of a weak study, on the fewest nodes
    weak: bool
    arguments: tuple[str, ...] = ()

    @property
    def warm_up(self) -> int:
        """The steps that are not counted: the first fifth."""
        return self.steps // 5

    def label(self, nodes: int, trial: int) -> str:
        """Return the name of a job, and of the directory with its results."""
        return f"{self.name}-n{nodes}-t{trial}"

    def batch_on(self, nodes: int) -> int:
        """Return the sequences of a step on so many nodes."""
        return self.batch * nodes // self.nodes[0] if self.weak else self.batch


class Trial(NamedTuple):
    """A job of a study, and what it has measured after the warm-up."""

    nodes: int
    state: str  # completed; or why it does not count
    run: Path | None = None
    record: dict[str, str] = {}
    speeds: tuple[float, ...] = ()  # tokens/s of each step
    mfus: tuple[float, ...] = ()


def study_file(paths: Paths, name: str) -> Path:
    """Return the file that describes a study, in a directory of its own."""
    return paths.runs / "scaling" / name / "study.json"


def read_study(paths: Paths, name: str) -> Study:
    """Read the description of a study."""
    known = [each.parent.name for each in find_files(paths.runs, "scaling/*/study.json")]
    if name not in known:
        raise LongshipError(
            f'no study "{name}" in {paths.runs / "scaling"}',
            f"studies: {', '.join(known)}"
            if known
            else "submit one: python3 submit.py scale --help",
        )
    try:
        values = json.loads(read_file(study_file(paths, name)))
        listed = {each: tuple(values[each]) for each in ("nodes", "arguments")}
        return Study(**{**values, **listed})
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise LongshipError(
            f"cannot read {study_file(paths, name)}: {error}", "submit the study again"
        ) from error


def trials_of(paths: Paths, study: Study) -> Iterator[Trial]:
    """Yield all trials of a study, also those without a run."""
    runs = find_files(paths.runs, f"*-{glob.escape(study.name)}-n*/record.json")
    records = [(readable_values(each), each.parent) for each in runs if is_own(each.parent)]
    for nodes in study.nodes:
        for each in range(1, study.trials + 1):
            label = study.label(nodes, each)
            found = [each for each in records if each[0].get("name") == label]
            if found:
                record, run = max(found, key=lambda pair: pair[0].get("started", ""))
                yield _trial(paths, study, nodes, run, record)
            else:
                yield Trial(nodes, "not started")


def _trial(paths: Paths, study: Study, nodes: int, run: Path, record: dict[str, str]) -> Trial:
    code = record.get("exit_code", "")
    if not record.get("ended"):
        return Trial(nodes, "no end recorded", run, record)
    metrics, outputs = load_stack(paths.root, study.stack).metrics, run / "outputs"
    steps: dict[float, dict[str, float]] = {}
    for each in steps_of(run, metrics["files"]):  # a resume repeats some
        steps.setdefault(each.get("step", 0), {}).update(each)
    last, stopped = int(max(steps, default=0)), record.get("stopped")
    why = record.get("failed") or (stopped if stopped != "timed out" else "")
    if why or code not in ("0", *_SIGNALLED):
        return Trial(nodes, f"failed: {why or 'exit code ' + (code or 'unknown')}", run, record)
    if last < study.steps or code != "0":
        taken = time_text(seconds_between(record.get("started", ""), record["ended"]) / 3600)
        state = f"ended at step {last} of {study.steps}, after {taken}"
        return Trial(nodes, f"{state} of {record.get('time_limit', 'its time')}", run, record)
    counted = [steps[each] for each in sorted(steps) if study.warm_up < each <= study.steps]
    speeds, mfus = (
        [each[name] for each in counted if each.get(name, 0) > 0]
        for name in (metrics["speed"], "mfu")
    )
    if not speeds:
        return Trial(nodes, f"no {metrics['speed']} in {outputs}", run, record)
    return Trial(nodes, "completed", run, record, tuple(speeds), tuple(mfus))


def rows_of(trials: list[Trial], count: int) -> list[dict[str, Any]]:
    """Return what was measured on each number of nodes; None is what was not.

    Speed-up and efficiency are relative to the fewest nodes on which a trial has completed.
    """
    rows: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for nodes in dict.fromkeys(each.nodes for each in trials):
        done = [each for each in trials if each.nodes == nodes and each.state == "completed"]
        row: dict[str, Any] = {"nodes": nodes, "trials": f"{len(done)} of {count}"}
        if done:
            row.update(_measured(done))
            first = first or row
            row["speed_up"] = row["tokens_per_s"] / first["tokens_per_s"]
            shares = (row["gpus"] or nodes) / (first["gpus"] or first["nodes"])
            row["efficiency_percent"] = 100 * row["speed_up"] / shares
        rows.append(row)
    return rows


def _measured(done: list[Trial]) -> dict[str, Any]:
    speeds = [speed for each in done for speed in each.speeds]
    low, _, high = quantiles(speeds) if len(speeds) > 1 else speeds * 3
    mfus = [mfu for each in done for mfu in each.mfus]
    used = [values_of(each.run or Path(os.devnull), each.record)[0] for each in done]
    energy = [number(each.get("energy_kwh", "")) for each in used]
    shares = [number(each.get("gpu_utilisation_percent", "")) for each in used]
    price, speed = number(done[0].record.get("cost_per_hour", "")), median(speeds)
    return {
        "gpus": number(done[0].record.get("gpus", "")) or 0,
        "tokens_per_s": speed,
        "lower_quartile": low,
        "upper_quartile": high,
        "mfu_percent": 100 * median(mfus) if mfus else None,
        "gpu_use_percent": None if None in shares else sum(shares) / len(shares),  # type: ignore[arg-type]
        "energy_kwh": None if None in energy else sum(energy),  # type: ignore[arg-type]
        "cost_per_million_tokens": None if price is None else price / 3600 / speed * 1e6,
        "cost_unit": done[0].record.get("cost_unit", ""),
    }
