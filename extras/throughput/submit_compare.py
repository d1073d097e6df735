"""The verb `submit.py compare`, which only jobs run."""

from __future__ import annotations

from pathlib import Path

import click

from extras.throughput.throughput import comparison, speed_of
from lib import ROOT
from lib.script.records import readable_values


@click.command(hidden=True)
@click.argument("run", type=Path)
def compare(run: Path) -> None:
    """Print names and values, each followed by a zero byte, for the record of a job that ends."""
    record = readable_values(run / "record.json")
    speed = speed_of(Path(ROOT), run, record)
    if speed is None:
        return
    found = {"tokens_per_s": f"{speed:.10g}", "throughput": comparison(run, record, speed)}
    click.echo("".join(f"{name}\0{text}\0" for name, text in found.items() if text), nl=False)
