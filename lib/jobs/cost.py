"""What a job may cost at most, in the site's unit."""

from __future__ import annotations

import math
from typing import NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.partitions import time_text
from lib.jobs.resources import Request


class Cost(NamedTuple):
    """What a submission may cost.

    Parameters
    ----------
    words : str
        What it is, and its cost, in a line.
    amount : float or None
        In `unit`; None where no price is known.
    unit : str
        Such as ``core-hours``.
    """

    words: str
    amount: float | None = None
    unit: str = ""

    @property
    def text(self) -> str:
        """The amount with its unit."""
        return f"{round_up(self.amount, 1):,.1f} {self.unit}"


def round_up(amount: float, digits: int) -> float:
    """Round a bound, which must not be lower than what it bounds."""
    return math.ceil(round(amount * 10**digits, 6)) / 10**digits


def cost_of(settings: Settings, request: Request, chain: int) -> Cost:
    """Say what a job is, and what it may cost.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the job's machine.
    request : Request
        What it asks for.
    chain : int
        How many jobs go on from each other.

    Returns
    -------
    Cost
    """
    count = request.jobs * chain
    where = f" of {request.partition}" if request.partition else ""
    words = f"{request.name}: {request.nodes} node{'s' * (request.nodes > 1)}{where}"
    if request.hours:
        words += f" for at most {time_text(request.hours)}"
    if count > 1:
        words += f", {count} jobs"
    price = request.per_hour(settings.machine)
    if price is None or request.hours is None or math.isinf(request.hours):
        machine = settings.machine
        charges = machine.price or any(each.price for each in machine.partitions.values())
        return Cost(words + "; cost unknown: the site file has no price" * bool(charges))
    cost = Cost(words, price[0] * request.hours * count, price[1])
    return cost._replace(words=f"{words}; at most {cost.text}")
