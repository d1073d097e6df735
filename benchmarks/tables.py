"""Tables of figures, and how they are written."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace


class MissingError(Exception):
    """A requirement of a benchmark that this machine does not meet."""


@dataclass(frozen=True)
class Compared:
    """A line of the summary.

    Parameters
    ----------
    name : str
        Name of the comparison.
    ours, other : str
        Both figures with their units, and the name of the alternative.
    ratio : float
        The first figure divided by the second.
    spread : tuple of float
        Quartiles of the ratios of all rounds, or minimum and maximum of several runs; empty if
        measured once.
    """

    name: str
    ours: str
    other: str
    ratio: float
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table with a note.

    Parameters
    ----------
    columns : sequence of str
        Column headers.
    rows : sequence of sequence of str
        The cells.
    note : str
        Text after the table.
    summary : sequence of Compared
        Lines for the summary.
    figures : mapping
        The numbers of the table, for plots.
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
    """Write several tables, one after the other."""
    return "\n\n".join(map(markdown, tables))


def combined(tables: Iterable[Table], runs: int = 1) -> list[Compared]:
    """Return each comparison once: with several runs, the median ratio and its range."""
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
    """Return the table with one line per comparison."""
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
    """Write a ratio with its significant digits."""
    return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.1g}"


def quartiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return the first and the third quartile; empty for a single value."""
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
    """Write a number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
