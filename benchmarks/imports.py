"""The table of import times, from a directory, common practice, and the overlay."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tables import Compared, Table, quartiles, seconds, spread_text


def import_table(taken: Mapping[str, Sequence[Sequence[float]]], code: str) -> Table:
    """Compare imports with those of the first alternative.

    Parameters
    ----------
    taken : mapping
        Per alternative and round: seconds of the first process in a mount, and of the next one.
    code : str
        The import statement.
    """
    first, following = (
        {name: [pair[number] for pair in pairs] for name, pairs in taken.items()}
        for number in (0, 1)
    )
    names = list(taken)
    rows = []
    for name in names:
        cells = []
        for each in (first, following):
            ratios = [one / other for one, other in zip(each[name], each[names[0]])]
            cells += [seconds(statistics.median(each[name])), f"{statistics.median(ratios):.2f}"]
            cells.append(spread_text(quartiles(ratios)))
        rows.append((name, *cells))
    _, recipe, overlay = (statistics.median(first[name]) for name in names)
    ratios = [one / other for one, other in zip(first[names[2]], first[names[1]])]
    compared = Compared(
        "first import from an overlay",
        seconds(overlay),
        f"{seconds(recipe)}, {names[1]}",
        statistics.median(ratios),
        quartiles(ratios),
    )
    ratio = ("ratio", "quartiles")
    columns = (f"`{code}` from", "first in a launch", *ratio, "next in the same", *ratio)
    return Table(columns, rows, summary=[compared], figures=first)
