"""The estimated cost of a job, in the site's unit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.partitions import Limits, Price, time_text
from lib.configuration.sites import Machine
from lib.jobs.size import Size


class Cost(NamedTuple):
    """The most that a submission can cost."""

    words: str  # the jobs and their cost, in one line
    amount: float | None = None  # None if no price is known
    unit: str = ""
    is_unclear: bool = False  # it may cost anything, and jobs.ask_above asks

    @property
    def text(self) -> str:
        """The amount, which is known, with its unit."""
        return f"{round_up(self.amount, 1):,.1f} {self.unit}"

    @property
    def asked(self) -> str:
        """Why jobs.ask_above asks."""
        if self.is_unclear:
            return "the cost is not known, and jobs.ask_above is set"
        return f"the cost of at most {self.text} is above jobs.ask_above"


def round_up(amount: float, digits: int) -> float:
    """Round a bound, which must not be lower than what it bounds."""
    return math.ceil(round(amount * 10**digits, 6)) / 10**digits


def hourly_cost(size: Size, machine: Machine) -> tuple[float, str] | None:
    """Return the most that an hour of one job costs, and the unit; None if unknown."""
    found = []
    for each in size.partitions:
        price = machine.partitions.get(each, Limits()).price or machine.price
        if price is not None:
            amount = per_hour(size, price)
            # where only GPUs have a price, that of a job without them is unknown
            is_free = not any((price.node, price.gpu, price.core, price.slice))
            found += [(amount, price.unit)] if amount or is_free else []
    return max(found) if found else None


def per_hour(size: Size, price: Price) -> float:
    """Return the price of an hour of one job, in the price's unit; a started slice counts whole."""
    slices = _slices(size, price)
    parts = size.nodes * price.node + size.gpus * price.gpu + size.cores * price.core
    words = re.findall(r"\w+", size.constraint)
    factor = max((float(price.constraints.get(each, 1)) for each in words), default=1)
    return factor * (parts + slices * price.slice)


def _slices(size: Size, price: Price) -> int:
    shares = size.cores / max(price.slice_cores, 1), size.memory / max(price.slice_memory, 1)
    return max(size.gpus, *map(math.ceil, shares))


def priced_cores(size: Size, machine: Machine) -> float:
    """Return how many cores a job can have at its price."""
    found = [math.inf]
    for each in size.partitions:
        price = machine.partitions.get(each, Limits()).price or machine.price or Price()
        found += [size.cores] if price.core else []
        found += [_slices(size, price) * max(price.slice_cores, 1)] if price.slice else []
    return min(found)


def cost_of(settings: Settings, size: Size, chain: int) -> Cost:
    """Describe what is submitted, `chain` jobs that resume from each other, and its cost."""
    machine = settings.machine
    count = size.jobs * chain
    where = f" of {size.partition}" if size.partition else ""
    if size.unclear:
        return Cost(f"{size.name}: cost unknown, because of {size.unclear}", is_unclear=True)
    words = f"{size.name}: {size.nodes} node{'s' * (size.nodes > 1)}{where}"
    if size.hours:
        words += f" for at most {time_text(size.hours)}"
    if count > 1:
        words += f", {count} jobs"
    if not machine.price and not any(each.price for each in machine.partitions.values()):
        return Cost(words)
    price = hourly_cost(size, machine)
    if price is None:
        return Cost(f"{words}; cost unknown: the site file has no price", is_unclear=True)
    if size.hours is None or math.isinf(size.hours):
        return Cost(f"{words}; cost unknown: no time limit is known", is_unclear=True)
    cost = Cost(words, price[0] * size.hours * count, price[1])
    return cost._replace(words=f"{words}; at most {cost.text}")


def together(costs: Sequence[Cost]) -> Cost:
    """Describe what is submitted at once, and the cost of all of it."""
    if len(costs) == 1:
        return costs[0]
    words = "; then ".join(each.words for each in costs if each.words)
    amounts = [each.amount for each in costs if each.amount is not None]
    if len(amounts) < len(costs):
        return Cost(words, is_unclear=any(each.is_unclear for each in costs))
    cost = Cost(words, sum(amounts), costs[0].unit)
    return cost._replace(words=f"{words}; together at most {cost.text}")


def cost_of_run(record: Mapping[str, str], duration: float) -> float | None:
    """Return the cost of a run, in its record's unit; None if no price is known."""
    try:
        cost = float(record.get("cost_per_hour", "")) * duration / 3600
    except ValueError:
        return None
    return round(cost, 2) if math.isfinite(cost) else None
