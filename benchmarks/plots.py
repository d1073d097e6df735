"""Plots of the tables, as PNG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from model import NODES
from tables import Compared, Table, combined, quartiles

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = "osD^vP"
# The topics of the overview: the cost of a launch and the gain of an overlay.
OVERVIEW = ("launch", "jobs", "overlays")


def draw(runs: Mapping[str, Sequence[Sequence[Table]]], folder: Path) -> list[Path]:
    """Draw the ratios of all runs, and the other plots of the last run; return the files."""
    drawn = []
    tables = {name: several[-1] for name, several in runs.items()}
    if {"launch", "overlays"} <= tables.keys():
        title = "Longship's time relative to each alternative"
        compared = combined(
            table for name in OVERVIEW for each in runs.get(name, ()) for table in each
        )
        axes, save = canvas(folder / "ratios.png", title, "ratio", rows=len(compared))
        ratios(axes, compared)
        drawn.append(save())
    if "launch" in tables:
        axes, save = canvas(folder / "launch.png", "A launch", "seconds", rows=4)
        bars(axes, tables["launch"][0].figures, "{:.3f}")
        drawn.append(save())
    if "overlays" in tables:
        axes, save = canvas(folder / "import.png", tables["overlays"][1].columns[0], "seconds")
        bars(axes, tables["overlays"][1].figures, "{:.1f}")
        drawn.append(save())
    if "scale" in tables:
        counted, _, model = tables["scale"]
        title = "Path operations on the shared file system, a rank"
        axes, save = canvas(folder / "operations.png", title, "calls", rows=4)
        bars(axes, counted.figures, "{:,.0f}")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlim(1, 5 * max(max(each) for each in counted.figures.values()))
        drawn.append(save())
        title = "Model, not measured: seconds to the last rank's import"
        axes, save = canvas(folder / "model.png", title, "nodes", rows=8)
        lines(axes, model.figures)
        drawn.append(save())
    return drawn


def canvas(file: Path, title: str, label: str, rows: int = 3) -> tuple[Axes, object]:
    """Return axes, and a function that saves them and returns the file."""
    figure = Figure(figsize=(8, 1.2 + 0.45 * rows), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title.replace("`", ""), loc="left", fontsize=11)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)

    def save() -> Path:
        figure.savefig(file, dpi=150)
        return file

    return axes, save


def bars(axes: Axes, figures: Mapping[str, Sequence[float]], form: str) -> None:
    """Draw a bar for each name, with its quartiles and its value."""
    names = list(figures)
    for number, name in enumerate(names):
        values = list(figures[name])
        middle = statistics.median(values)
        low, high = quartiles(values) or (middle, middle)
        error = [[middle - low], [high - middle]]
        axes.barh(number, middle, height=0.6, color=COLOURS[0])
        if high > low:
            axes.errorbar(middle, number, xerr=error, color="black", capsize=3, linewidth=1)
        axes.annotate(
            form.format(middle),
            (high, number),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(names)), [name.replace("`", "") for name in names])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.tick_params(axis="y", length=0)


def ratios(axes: Axes, compared: Sequence[Compared]) -> None:
    """Draw a bar for each comparison, with a line where both take the same time."""
    names = []
    for number, each in enumerate(compared):
        colour = COLOURS[0] if each.ratio <= 1 else COLOURS[1]
        axes.barh(number, each.ratio, height=0.6, color=colour)
        axes.text(each.ratio + 0.02, number, f"{each.ratio:.2f}", va="center")
        other = each.other.partition(", ")[2].replace("`", "")
        names.append(f"{each.name}\nbeside {other}")
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.tick_params(axis="y", length=0)


def lines(axes: Axes, figures: Mapping[str, Sequence[float]]) -> None:
    """Draw a line for each name over the number of nodes."""
    for (name, values), colour, marker in zip(figures.items(), COLOURS, MARKERS):
        axes.plot(NODES, values, color=colour, marker=marker, linewidth=2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(NODES, [f"{each:,}" for each in NODES])
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
