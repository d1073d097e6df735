"""What a run has used: totals of the samples that usage.bash writes on each node."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from lib.configuration.tables import find_files
from lib.jobs.cost import cost_of_run
from lib.script.errors import LongshipError
from lib.script.output import number
from lib.script.records import earlier_seconds, open_file, seconds_between

NOT_MEASURED = "not measured"
_ALWAYS = ("gpu_hours", "gpu_utilisation_percent", "gpu_peak_memory_mib", "energy_kwh")  # recorded
_TAIL = 1 << 14  # bytes with the last line of each device
_TOTALS = ("seconds", "utilisation_seconds", "peak_memory", "energy", "throttled_seconds")

_Row = dict[str, str]


class Usage(NamedTuple):
    """What a run has used, by the names of its record; None if it was not measured."""

    gpu_hours: float | None = None  # allocated, used or unused
    gpu_utilisation_percent: float | None = None  # mean
    gpu_peak_memory_mib: float | None = None  # of the GPU with the most
    gpu_throttled_percent: float | None = None  # of the time
    energy_kwh: float | None = None  # of the GPUs
    cpu_load: float | None = None  # busy cores, mean, of all nodes
    cpu_peak_memory_mib: float | None = None  # of the node with the most
    measured_percent: float | None = None  # of the time of all GPUs, or nodes
    cost: float | None = None  # in the unit of the record

    @property
    def words(self) -> str:
        """The values in one line; without GPUs, those of the nodes that were measured."""
        if not self.gpu_hours:
            peak = self.cpu_peak_memory_mib
            load, memory = (
                ("CPU load {:.1f}", self.cpu_load),
                ("peak memory {:.1f} GiB", _gib(peak)),
            )
            return ", ".join(form.format(each) for form, each in (load, memory) if each is not None)
        parts = (
            ("GPU-hours {:.2f}", self.gpu_hours),
            ("GPU use {:.0f} %", self.gpu_utilisation_percent),
            ("peak memory {:.1f} GiB", _gib(self.gpu_peak_memory_mib)),
            ("energy {:.3f} kWh", self.energy_kwh),
        )
        return ", ".join(
            form.partition("{")[0] + NOT_MEASURED if value is None else form.format(value)
            for form, value in parts
        )


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def usage_of(run: Path, record: Mapping[str, str]) -> tuple[Usage, list[LongshipError]]:
    """Return what a run has used, until its end or its last sample, and what cannot be read.

    A complete record has the values; the samples are then not needed.
    """
    if record.get("ended") and "gpu_hours" in record:
        return Usage(*(number(record.get(each, "")) for each in Usage._fields)), []
    rows: list[_Row] = []
    problems: list[LongshipError] = []
    for file in find_files(run, "usage/*.csv"):
        try:
            rows += _last_rows(file, problems)
        except OSError as error:
            hint = f"run: ls -l {shlex.quote(str(file))}"
            problems.append(LongshipError(f"cannot read {file}: {error.strerror}", hint))
    return _summed(rows, record), problems


def recorded_values(run: Path, record: Mapping[str, str]) -> list[str]:
    """Return names and values that the end of a job adds to its record, in turn."""
    found = usage_of(run, record)[0]._asdict().items()
    texts = {name: f"{value:.10g}" for name, value in found if value is not None}
    return [
        word for pair in {**dict.fromkeys(_ALWAYS, NOT_MEASURED), **texts}.items() for word in pair
    ]


def _last_rows(file: Path, problems: list[LongshipError]) -> list[_Row]:
    """Return the last complete line of each device in a file of samples."""
    with open_file(file) as stream:
        heading = stream.readline(_TAIL).decode(errors="replace").strip().split(",")
        stream.seek(max(stream.tell(), os.fstat(stream.fileno()).st_size - _TAIL))
        *lines, rest = stream.read(_TAIL).decode(errors="replace").split("\n")
    quoted = shlex.quote(str(file))
    rows = [dict(zip(heading, line.split(","))) for line in lines]
    devices = {row["device"]: row for row in rows if _is_sample(row)}
    if rest:
        hint = f"remove it; the lines before are counted: sed -i '$d' {quoted}"
        problems.append(LongshipError(f"the last line of {file} is incomplete", hint))
    elif lines and not devices:
        hint = f"remove it; its node then counts as not measured: rm {quoted}"
        problems.append(LongshipError(f"no sample found in {file}", hint))
    return list(devices.values())


def _is_sample(row: _Row) -> bool:
    """Tell whether a line has the columns of usage.bash, with numbers as totals."""
    values = [row.get("time") or "?", row.get("device", "?").replace("cpu", "0")]
    values += [row.get(each, "?") or "0" for each in _TOTALS]
    return len(values[0]) < 11 and all(re.fullmatch("[0-9]{1,12}", each) for each in values)


def _summed(rows: list[_Row], record: Mapping[str, str]) -> Usage:
    """Return the usage of a run by the last lines of its devices."""
    gpus = [row for row in rows if row["device"] != "cpu"]
    nodes = [row for row in rows if row["device"] == "cpu"]
    ended = record.get("ended", "")
    if rows and not ended:
        last = max(int(row["time"]) for row in rows)
        ended = datetime.fromtimestamp(last, timezone.utc).isoformat()
    if not ended:
        return Usage()
    duration = max(0, seconds_between(record.get("started", ""), ended)) + earlier_seconds(record)
    count = _count(record, "gpus") or len(gpus)
    allocated = _count(record, "nodes")
    spare = min(allocated, _count(record, "spare_nodes")) / max(allocated, 1)  # without ranks
    most = duration * (count or allocated) * (1 - spare)
    energy = _total(gpus, "energy")
    measured = _total(gpus if count else nodes, "seconds") or 0
    loads = [
        _share([row], "utilisation_seconds") or 0 for row in nodes if row["utilisation_seconds"]
    ]
    return Usage(
        gpu_hours=round(count * duration / 3600, 4),
        gpu_utilisation_percent=_share(gpus, "utilisation_seconds"),
        gpu_peak_memory_mib=max(_values(gpus, "peak_memory"), default=None),
        gpu_throttled_percent=_share(gpus, "throttled_seconds", 100),
        energy_kwh=None if energy is None else round(energy / 3.6e6, 6),
        cpu_load=round(sum(loads) / 100, 2) if loads else None,
        cpu_peak_memory_mib=max(_values(nodes, "peak_memory"), default=None),
        measured_percent=round(min(100.0, 100 * measured / most), 1) if most else None,
        cost=cost_of_run(record, duration),
    )


def _count(record: Mapping[str, str], name: str) -> int:
    found = re.fullmatch("[0-9]{1,9}", record.get(name, ""))
    return int(found[0]) if found else 0


def _values(rows: list[_Row], name: str) -> list[int]:
    return [int(row[name]) for row in rows if row[name]]


def _total(rows: list[_Row], name: str) -> int | None:
    values = _values(rows, name)
    return sum(values) if values else None


def _share(rows: list[_Row], name: str, factor: int = 1) -> float | None:
    """Return an integral over the time in which it was measured."""
    rows = [row for row in rows if row[name]]
    time = sum(_values(rows, "seconds"))
    return round(factor * sum(_values(rows, name)) / time, 1) if time else None
