"""The verb `submit.py scale report`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from extras.scale.study import Study, Trial, read_study, rows_of, study_file, trials_of
from lib.commands import Invocation
from lib.commands.options import script_options
from lib.runtimes.contract import Bind
from lib.runtimes.launch import run_lines
from lib.script.command import call, text_below
from lib.script.errors import offline_modes, printable
from lib.script.output import Report, as_json
from lib.script.records import content_of
from lib.script.render import render

# the columns, with heading and form in the table
_COLUMNS = {
    "nodes": ("nodes", "{}"),
    "gpus": ("GPUs", "{}"),
    "trials": ("trials", "{}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "lower_quartile": ("from", "{:,.0f}"),
    "upper_quartile": ("to", "{:,.0f}"),
    "speed_up": ("speed-up", "{:.2f}"),
    "efficiency_percent": ("efficiency", "{:.0f} %"),
    "mfu_percent": ("MFU", "{:.1f} %"),
    "gpu_use_percent": ("GPU use", "{:.0f} %"),
    "energy_kwh": ("kWh", "{:,.3f}"),
    "cost_per_million_tokens": ("cost of 1 M tokens", "{:.3g}"),
    "cost_unit": ("", "{}"),
}
# What the page says that was the same in all jobs, as in the record of one.
_INPUT = ("image", "image_sha256", "overlay", "venv", "partition", "runtime")


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--json", "as_objects", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--page", is_flag=True, help="Write a page for a proposal, with a chart.")
@script_options
def report(invocation: Invocation, name: str, as_objects: bool, as_csv: bool, page: bool) -> None:
    """Report how the training of the study NAME scales.

    The speed is the median of all steps after the first fifth. Speed-up and efficiency are relative
    to the fewest nodes. With --page: scaling.html, scaling.svg and scaling.csv in a directory of
    the study, for a proposal.
    """
    study = read_study(invocation.paths, name)
    trials = list(trials_of(invocation.paths, study))
    rows = rows_of(trials, study.trials)
    if page:
        _write_page(invocation, study, trials, rows)
    elif as_objects:
        invocation.show("submit.py scale report", lambda: as_json(rows))
    else:
        text = _csv(rows) if as_csv else _table(rows) + "".join(_problems(trials))
        invocation.show("submit.py scale report", lambda: Report(text))


def _cells(rows: list[dict[str, Any]], missing: str) -> Iterator[list[str]]:
    yield [heading for heading, _ in _COLUMNS.values()]
    for row in rows:
        yield [
            missing if row.get(name) is None else form.format(row[name])
            for name, (_, form) in _COLUMNS.items()
        ]


def _table(rows: list[dict[str, Any]]) -> str:
    cells = list(_cells(rows, "-"))
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ("  ".join(map(str.rjust, line, widths)) for line in cells)
    return "".join(f"{printable(each)}\n" for each in lines)


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _problems(trials: list[Trial]) -> Iterator[str]:
    """Yield a line for each trial that does not count."""
    for each in trials:
        if each.state != "completed":
            run = each.run.name if each.run else f"a trial on {each.nodes} nodes"
            yield f"{printable(f'{run}: {each.state}')}\n"


def _write_page(
    invocation: Invocation, study: Study, trials: list[Trial], rows: list[dict[str, Any]]
) -> None:
    """Write the page inside the environment, with its matplotlib."""
    env = invocation.environment()
    directory = study_file(env.paths, study.name).parent
    last = next((each for each in reversed(trials) if each.run), Trial(0, ""))
    run = last.run or Path("/nonexistent")
    data = {
        "study": study._asdict(),
        "rows": rows,
        "cells": list(_cells(rows, "not measured")),
        "csv": _csv(rows),
        "problems": list(_problems(trials)),
        "input": {each: last.record.get(each, "") for each in _INPUT},
        "commits": [content_of(each).decode(errors="replace") for each in _commits(run)],
        "job": content_of(run / "job.sbatch", follow=False).decode(errors="replace"),
        "install": offline_modes(" && ".join(env.packages.steps)),
    }
    env = env._replace(more_binds=(Bind(str(directory), str(directory)),))
    lines = [
        text_below("scale_data", json.dumps(data), "What the page shows."),
        'exec <<<"$scale_data"',
        call("cd", "--", env.paths.root),
        *run_lines(env),
    ]
    program = str(env.paths.root / "extras/scale/inside/scale_page.py")
    script = render(invocation.title("submit.py scale report"), lines)
    invocation.finish(script, "submit.py", ("python3", program, str(directory)))


def _commits(run: Path) -> list[Path]:
    return sorted(run.glob("repositories/*.commit"))
