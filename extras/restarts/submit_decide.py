"""The verb `submit.py decide`, which only the watcher of a job runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import click

from extras.restarts.watcher import End, faulty_nodes
from extras.restarts.watcher import decide as decide_on
from lib.configuration.partitions import hours
from lib.jobs.runs import highest_step
from lib.script.errors import printable
from lib.script.execute import read_output
from lib.script.records import readable_values, seconds_between

_MOST = 1 << 26  # bytes that the nodes of a job can say


@click.command(hidden=True)
@click.argument("run", type=Path)
@click.argument("code", type=int)
@click.argument("restarts", type=int)
@click.argument("spares", type=int)
@click.argument("known")
def decide(run: Path, code: int, restarts: int, spares: int, known: str) -> None:
    """Print what follows from the exit CODE of a job step, after which RESTARTS are allowed.

    Five values, each followed by a zero byte: again, requeue, stuck or stop; its line for the log;
    the lines of all attempts; the faulty nodes, separated by commas, if they are to be replaced;
    those that a pending job is to exclude, with the KNOWN ones. Standard input is what Slurm and
    the nodes say. SPARES nodes can be replaced within the job, but not the first one, which runs
    the job script.
    """
    record = readable_values(run / "record.json")
    nodes = _hosts(os.environ["SLURM_JOB_NODELIST"])  # without those that were replaced
    gpus = re.sub(r".*\D", "", os.environ.get("SLURM_GPUS_ON_NODE", ""))
    if "SLURM_GPUS_PER_TASK" in os.environ:  # the step that asks has a task on each node
        gpus = ""
    said = sys.stdin.buffer.read(_MOST).decode(errors="replace")
    ended = End(code, highest_step(Path(record["log"])), faulty_nodes(said, nodes, int(gpus or 0)))
    earlier = [each for each in record.get("attempts", "").split("\n") if each]
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    limit = hours(record["time_limit"], "the time limit of the job")
    left = 3600 * limit - seconds_between(record["started"], now)
    spares = 0 if {*nodes[:1]} & {*ended.faulty} else spares
    excluded = [*filter(None, known.split(",")), *ended.faulty]
    lack = _lack_of_nodes(record, excluded) if ended.faulty else ""
    action, line = decide_on(ended, earlier, restarts, left, spares, lack)
    replaced = ended.faulty if action in ("again", "requeue") else {}
    line = printable(f"{now} {line}")
    values = [action, line, "\n".join([*earlier, line]), ",".join(replaced)]
    values.append("" if lack else ",".join(excluded))
    text = "".join(f"{each}\0" for each in values)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))


def _lack_of_nodes(record: Mapping[str, str], excluded: Sequence[str]) -> str:
    """Return a reason if the job could never start without these nodes; "" if Slurm is silent."""
    ask = ["scontrol", "show", "job", "--oneliner", record["job"]]
    listed = re.search(r" ExcNodeList=(\S+)", read_output(ask, 60).text)
    own = _hosts(listed[1]) if listed and listed[1] != "(null)" else []
    partition = record.get("partition", "")
    ask = ["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N"]
    nodes, failed = read_output(ask, 60)
    left = len({*nodes.split()} - {*own, *excluded})
    if failed or left >= int(record["nodes"]):
        return ""
    return f"all but {left} nodes of the partition {partition} are excluded"


def _hosts(listed: str) -> list[str]:
    return read_output(["scontrol", "show", "hostnames", listed], 60).text.split()
