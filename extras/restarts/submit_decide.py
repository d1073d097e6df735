"""The verb `submit.py decide`, which only the watcher of a job runs."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

import click

from extras.restarts.watcher import End, faulty_nodes
from extras.restarts.watcher import decide as decide_on
from lib.configuration.partitions import hours
from lib.jobs.runs import last_step
from lib.script.errors import printable
from lib.script.execute import read_output
from lib.script.records import readable_values, seconds_between


@click.command(hidden=True)
@click.argument("run", type=Path)
@click.argument("code", type=int)
@click.argument("restarts", type=int)
@click.argument("spares", type=int)
@click.argument("said")
def decide(run: Path, code: int, restarts: int, spares: int, said: str) -> None:
    """Print what follows from the exit CODE of a job step, after which RESTARTS are allowed.

    Four values, each followed by a zero byte: again, requeue, stuck or stop; its line for the log;
    the lines of all attempts; the faulty nodes, separated by commas, if they are to be replaced.
    SAID is what Slurm and the nodes say. SPARES nodes can be replaced within the job, but not the
    first one, which runs the job script.
    """
    record = readable_values(run / "record.json")
    listed = os.environ["SLURM_JOB_NODELIST"]  # without those that were replaced
    nodes = read_output(["scontrol", "show", "hostnames", listed], 60).text.split()
    (gpus,) = re.findall(r"\d*\Z", os.environ.get("SLURM_GPUS_ON_NODE", ""))[:1]
    ended = End(code, last_step(Path(record["log"])), faulty_nodes(said, nodes, int(gpus or 0)))
    earlier = [each for each in record.get("attempts", "").split("\n") if each]
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    limit = hours(record["time_limit"], "the time limit of the job")
    left = 3600 * limit - seconds_between(record["started"], now)
    spares = 0 if nodes[0] in ended.faulty else spares
    action, line = decide_on(ended, earlier, restarts, left, spares)
    replaced = ended.faulty if action in ("again", "requeue") else {}
    line = printable(f"{now} {line}")
    values = [action, line, "\n".join([*earlier, line]), ",".join(replaced)]
    text = "".join(f"{each}\0" for each in values)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
