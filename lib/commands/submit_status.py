"""The verb `submit.py status`."""

from __future__ import annotations

import click

from lib.commands import Invocation
from lib.commands.options import script_options
from lib.jobs.status import status as as_table
from lib.jobs.status import status_as_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@script_options
def status(invocation: Invocation, as_json: bool) -> None:
    """List your jobs: state, time, cost so far, last line of the log."""
    shown = status_as_json if as_json else as_table
    invocation.show("submit.py status", lambda: shown(invocation.paths.runs))
