"""The verb `submit.py decide`, which only the watcher of a job runs."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path

import click

from extras.restarts.watcher import decide as decide_on
from extras.restarts.watcher import end_of_step
from lib.configuration.partitions import hours
from lib.script.execute import read_output
from lib.script.records import readable_values, seconds_between


@click.command(hidden=True)
@click.argument("run", type=Path)
@click.argument("code", type=int)
@click.argument("restarts", type=int)
@click.argument("spares", type=int)
def decide(run: Path, code: int, restarts: int, spares: int) -> None:
    """Print what follows from the exit CODE of a job step, after which RESTARTS are allowed.

    Four values, each followed by a zero byte: again, requeue, next or stop; its line for the log;
    the lines of all attempts; if a faulty node is to be replaced, the nodes that the job must not
    get, separated by commas. SPARES nodes can be replaced within the job, but not the first one,
    which runs the job script.
    """
    record = readable_values(run / "record.json")
    nodes = read_output(["scontrol", "show", "hostnames", record["nodelist"]], 60).text.split()
    ended = end_of_step(record["log"], code, nodes)
    earlier = [each for each in record.get("attempts", "").split("\n") if each]
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    limit = hours(record["time_limit"], "the time limit of the job")
    left = 3600 * limit - seconds_between(record["started"], now)
    spares = 0 if nodes[0] in ended.nodes else spares
    action, line = decide_on(ended, earlier, restarts, left, spares)
    replaced = ended.nodes and action != "stop"
    excluded = [record.get("excluded", ""), *ended.nodes] if replaced else []
    line = f"{now} {line}"
    values = [action, line, "\n".join([*earlier, line]), ",".join(filter(None, excluded))]
    text = "".join(f"{each}\0" for each in values)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
