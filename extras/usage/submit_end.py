"""The verb `submit.py end`, which only jobs run."""

from __future__ import annotations

from pathlib import Path

import click

from extras.usage.usage import recorded_values
from lib.script.records import readable_values


@click.command(hidden=True)
@click.argument("run", type=Path)
def end(run: Path) -> None:
    """Print names and values, each followed by a zero byte, for the record of a job that ends."""
    values = recorded_values(run, readable_values(run / "record.json"))
    click.echo("".join(f"{each}\0" for each in values), nl=False)
