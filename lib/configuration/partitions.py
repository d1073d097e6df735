"""Limits and prices of a site's partitions: tables of a ``site.toml``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lib.configuration.tables import Key, Source, check_table
from lib.script.errors import LongshipError

_LIMITS = {
    "max_time": Key("string", "such as 24:00:00 or 7-00:00:00"),
    "max_nodes": Key("integer"),
    "max_gpus": Key("integer"),
}
LIMIT_NAMES = ("max_hours", "max_nodes", "max_gpus")
LIMITS_OF = {
    "partitions": {
        **_LIMITS,
        "cores_per_node": Key("integer"),
        "gpus_per_node": Key("integer"),
        "price": Key("table"),
    },
    "qos": _LIMITS,
}
PRICE = {
    "unit": Key("string"),
    "node": Key("float"),
    "gpu": Key("float"),
    "core": Key("float"),
    "slice": Key("float"),
    "slice_cores": Key("integer"),
    "slice_memory": Key("integer"),
    "constraints": Key("table"),
}


class Limits(NamedTuple):
    """Limits of a partition or a quality of service; None if unknown.

    Parameters
    ----------
    max_hours : float or None
        Time limit of a job.
    max_nodes, max_gpus : int or None
        Size limit of a job.
    cores_per_node, gpus_per_node : int or None
        Cores or GPUs of its nodes, if they differ from the machine's other nodes.
    price : Price or None
        Price of an hour, if it differs from the machine's other partitions.
    """

    max_hours: float | None = None
    max_nodes: int | None = None
    max_gpus: int | None = None
    cores_per_node: int | None = None
    gpus_per_node: int | None = None
    price: Price | None = None


class Price(NamedTuple):
    """Price of an hour, in the site's own unit: the sum of all parts.

    Parameters
    ----------
    unit : str
        Unit of the price, such as ``core-hours``.
    node, gpu, core : float
        Price per requested node, GPU or core.
    slice : float
        LUMI: price per slice; their number is the largest of GPUs, cores / slice_cores and
        gigabytes / slice_memory.
    slice_cores, slice_memory : int
        LUMI: cores, and gigabytes, that belong to one GPU of a node.
    constraints : mapping of str to float
        Factors of ``--constraint``, such as Berzelius' fat nodes.
    """

    unit: str = "hours"
    node: float = 0
    gpu: float = 0
    core: float = 0
    slice: float = 0
    slice_cores: int = 1
    slice_memory: int = 1
    constraints: Mapping[str, float] = {}

    def per_hour(
        self, *, nodes: int, cores: int, gpus: int, memory: float, constraint: str
    ) -> float:
        """Return what an hour of a job costs; its size is given in total, memory in gigabytes."""
        shares = cores / max(self.slice_cores, 1), memory / max(self.slice_memory, 1)
        slices = max(gpus, *map(math.ceil, shares))
        words = re.findall(r"\w+", constraint)
        factor = max((float(self.constraints.get(each, 1)) for each in words), default=1)
        return factor * (
            nodes * self.node + gpus * self.gpu + cores * self.core + slices * self.slice
        )


def read_limits(kind: str, table: Any, source: Source, prefix: str) -> dict[str, Limits]:
    """Read the tables of all ``partitions``, or of all qualities of service (``qos``)."""
    found = {}
    for name, each in check_table(
        table, dict.fromkeys(table, Key("table")), source, prefix
    ).items():
        dotted = f"{prefix}.{name}"
        values = check_table(each, LIMITS_OF[kind], source, dotted)
        if "max_time" in values:
            key = f"{dotted}.max_time"
            values["max_hours"] = hours(values.pop("max_time"), f"{source.location(key)}: {key}")
        if "price" in values:
            values["price"] = read_price(values["price"], source, f"{dotted}.price")
        found[name] = Limits(**values)
    return found


def read_price(table: Any, source: Source, prefix: str) -> Price:
    """Read a price."""
    values = check_table(table, PRICE, source, prefix)
    factors = values.get("constraints", {})
    check_table(factors, dict.fromkeys(factors, Key("float")), source, f"{prefix}.constraints")
    return Price(**values)


_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def hours(text: str, location: str) -> float:
    """Read a time as Slurm does: minutes, minutes:seconds, hours:minutes:seconds, or with days.

    Parameters
    ----------
    text : str
        Such as ``90``, ``24:00:00``, ``2-12`` or ``UNLIMITED``; 0 is unlimited too.
    location : str
        Its place, for the message.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    found = seconds(text)
    if found is None:
        raise LongshipError(
            f'{location}: expected a time, got "{text}"',
            "write 90 (minutes), 24:00:00 or 2-12:00:00",
        )
    return found / 3600 or math.inf


def seconds(text: str) -> int | None:
    """Read the same times; None for UNLIMITED and whatever is not a time."""
    match = _TIME.fullmatch(text)
    if not match:
        return None
    first, second, third = (int(match[each] or 0) for each in ("first", "second", "third"))
    if match["days"] is None and match["third"] is None:  # minutes, and seconds
        return 60 * first + second
    return 86400 * int(match["days"] or 0) + 3600 * first + 60 * second + third


def time_text(hours_: float) -> str:
    """Write hours as Slurm does, such as 1-06:00:00."""
    if math.isinf(hours_):
        return "UNLIMITED"
    minutes, seconds = divmod(round(hours_ * 3600), 60)
    hour, minute = divmod(minutes, 60)
    days, hour = divmod(hour, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{seconds:02}"
