"""Limits and prices of a site's partitions: tables of a ``site.toml``."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Optional

from lib.configuration.tables import Key, check_table, keys_of
from lib.script.errors import LongshipError


class Price(NamedTuple):
    """Price of an hour, in the site's own unit: the sum of all parts."""

    unit: Annotated[str, "unit of the price, such as `core-hours`"] = "hours"
    node: Annotated[float, "price per requested node"] = 0
    gpu: Annotated[float, "price per requested GPU"] = 0
    core: Annotated[float, "price per requested core"] = 0
    slice: Annotated[
        float,
        "shared nodes: price per slice; their number is the largest of GPUs, cores / slice_cores "
        "and gigabytes / slice_memory",
    ] = 0
    slice_cores: Annotated[int, "shared nodes: cores that belong to one GPU of a node"] = 1
    slice_memory: Annotated[int, "shared nodes: gigabytes that belong to one GPU of a node"] = 1
    constraints: Annotated[
        Mapping[str, float], "factors of `--constraint`, such as Berzelius' fat nodes", "table"
    ] = {}


class Limits(NamedTuple):
    """Limits of a partition or a quality of service; None if unknown."""

    max_hours: Optional[float] = None
    max_nodes: Annotated[Optional[int], "size limit of a job", "integer"] = None
    max_gpus: Annotated[Optional[int], "size limit of a job", "integer"] = None
    cores_per_node: Annotated[
        Optional[int], "cores of its nodes, unless all nodes have as many", "integer"
    ] = None
    gpus_per_node: Annotated[
        Optional[int], "GPUs of its nodes, unless all nodes have as many", "integer"
    ] = None
    gpu_memory: Annotated[
        Optional[int], "GB of its GPUs, unless all GPUs have as many", "integer"
    ] = None
    price: Annotated[
        Optional[Price],
        "price of an hour, if it differs from the machine's other partitions",
        "table",
    ] = None


PRICE = keys_of(Price)
_LIMITS = {
    "max_time": Key("string", "time limit of a job, such as 24:00:00 or 7-00:00:00"),
    **keys_of(Limits),
}
LIMITS_OF = {
    "partitions": _LIMITS,
    "qos": {name: _LIMITS[name] for name in ("max_time", "max_nodes", "max_gpus")},
}


def read_limits(kind: str, table: Any, file: str, prefix: str) -> dict[str, Limits]:
    """Read the tables of all ``partitions``, or of all qualities of service (``qos``)."""
    found = {}
    keys = dict.fromkeys(table, Key("table", entries=LIMITS_OF[kind]))
    for name, values in check_table(table, keys, file, prefix).items():
        dotted = f"{prefix}.{name}"
        if "max_time" in values:
            values["max_hours"] = hours(values.pop("max_time"), f"{file}: {dotted}.max_time")
        if "price" in values:
            values["price"] = read_price(values["price"], file, f"{dotted}.price")
        found[name] = Limits(**values)
    return found


def read_price(table: Any, file: str, prefix: str) -> Price:
    """Read a price."""
    values = check_table(table, PRICE, file, prefix)
    factors = values.get("constraints", {})
    check_table(factors, dict.fromkeys(factors, Key("float")), file, f"{prefix}.constraints")
    return Price(**values)


_TIME = r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?"


def hours(text: str, location: str) -> float:
    """Read a time as Slurm does: 90 (minutes), 24:00:00, 2-12 or UNLIMITED; 0 is unlimited too."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    found = seconds(text)
    if found is None:
        raise LongshipError(
            f'{location}: expected a time, got "{text}"',
            "write 90 (minutes), 24:00:00 or 2-12:00:00",
        )
    return found / 3600 or math.inf


def seconds(text: str) -> Optional[int]:
    """Read the same times; None for UNLIMITED and whatever is not a time."""
    match = re.fullmatch(_TIME, text)
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
