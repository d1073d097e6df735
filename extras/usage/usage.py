"""What a run has used: totals of the samples that sampler.py writes on each node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from extras.usage.sampler import TOTALS, last_rows
from lib.configuration.tables import find_files
from lib.jobs.cost import cost_of_run
from lib.jobs.runs import owner_of
from lib.script.errors import LongshipError
from lib.script.output import number
from lib.script.records import earlier_seconds, open_file, seconds_between


class Usage(NamedTuple):
    """What a run has used, by the names of its record; None if it was not measured."""

    gpu_hours: float | None = None  # allocated, used or unused
    gpu_utilisation_percent: float | None = None  # mean
    gpu_peak_memory_mib: float | None = None  # of the GPU with the most
    energy_kwh: float | None = None  # of the GPUs
    cpu_load: float | None = None  # busy cores, mean, of all nodes
    cpu_peak_memory_mib: float | None = None  # of the node with the most
    measured_percent: float | None = None  # of the time of all GPUs, or nodes
    cost: float | None = None  # in the unit of the record

    @property
    def words(self) -> str:
        """The values in one line; without GPUs, only what was measured of the nodes."""
        hours, use, gpu_peak, energy, load, peak = self[:6]
        parts = [("CPU load {:.1f}", load), ("peak memory {:.1f} GiB", peak and peak / 1024)]
        if hours:
            parts = [("GPU-hours {:.2f}", hours), ("GPU use {:.0f} %", use)]
            parts += [("peak memory {:.1f} GiB", gpu_peak and gpu_peak / 1024)]
            parts += [("energy {:.3f} kWh", energy)]
        return ", ".join(
            form.partition("{")[0] + "not measured" if value is None else form.format(value)
            for form, value in parts
            if hours or value is not None
        )


def usage_of(run: Path, record: Mapping[str, str]) -> tuple[Usage, list[LongshipError]]:
    """Return what a run has used, until its end or its last sample, and what cannot be read.

    A complete record has the values; the samples are then not needed.
    """
    if record.get("ended") and "gpu_hours" in record:
        return Usage(*(number(record.get(each, "")) for each in Usage._fields)), []
    rows: list[dict[str, str]] = []
    problems: list[LongshipError] = []
    for file in find_files(run, "usage/*.csv"):
        try:
            with open_file(file, owner=owner_of(run)) as stream:
                rows += last_rows(stream).values()
        except OSError as error:
            hint = f"run: ls -l {shlex.quote(str(file))}"
            problems.append(LongshipError(f"cannot read {file}: {error.strerror}", hint))
    return _summed(rows, record), problems


def _summed(rows: list[dict[str, str]], record: Mapping[str, str]) -> Usage:
    """Return the usage of a run by the last rows of its devices; a total of 0 is not measured."""
    gpus, nodes = (
        {
            name: [int(row[name] or 0) for row in rows if (row["device"] == "cpu") is cpu]
            for name in TOTALS
        }
        for cpu in (False, True)
    )
    ended = record.get("ended", "")
    if rows and not ended:
        last = max(int(row["time"]) for row in rows)
        ended = datetime.fromtimestamp(last, timezone.utc).isoformat()
    if not ended:
        return Usage()
    duration = max(0, seconds_between(record.get("started", ""), ended)) + earlier_seconds(record)
    count, allocated, spare = (_count(record, each) for each in ("gpus", "nodes", "spare_nodes"))
    count = count or len(gpus["seconds"])
    share = 1 - min(allocated, spare) / max(allocated, 1)  # spare nodes have no ranks
    most = duration * (count or allocated) * share
    measured = sum((gpus if count else nodes)["seconds"])
    loads = [
        use / time for use, time in zip(nodes["utilisation_seconds"], nodes["seconds"]) if time
    ]
    time = sum(gpus["seconds"])
    return Usage(
        gpu_hours=round(count * duration / 3600, 4),
        gpu_utilisation_percent=round(sum(gpus["utilisation_seconds"]) / time, 1) if time else None,
        gpu_peak_memory_mib=max(gpus["peak_memory"], default=0) or None,
        energy_kwh=round(sum(gpus["energy"]) / 3.6e6, 6) or None,
        cpu_load=round(sum(loads) / 100, 2) if loads else None,
        cpu_peak_memory_mib=max(nodes["peak_memory"], default=0) or None,
        measured_percent=round(min(100.0, 100 * measured / most), 1) if most else None,
        cost=cost_of_run(record, duration),
    )


def _count(record: Mapping[str, str], name: str) -> int:
    found = re.fullmatch("[0-9]{1,9}", record.get(name, ""))
    return int(found[0]) if found else 0
