"""The verb `submit.py end`, which only jobs run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from lib.jobs.usage import recorded_values
from lib.script.records import readable_values


@click.command(hidden=True)
@click.argument("run", type=Path)
def end(run: Path) -> None:
    """Print names and values, each followed by a zero byte, for the record of a job that ends."""
    write_values(recorded_values(run, readable_values(run / "record.json")))


def write_values(values: Iterable[str]) -> None:
    """Print values for bash, each followed by a zero byte."""
    text = "".join(f"{each}\0" for each in values)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
