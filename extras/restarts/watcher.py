"""What follows from the end of a job step: another start, the queue, or the end of the job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lib import ROOT
from lib.configuration.layers import Settings
from lib.configuration.partitions import hours
from lib.configuration.schema import Jobs
from lib.configuration.tables import read_toml

# With restarts and without jobs.silence. Three times NCCL's own timeout, which names the operation
# that hangs; longer than a healthy run compiles, evaluates or writes a checkpoint.
_SILENCE = 1800
_LEAST = 300  # seconds before the time limit in which no step is started
# Before a message: task, rank, time or place in brackets, the class of an exception.
_LABELS = r"^( *[0-9]+: )?(\[[^]]*\][: ]*)*(Exception: )?"
_LINE = re.compile(r"attempt \d+ ended(?: at step (\d+))?: ")
_NONE = r"\[?N/A\]?|\[Not Supported\]"
_DEVICE = re.compile(rf"(Enabled|Disabled|{_NONE}), *(\d+|{_NONE})")
_BLOCK = re.compile(r" *\w+ +ENABLED +\d+ +(\d+) *")
_NO_GPUS = {"9", "15", "255"}  # exit codes of nvidia-smi: no driver, a GPU is lost, unknown error


class End(NamedTuple):
    """How a step ended."""

    code: int
    step: int | None = None  # of the training, the last one that the log names
    faulty: Mapping[str, str] = {}  # nodes, and what they or Slurm say


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


def faulty_nodes(said: str, nodes: Sequence[str], gpus: int) -> dict[str, str]:
    """Return the faulty ones of a job's nodes, with the reasons.

    ``said`` has a line for each thing that Slurm or a node says: the node, a tab, and a word with
    what follows it: the state of the node, a line of nvidia-smi or rocm-smi, or how that ended.
    ``gpus`` is how many GPUs a node of the job has by Slurm, 0 if that is not known.
    """
    lines: dict[str, list[str]] = {each: [] for each in nodes}
    for line in said.split("\n"):
        node, _, text = line.partition("\t")
        lines.get(node, []).append(text)
    told = {node: _Told.read(some) for node, some in lines.items()}
    most = max((each.gpus for each in told.values()), default=0)
    found = {node: each.fault(gpus or most, most) for node, each in told.items()}
    answered = [node for node, each in told.items() if each.ended]
    if all(found[node] for node in answered) and len(answered) > 1:  # rather the driver of all
        found = {}
    for node, each in told.items():
        if each.state:
            found[node] = f"Slurm: {each.state}"
        elif answered and not each.ended:
            found[node] = "no answer"
    return {node: reason for node, reason in found.items() if reason}


class _Told(NamedTuple):
    """What is said of a node."""

    state: str  # by Slurm, if the node cannot be used
    tool: str
    gpus: int
    errors: int
    shared: bool  # GPUs with instances (MIG), which Slurm counts
    ended: str  # exit code of the tool; "" if the node has not answered

    @staticmethod
    def read(lines: Sequence[str]) -> _Told:
        words = [each.partition(" ")[::2] for each in lines]
        last = {word: text for word, text in words}
        tool, _, ended = last.get("ended", "").partition(" ")
        said = [text for word, text in words if word == "said"]
        devices = [found for each in said if (found := _DEVICE.fullmatch(each))]
        blocks = [found for each in said if (found := _BLOCK.fullmatch(each))]
        named = {found[0] for each in said if (found := re.match(r"GPU\[\d+\]", each))}
        errors = [found[2] for found in devices] + [found[1] for found in blocks]
        return _Told(
            state=last.get("slurm", ""),
            tool=tool,
            gpus=len(devices) + len(named),
            errors=sum(int(each) for each in errors if each.isdecimal()),
            shared=any(found[1] == "Enabled" for found in devices),
            ended=ended,
        )

    def fault(self, gpus: int, most: int) -> str:
        """Return what is wrong; `most` is the number of GPUs of the node with the most."""
        if self.ended == "124":
            return f"{self.tool} does not answer"
        if self.errors:
            return f"{self.tool}: {self.errors} uncorrected memory errors"
        missing = self.tool and self.gpus < gpus and not self.shared
        if missing and (most or self.ended in _NO_GPUS):  # else its steps do not see the GPUs
            return f"{self.tool}: {self.gpus} of {gpus} GPUs"
        return ""


def decide(
    end: End,
    earlier: Sequence[str],
    restarts: int,
    left: float,
    spares: int = 0,
    lack: str = "",
) -> tuple[str, str]:
    """Decide what follows from a failed step; return it, and its line for log and record.

    It is again, requeue, stuck (the chain ends too) or stop: the next job of a chain goes on.
    Earlier are the lines of the attempts of this job before; left is in seconds until the time
    limit; spares is how many of its nodes can be replaced; lack says that too few others are left.
    A step that a faulty node has ended is not judged by its progress: the next one runs on other
    nodes.
    """
    number = len(earlier) + 1
    at = "" if end.step is None else f" at step {end.step}"
    faulty = ", ".join(f"{node} ({reason})" for node, reason in end.faulty.items())
    before = _LINE.search(earlier[-1]) if earlier else None
    if end.step is None and not faulty:
        action, words = "stuck", "not restarted: it has made no step"
    elif before and before[1] and not faulty and end.step <= int(before[1]):
        action, words = "stuck", "not restarted: no step more than the attempt before"
    elif number > restarts:
        action, words = "stop", f"not restarted: jobs.restarts is {restarts}"
    elif faulty and (len(end.faulty) > spares or left < _LEAST) and lack:
        action, words = "stop", f"not restarted without {faulty}: {lack}"
    elif faulty and (len(end.faulty) > spares or left < _LEAST):
        action, words = "requeue", f"requeued without {faulty}: restart {number} of {restarts}"
    elif left < _LEAST:
        action = "stop"
        words = f"not restarted: less than {_LEAST // 60} minutes remain of the time limit"
    else:
        on = f"without {faulty}" if faulty else "on the same nodes"
        action, words = "again", f"restart {number} of {restarts} {on}"
    return action, f"attempt {number} ended{at}: exit code {end.code}; {words}"
