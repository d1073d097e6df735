"""Tables of figures: what each benchmark gives, and how they are written."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace


class MissingError(Exception):
    """What a benchmark needs and this machine lacks, in words."""


@dataclass(frozen=True)
class Compared:
    """A line of the summary.

    Parameters
    ----------
    name : str
        What is compared.
    ours, other : str
        Both figures, with their units and with what the other one is.
    ratio : float
        The first by the second.
    spread : tuple of float
        The quartiles of the ratio of each round, or the least and the greatest ratio of several
        runs; none where it was measured once.
    """

    name: str
    ours: str
    other: str
    ratio: float
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table and what is said below it.

    Parameters
    ----------
    columns : sequence of str
        Their heads.
    rows : sequence of sequence of str
        The cells.
    note : str
        A sentence or more below it.
    summary : sequence of Compared
        What of it goes into the summary.
    figures : mapping
        The numbers behind it, for plots.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    summary: Sequence[Compared] = ()
    figures: dict = field(default_factory=dict)


def markdown(table: Table) -> str:
    """Write a table."""
    head = [f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
    rows = [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join([*head, *rows, *(["", table.note] if table.note else [])])


def written(tables: Iterable[Table]) -> str:
    """Write several tables below each other."""
    return "\n\n".join(map(markdown, tables))


def combined(tables: Iterable[Table], runs: int = 1) -> list[Compared]:
    """Return each comparison once: of several runs the one with the median ratio, and the range."""
    found: dict[str, list[Compared]] = {}
    for table in tables:
        for each in table.summary:
            found.setdefault(each.name, []).append(each)
    return [_middle(sorted(each, key=lambda one: one.ratio), runs) for each in found.values()]


def _middle(ordered: Sequence[Compared], runs: int) -> Compared:
    middle = ordered[(len(ordered) - 1) // 2]
    if runs == 1:
        return middle
    spread = (ordered[0].ratio, ordered[-1].ratio) if len(ordered) > 1 else ()
    return replace(middle, spread=spread)


def summary(compared: Iterable[Compared], runs: int = 1) -> Table:
    """Return the table with one line for each comparison."""
    rows = [
        (each.name, each.ours, each.other, ratio_text(each.ratio), spread_text(each.spread))
        for each in compared
    ]
    spread = "quartiles of the ratio" if runs == 1 else f"range of the ratio in {runs} runs"
    return Table(("", "Longship", "alternative", "ratio", spread), rows)


def spread_text(spread: Sequence[float]) -> str:
    """Write quartiles, or a range."""
    return " to ".join(map(ratio_text, (spread[0], spread[-1]))) if spread else "measured once"


def ratio_text(ratio: float) -> str:
    """Write a ratio, with a digit that says something."""
    return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.1g}"


def quartiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return the first and the third quartile; nothing of a single value."""
    if len(values) < 2:
        return ()
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def seconds(value: float) -> str:
    """Write a time."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def megabytes(value: float) -> str:
    """Write bytes."""
    return f"{value / 1e6:,.0f} MB"


def plural(count: int, noun: str) -> str:
    """Write how many."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
