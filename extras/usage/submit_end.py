"""The verb `submit.py end`, which only jobs run."""

from __future__ import annotations

from pathlib import Path

import click

from extras.usage.job import values
from lib.script.records import readable_values


@click.command(hidden=True)
@click.argument("run", type=Path)
def end(run: Path) -> None:
    """Print names and values, each followed by a zero byte, for the record of a job that ends."""
    found, _ = values(run, readable_values(run / "record.json"))
    del found["used"]
    click.echo("".join(f"{name}\0{text}\0" for name, text in found.items() if text), nl=False)
