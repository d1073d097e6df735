"""What follows from the end of a job step: another start, the queue, or the end of the job."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lib import ROOT
from lib.configuration.layers import Settings
from lib.configuration.partitions import hours
from lib.configuration.schema import Jobs
from lib.configuration.tables import read_toml
from lib.script.execute import read_output

# With restarts and without jobs.silence. Three times NCCL's own timeout, which names the operation
# that hangs; longer than a healthy run compiles, evaluates or writes a checkpoint.
_SILENCE = 1800
_LEAST = 300  # seconds before the time limit in which no step is started
# Before a message: task, rank, time or place in brackets, the class of an exception.
_LABELS = r"^( *[0-9]+: )?(\[[^]]*\][: ]*)*(Exception: )?"
_LINE = re.compile(r"attempt \d+ ended(?: at step (\d+))?: (.*?)(?: \(exit code \d+\))?; ")


class End(NamedTuple):
    """How a step ended, by its exit code and its log."""

    code: int
    topic: str = ""  # of doctor.py explain, "" for none
    restart: str = ""  # of that topic: `never`, or `node` where the evidence points to nodes
    step: int | None = None  # of the training, the last one that the log names
    nodes: tuple[str, ...] = ()  # to which the evidence points
    reasons: Mapping[str, str] = {}  # of nodes whose own messages are the evidence

    @property
    def way(self) -> str:
        """What two ends of the same way have in common; the highest code of all ranks varies."""
        return self.topic or f"exit code {self.code}"


def with_restarts(
    settings: Settings,
    restarts: int | None,
    spare_nodes: int | None = None,
    silence: str | None = None,
) -> Settings:
    """Return the checked settings of a job, with other values of these keys if given."""
    configuration = settings.configuration
    given = {"restarts": restarts, "spare_nodes": spare_nodes, "silence": silence}
    given = {name: value for name, value in given.items() if value is not None}
    jobs = configuration.jobs._replace(**given)
    settings = settings._replace(configuration=configuration._replace(jobs=jobs))
    watch_limits(settings.configuration.jobs, settings.origins["jobs.silence"])
    return settings


def watch_limits(jobs: Jobs, origin: str) -> tuple[int, int]:
    """Return how often a step starts again, and the seconds of silence that end it; 0: never.

    The origin of jobs.silence is named in errors.
    """
    if not jobs.silence:
        return jobs.restarts, _SILENCE if jobs.restarts else 0
    silent = hours(jobs.silence, f"{origin}: jobs.silence")
    return jobs.restarts, 0 if math.isinf(silent) else round(silent * 3600)


def final_messages() -> str:
    """Return the extended regular expression of the lines after which no step can continue."""
    file, found = Path(ROOT, "messages/known_messages.toml"), []
    if file.exists():
        tables = read_toml(file, f"messages/{file.name}")
        entries = (each for table in tables.values() for each in table.values())
        found = [each["final"] for each in entries if "final" in each]
    return f"{_LABELS}({'|'.join(found)})" if found else "$."  # no line


def end_of_step(log: str, code: int, nodes: Sequence[str]) -> End:
    """Ask doctor.py how the last step in a log ended; without an answer only its code is known."""
    ask = ["doctor.py", "explain", "--json", f"--nodes={','.join(nodes)}", "--", log]
    text, failed = read_output([sys.executable, f"{ROOT}/{ask[0]}", *ask[1:]], 300)
    if failed:
        return End(code)
    end = json.loads(text)["end"]
    nodes = tuple(end["nodes"])
    return End(code, end["topic"], end["restart"], end["step"], nodes, end["reasons"])


def decide(
    end: End, earlier: Sequence[str], restarts: int, left: float, spares: int = 0
) -> tuple[str, str]:
    """Decide what follows from a failed step; return it, and its line for log and record.

    It is again, requeue, next (only the next job of a chain goes on) or stop.
    Earlier are the lines of the attempts of this job before; left is in seconds until the time
    limit; spares is how many of its nodes can be replaced.
    """
    number = len(earlier) + 1
    at = "" if end.step is None else f" at step {end.step}"
    nodes = ", ".join(end.nodes)
    code = f" (exit code {end.code})" if end.topic else ""
    if end.restart == "never":
        action, words = "stop", "not restarted: it would fail again"
    elif any(_is_same(end, each) for each in earlier):
        action, words = "stop", "not restarted: it failed twice in the same way at the same step"
    elif number > restarts:
        action, words = "stop", f"not restarted: jobs.restarts is {restarts}"
    elif end.nodes and (len(end.nodes) > spares or left < _LEAST):
        action, words = "requeue", f"requeued without {nodes}: restart {number} of {restarts}"
    elif left < _LEAST:
        action = "next"
        words = f"not restarted: less than {_LEAST // 60} minutes remain of the time limit"
    else:
        on = f"without {nodes}" if nodes else "on the same nodes"
        action, words = "again", f"restart {number} of {restarts} {on}"
    return action, f"attempt {number} ended{at}: {end.way}{code}; {words}"


def _is_same(end: End, line: str) -> bool:
    """Tell whether an earlier attempt ended in the same way, and this one got no further."""
    found = _LINE.search(line)
    if not found or found[2] != end.way:
        return False
    before, now = (-1 if each is None else int(each) for each in (found[1], end.step))
    return now <= before
