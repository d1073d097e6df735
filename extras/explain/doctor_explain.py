"""The verb `doctor.py explain`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from extras.explain.explain import explain as explain_log
from lib.commands import Invocation, print_no_script
from lib.commands.options import complete, plain_options


@click.command(epilog="Example: python3 doctor.py explain slurm-4711.out")
@click.argument("log", metavar="LOG", shell_complete=complete("log"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Print only what was found.")
@plain_options
def explain(
    options: Mapping[str, str], dry_run: bool, log: str, as_json: bool, quiet: bool
) -> None:
    """Search a job's log: who failed first, known messages, fixes.

    LOG is a file, - for standard input, a run directory, or the name or job of a run.
    """
    if dry_run:
        print_no_script("Longship: doctor.py explain")
        return
    form = {"as_json": as_json, "quiet": quiet}
    explain_log(log, lambda: Invocation.read(options, dry_run=False).paths, **form)
