"""The task of a job that failed first: the others report at length that they lost it."""

from __future__ import annotations

import re

from lib.script.errors import printable

# How srun reports the end of tasks: node, tasks, reason.
_ENDED = re.compile(rb"\nsrun: error: ([^ :\n]+): tasks? ([0-9][0-9,-]*)[^:\n]*: (.*)")
# How programs, runtimes and Slurm begin to report a failure, after srun's and torchrun's labels.
_FAILURE = re.compile(
    rb"\n( *([0-9]+): (?:\[rank ?([0-9]+)\] ?)?)(?:Traceback \(most recent|error: |FATAL: |ERROR: |"
    rb"[A-Za-z_.]*(?:Error|Exception): |Segmentation fault|slurmstepd: error|Fatal Python error)"
)
_MOST = 2000  # lines of the task's output: a traceback can have hundreds
_LINES = 40  # lines that are shown


class FirstFailure:
    """The task that failed first, and its output from there on, in a log that is fed in blocks."""

    def __init__(self) -> None:
        self.task = self.rank = ""
        self._ends: list[tuple[str, str, str]] = []  # node, tasks such as 0,2-3, and reason
        self._output: list[bytes] = []
        self._line: re.Pattern[bytes] | None = None

    def feed(self, block: bytes) -> int:
        """Search whole lines; return where srun reports the first end of a task in them, or -1."""
        block = b"\n" + block
        ends = list(_ENDED.finditer(block)) if b"\nsrun: error: " in block else []
        self._ends += [(_text(x[1]), _text(x[2]), _text(x[3])) for x in ends]
        self._search(block)
        return ends[0].start() if ends else -1

    def _search(self, block: bytes) -> None:
        begin = 0
        if self._line is None:
            failure = _FAILURE.search(block)
            if failure is None:
                return
            label, task, rank = failure.groups()
            self.task, self.rank, begin = _text(task), _text(rank or b""), failure.start()
            # the lines of other tasks, and of other ranks of this task, are between its own
            others = b"" if rank else rb"(?!\[rank ?[0-9]+\])"
            self._line = re.compile(rb"\n" + re.escape(label) + others + rb"(.*)")
        if len(self._output) < _MOST:
            self._output += self._line.findall(block, begin)

    def _end_of(self, task: str) -> tuple[str, str]:
        """Return where and how a task ended, if srun reports it."""
        for node, tasks, reason in self._ends:
            for first, last in re.findall("([0-9]{1,9})(?:-([0-9]{1,9}))?", tasks):
                if task.isdecimal() and int(first) <= int(task) <= int(last or first):
                    return node, reason
        return "", ""

    @property
    def who(self) -> str:
        """The task, with its rank, node and how it ended, if known; "" without a failure."""
        # a task that Slurm terminated did not fail first
        ended = sorted(self._ends, key=lambda each: each[2] == "Terminated")
        task = self.task or "".join(re.split("[,-]", tasks)[0] for _, tasks, _ in ended[:1])
        if not task:
            return ""
        node, reason = self._end_of(task)
        rank = f", rank {self.rank}," if self.rank else ""
        return f"task {task}{rank}{node and f' on {node}: {reason}'}".rstrip(",")

    def node_of(self, task: str) -> str:
        """Return the node of a task, if srun reports its end."""
        return self._end_of(task)[0]

    @property
    def output(self) -> list[str]:
        """What it printed, as much as fits a screen: the error at the end of a traceback too."""
        lines = [_text(each) for each in self._output[:_MOST]]
        error = _end_of_error(lines)
        if error < _LINES - 5:
            return lines[:_LINES]
        return [*lines[:8], f"... ({error - 32} lines)", *lines[error - 24 : error + 6]]


def _end_of_error(lines: list[str]) -> int:
    """Return the number of the line that ends the first traceback, with those chained to it."""
    error, inside = 0, False
    for number, line in enumerate(lines):
        if line.startswith(("During handling of the above", "The above exception was")):
            inside = True
        elif line.startswith("Traceback"):
            if number and not inside:  # of another failure
                return error
            inside = True
        elif line and not line[0].isspace():
            error, inside = (number, False) if inside else (error, inside)
    return error


def _text(line: bytes) -> str:
    return printable(line.decode(errors="replace")).rstrip()
