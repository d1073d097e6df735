"""Measure commands alternately in one run, as ratios to the first of them."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tables import Compared, Table, quartiles, seconds, spread_text


@dataclass(frozen=True)
class Result:
    """The times of one command.

    Parameters
    ----------
    name : str
        Name of the command.
    seconds : tuple of float
        Wall-clock time of each round.
    cpu_seconds : tuple of float
        CPU time of each round, of the command and its children.
    """

    name: str
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


def measure(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    environ: Mapping[str, str],
    warm_up: int = 2,
) -> list[Result]:
    """Run the commands alternately, so that a disturbance affects all of them.

    Parameters
    ----------
    commands : mapping
        Arguments by name.
    rounds : int
        Number of runs of each command.
    environ : mapping
        Environment of all commands.
    warm_up : int
        Earlier rounds, which do not count.

    Returns
    -------
    list of Result
        In the order of the commands.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(warm_up + rounds):
        for name, command in commands.items():
            before, start = children_cpu(), time.perf_counter()
            subprocess.run(command, check=True, env=dict(environ), stdout=subprocess.DEVNULL)
            taken[name].append((time.perf_counter() - start, children_cpu() - before))
    return [Result(name, *zip(*each[warm_up:])) for name, each in taken.items()]


def children_cpu() -> float:
    """Return the CPU time in seconds of all commands that have ended, with their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ratios(result: Result, base: Result) -> list[float]:
    """Return the ratio of each round."""
    return [one / other for one, other in zip(result.seconds, base.seconds)]


def compare(
    results: Sequence[Result], first_column: str, summary: Mapping[str, int] | None = None
) -> Table:
    """Return a table: median, and the median and the quartiles of the ratio of each round.

    Parameters
    ----------
    results : sequence of Result
        All results; the first is the reference of the ratios.
    first_column : str
        Header of the first column.
    summary : mapping, optional
        Results for the summary, and their names in it.
    """
    base, rows = results[0], []
    for result in results:
        each = ratios(result, base)
        cells = (seconds(median(result)), f"{statistics.median(each):.2f}")
        rows.append((result.name, *cells, spread_text(quartiles(each))))
    compared = [
        Compared(
            name,
            seconds(median(results[number])),
            f"{seconds(median(base))}, {base.name}",
            statistics.median(ratios(results[number], base)),
            quartiles(ratios(results[number], base)),
        )
        for name, number in (summary or {}).items()
    ]
    columns = (first_column, "median", "ratio", "quartiles of the ratio")
    figures = {one.name: one.seconds for one in results}
    return Table(columns, rows, summary=compared, figures=figures)


def median(result: Result) -> float:
    """Return the median of the seconds."""
    return statistics.median(result.seconds)


def machine() -> str:
    """Describe the machine and the date of the measurement."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    cpu = models[0] if models else platform.machine()
    return ", ".join(
        (
            time.strftime("%Y-%m-%d"),
            f"{os.cpu_count()} cores of {cpu}",
            f"Linux {platform.release()}",
            f"Python {platform.python_version()}",
        )
    )
