"""The verb `submit.py report`."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import click

from extras.reports.report import report as report_on
from extras.reports.report_page import page_lines, page_of
from lib import ROOT
from lib.commands import Invocation
from lib.commands.options import complete, script_options
from lib.script.errors import print_messages
from lib.script.execute import read_output
from lib.script.output import Report
from lib.script.render import render


@click.command()
@click.argument("names", metavar="[RUN...]", nargs=-1, shell_complete=complete("run"))
@click.option("--output", metavar="FILE", default="", help="With RUN: file to write.")
@click.option("--json", "as_json", is_flag=True, help="Without RUN: print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Without RUN: print CSV.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m", "%Y"]),
    metavar="YYYY[-MM]",
    help="Without RUN: leave out runs that began before this month, or year.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="DIR",
    help="Without RUN: also read the runs of a colleague; may be repeated.",
)
@script_options
def report(
    invocation: Invocation,
    names: tuple[str, ...],
    output: str,
    as_json: bool,
    as_csv: bool,
    since: datetime | None,
    runs: tuple[Path, ...],
) -> None:
    """Report GPU-hours, energy and cost of all runs, or write a page about RUN.

    Without RUN: GPU-hours, utilisation, energy and cost of all runs, by user, project, month and
    stack. With RUN, or several to compare: one HTML file with loss, speed, usage, code and findings
    in the log, by default report-RUN.html in the run directory.
    """
    if names and (as_csv or since or as_json or runs):
        raise click.UsageError("--csv, --json, --runs and --since cannot be combined with RUN")
    if output and not names:
        raise click.UsageError("--output requires RUN")
    if names:
        _write_page(invocation, names, output)
        return
    form = "csv" if as_csv else "json" if as_json else "table"
    invocation.show("submit.py report", lambda: _report(invocation.paths.runs, since, form, runs))


def _report(runs: Path, since: datetime | None, form: str, others: tuple[Path, ...]) -> Report:
    """Return the report on all runs; tell what it lacks on standard error."""
    shown, problems = report_on(runs, f"{since:%Y-%m}" if since else "", form, others)
    for each in problems:
        print_messages(warning=str(each), hint=each.hint)
    return shown


def _write_page(invocation: Invocation, names: tuple[str, ...], output: str) -> None:
    trainings, file = page_of(invocation.paths, names, output)
    env = invocation.environment()
    lines = page_lines(env, trainings, file, findings_of)
    program = str(invocation.paths.root / "extras/reports/inside/report_page.py")
    script = render(invocation.title("submit.py report"), lines)
    invocation.finish(script, "submit.py", ("python3", program, str(file)))


def findings_of(log: BinaryIO) -> list[dict[str, Any]]:
    """Return what `doctor.py explain` finds in a log; nothing if it has no such verb."""
    command = [sys.executable, f"{ROOT}/doctor.py", "explain", "--json", "/dev/stdin"]
    text, failed = read_output(command, 300, given=log)
    return [] if failed else json.loads(text)["findings"]
