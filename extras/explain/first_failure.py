"""The rank of a job that failed first: the others report at length that they lost it."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple

from lib.script.errors import printable

# Whose line it is: the task of srun, and the rank; b"" where a line does not have it.
Label = tuple[bytes, bytes]
NOBODY: Label = (b"", b"")

# How srun reports the end of tasks: node, tasks, reason.
_ENDED = re.compile(rb"srun: error: ([^ :]+): tasks? ([0-9][0-9,-]*)[^:]*: (.*)")
# What only reports the end of others.
FOLLOWS = re.compile(
    rb"srun: error: [^ :]+: tasks? |srun: (?!error)|slurmstepd\S*: error: \*\*\*|longship: "
)
_CHAINED = ("During handling of the above", "The above exception was")
_FRAME = re.compile(rb' *File "')
_PLACE = re.compile(r' *File "(.*)", line ([0-9]+)')
_MOST = 2000  # lines of the output of a rank: a traceback can have hundreds
_RANKS = 16  # whose output is kept
_LINES = 40  # lines that are shown


class Failure(NamedTuple):
    """The first error of a rank, and its output from there on."""

    label: Label
    line: int
    steps: int  # of the training before it
    output: list[bytes]

    def error(self) -> FirstError:
        """Return the error: of a traceback the exception, with the place where it was raised."""
        lines = [_text(each) for each in self.output]
        end = _end_of_error(lines)
        places = [found for each in lines[:end] if (found := _PLACE.match(each))]
        place = f"{places[-1][1]}, line {places[-1][2]}" if places else ""
        return FirstError(self.line, lines[end], place)


class FirstError(NamedTuple):
    """The first error of the rank that failed first, as it printed it."""

    line: int
    text: str
    place: str  # in the code, by a traceback; else ""


class FirstFailure:
    """The rank that failed first, and its output, in a log whose lines are given one by one."""

    def __init__(self, went_on: Callable[[int], bool]) -> None:
        """`went_on` tells whether the run has survived what was printed after so many steps."""
        self._went_on = went_on
        self.candidates: dict[Label, Failure] = {}
        self.ended = 0  # the line in which srun reports the first end of a task
        self._ends: list[tuple[str, str, str]] = []  # node, tasks such as 0,2-3, and reason

    def take(self, label: Label, text: bytes, line: int, steps: int, is_error: bool) -> None:
        """Take up a line, which can be an error, after so many steps of the training."""
        if end := _ENDED.match(text):
            self._ends.append((_text(end[1]), _text(end[2]), _text(end[3])))
            self.ended = self.ended or line
        known = self.candidates.get(label)
        if known and not (is_error and self._went_on(known.steps)):
            if len(known.output) < _MOST:
                known.output.append(text)
        elif is_error and not FOLLOWS.match(text) and (known or len(self.candidates) < _RANKS):
            self.candidates[label] = Failure(label, line, steps, [text])

    def drop(self, line: int) -> None:
        """Forget what came after a line, as the job was ended then."""
        self.candidates = {x: each for x, each in self.candidates.items() if each.line <= line}
        if self.ended > line:
            self.ended, self._ends = 0, []

    def is_code(self, label: Label, text: bytes) -> bool:
        """Tell whether a line is code that a traceback quotes: what it raises comes later."""
        known = self.candidates.get(label)
        return bool(known and text[:1].isspace() and _FRAME.match(known.output[-1]))

    def _end_of(self, task: str) -> tuple[str, str]:
        """Return where and how a task ended, if srun reports it."""
        for node, tasks, reason in self._ends:
            for first, last in re.findall("([0-9]{1,9})(?:-([0-9]{1,9}))?", tasks):
                if task.isdecimal() and int(first) <= int(task) <= int(last or first):
                    return node, reason
        return "", ""

    @property
    def failure(self) -> Failure | None:
        """The first error of a rank that Slurm did not end; of a line without a label at last."""

        def order(each: Failure) -> tuple[bool, bool, int]:
            is_ended = self._end_of(each.label[0].decode())[1] == "Terminated"
            return each.label == NOBODY, is_ended, each.line

        found = (each for each in self.candidates.values() if not self._went_on(each.steps))
        return min(found, key=order, default=None)

    @property
    def who(self) -> str:
        """The task, with its rank, node and how it ended, if known; "" without a failure."""
        task, rank = (each.decode() for each in self.failure.label) if self.failure else ("", "")
        if not task:  # a task that Slurm terminated did not fail first
            ended = sorted(self._ends, key=lambda each: each[2] == "Terminated")
            task = "".join(re.split("[,-]", tasks)[0] for _, tasks, _ in ended[:1])
        if not task and not rank:
            return ""
        node, reason = self._end_of(task)
        named = f"task {task}" + f", rank {rank}," * bool(rank) if task else f"rank {rank}"
        return f"{named}{node and f' on {node}: {reason}'}".rstrip(",")

    @property
    def output(self) -> list[str]:
        """What it printed, as much as fits a screen: the error at the end of a traceback too."""
        if not self.failure or self.failure.label == NOBODY:
            return []
        lines = [_text(each) for each in self.failure.output]
        error = _end_of_error(lines)
        if error < _LINES - 5:
            return lines[:_LINES]
        return [*lines[:8], f"... ({error - 32} lines)", *lines[error - 24 : error + 6]]


def _end_of_error(lines: list[str]) -> int:
    """Return the number of the line that ends the first traceback, with those chained to it."""
    error, inside = 0, False
    for number, line in enumerate(lines):
        if line.startswith("Traceback") and number and not inside:  # of another failure
            return error
        if line.startswith(("Traceback", *_CHAINED)):
            inside = True
        elif inside and line and not line[0].isspace():
            error, inside = number, False
    return error


def _text(line: bytes) -> str:
    return printable(line.decode(errors="replace")).rstrip()
