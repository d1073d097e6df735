"""What all runs have used together, by user, project, month and stack: for a proposal."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from lib.configuration.tables import find_files
from lib.jobs.runs import owner_of, values_of
from lib.script.errors import LongshipError, printable
from lib.script.output import Report, as_json, number
from lib.script.records import content_of, readable_values
from lib.script.trust import name_of

_GROUP = ("user", "project", "month", "stack", "cost_unit")
# the columns, with heading and form in the table
_COLUMNS = {
    **{each: (each, "{}") for each in _GROUP[:-1]},
    "runs": ("runs", "{}"),
    "gpu_hours": ("GPU-hours", "{:,.1f}"),
    "measured_percent": ("measured", "{:.0f} %"),
    "gpu_utilisation_percent": ("GPU use", "{:.0f} %"),
    "energy_kwh": ("kWh", "{:,.1f}"),
    "cost": ("cost", "{:,.1f}"),
    "cost_unit": ("", "{}"),
}
_OF_GPUS = ("gpu_utilisation_percent", "energy_kwh")
_Row = dict[str, Any]
NOT_MEASURED = "not measured"


class Used(NamedTuple):
    """What a run has used, by the keys of its record; None if it was not measured."""

    gpu_hours: float | None = None
    gpu_utilisation_percent: float | None = None
    gpu_peak_memory_mib: float | None = None
    energy_kwh: float | None = None
    cpu_load: float | None = None
    cpu_peak_memory_mib: float | None = None
    measured_percent: float | None = None
    cost: float | None = None


def used_by(run: Path, record: Mapping[str, str]) -> tuple[Used, list[LongshipError]]:
    """Return what a run has used, until its end or its last sample, and what cannot be read."""
    values, problems = values_of(run, record)
    return Used(*(number({**record, **values}.get(each, "")) for each in Used._fields)), problems


def report(
    runs: Path, since: str, form: str, others: Iterable[Path] = ()
) -> tuple[Report, list[LongshipError]]:
    """Sum the runs of all users that began in a month or later, and name what the sums lack.

    The form is table, csv or json; others are runs directories of colleagues.
    """
    groups: dict[tuple[str, ...], dict[tuple[Path, str], list[Used]]] = {}  # by group and run
    problems: list[LongshipError] = []
    unmeasured: dict[str, Path] = {}
    unended = []
    for path in _records((runs, *others), problems):
        record = readable_values(path, owner_of(path.parent))
        lacks = [each for each in ("started", "gpus", "nodes") if not record.get(each)]
        if not record:
            hint = f"run: ls -l {shlex.quote(str(path))}"
            problems.append(LongshipError(f"cannot read {path}: it is left out", hint))
        elif lacks:
            hint = f"add them; or delete the run: rm -r {shlex.quote(str(path.parent))}"
            message = f"{path} is left out: it has no {' and no '.join(lacks)}"
            problems.append(LongshipError(message, hint))
        elif record["started"][:7] >= since:
            run = re.sub("^([0-9]+)_[0-9]+", r"\1", path.parent.name)  # of all tasks of an array
            usage, found = used_by(path.parent, record)
            problems += found
            if usage.gpu_hours is None:
                unended.append(run)
                continue
            if not usage.measured_percent:
                unmeasured[run] = path.parent
            place = path.parent.parent, run
            groups.setdefault(_group(path, record), {}).setdefault(place, []).append(usage)
    rows = [
        {**dict(zip(_GROUP, key)), "runs": len(found), **summed([*chain(*found.values())])}
        for key, found in sorted(groups.items())
    ]
    if unmeasured:
        hint = hint_without_samples(unmeasured.values())
        problems.append(LongshipError(f"not measured: {_named([*unmeasured])}", hint))
    if unended:
        message = f"left out, with neither an end nor a measurement: {_named(unended)}"
        problems.append(LongshipError(message, "see which still run: python3 submit.py status"))
    if form == "json":
        return as_json({each: row[each] for each in _COLUMNS} for row in rows), problems
    return Report(_as_csv(rows) if form == "csv" else _as_table(rows)), problems


def hint_without_samples(runs: Iterable[Path]) -> str:
    """Return why nothing was measured: it was off in one of the runs, or nothing could measure."""
    configurations = (content_of(run / "configuration.json", follow=False) for run in runs)
    if any(re.search(rb'"usage": 0\b', each) for each in configurations):
        return "for the next runs: set jobs.usage = 30 in configuration.toml"
    return "a job ended before its second sample, or its nodes have no program that measures"


def _records(directories: tuple[Path, ...], problems: list[LongshipError]) -> Iterator[Path]:
    """Yield the records in directories of runs, once for each directory."""
    for directory in {os.path.realpath(each): each for each in directories}.values():
        found, runs = find_files(directory, "*/record.json"), find_files(directory, "[0-9]*/")
        yield from found
        closed = [each.name for each in runs if not os.access(each, os.R_OK | os.X_OK)]
        quoted = shlex.quote(str(directory))  # not -R: a run has patches and keys
        hint = f"ask its owner to run: chmod g+rx {quoted} {quoted}/[0-9]*/"
        if closed:
            text = f"cannot read these runs in {directory}: {_named(closed)}"
            problems.append(LongshipError(text, hint))
        elif not found and directory != directories[0]:
            problems.append(LongshipError(f"no runs found in {directory}", hint))


def _group(path: Path, record: Mapping[str, str]) -> tuple[str, ...]:
    """Return whose a run was; a record of an older version has no project, but an account."""
    user = name_of(owner_of(path.parent))
    project = record.get("project") or record.get("account", "")
    month = record["started"][:7]
    return user, project, month, record.get("stack", ""), record.get("cost_unit", "")


def summed(used: list[Used]) -> _Row:
    """Sum the jobs of a group; a mean counts a job by its GPU-hours, or each alike without GPUs."""
    hours = sum(each.gpu_hours or 0 for each in used)
    times = [(each.gpu_hours or 0) if hours else 1 for each in used]
    measured = [time * (each.measured_percent or 0) for each, time in zip(used, times)]
    return {
        "gpu_hours": round(hours, 4),
        "measured_percent": _mean((each.measured_percent or 0 for each in used), times),
        "gpu_utilisation_percent": _mean((each.gpu_utilisation_percent for each in used), measured),
        "energy_kwh": _added((each.energy_kwh for each in used), 3),
        "cost": _added((each.cost for each in used), 2),
    }


def _mean(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights) if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 1) if total else None


def _added(values: Iterable[float | None], digits: int) -> float | None:
    known = [each for each in values if each is not None]
    return round(sum(known), digits) if known else None


def _named(names: list[str]) -> str:
    runs = list(dict.fromkeys(names))
    return ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")


def _as_csv(rows: list[_Row]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows([_plain(_cell(each, "{}", row)) for each in _COLUMNS] for row in rows)
    return text.getvalue()


def _plain(cell: str) -> str:
    """Return the text of a cell such that no spreadsheet takes it for a formula."""
    return "'" * (cell.startswith(tuple("=+-@\t\r")) and number(cell) is None) + printable(cell)


def _as_table(rows: list[_Row]) -> str:
    if not rows:
        return "no runs found\n"
    cells = [[heading for heading, _ in _COLUMNS.values()]]
    cells += [[_cell(each, _COLUMNS[each][1], row) for each in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    signs = ["<" if each in _GROUP else ">" for each in _COLUMNS]
    form = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths))
    return "".join(f"{printable(form.format(*line)).rstrip()}\n" for line in cells)


def _cell(name: str, form: str, row: _Row) -> str:
    """Return a value as text; no cost where no price is known, and nothing of GPUs without any."""
    if row[name] is None:
        has_none = name == "cost" or (name in _OF_GPUS and not row["gpu_hours"])
        return "" if has_none else NOT_MEASURED
    return form.format(row[name])
