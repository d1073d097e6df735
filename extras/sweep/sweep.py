"""Sweeps: arguments of a job array in which ``@{FILE}`` is a line of a file, another in each task.

Task 0 takes the first line. A submission keeps the lines, from which each task takes its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from lib.jobs.size import array_tasks
from lib.script.errors import LongshipError
from lib.script.records import open_file

_PLACE = re.compile(r"@(?:@\{|\{([^}]+)\})")  # @@{ stands for @{


class Sweep(NamedTuple):
    """The arguments of a job; those of an array with the lines of the files that they name."""

    arguments: tuple[str, ...]
    tasks: tuple[int, ...] = ()
    lines: Mapping[str, Sequence[str]] = {}  # by the name of the file

    @property
    def kept(self) -> str:
        """The file that a submission keeps for the tasks; "" if nothing in the arguments varies."""
        varies = self.tasks and any(map(_PLACE.search, self.arguments))
        return json.dumps(self._asdict()) if varies else ""

    def of_task(self, task: int) -> list[str]:
        """Return the arguments with the lines that a task takes."""
        lines = {name: each[task] for name, each in self.lines.items()}
        return [
            _PLACE.sub(lambda place: lines.get(place[1], "@{"), each) for each in self.arguments
        ]

    @property
    def first(self) -> list[str]:
        """The arguments of the first task."""
        return self.of_task(self.tasks[0]) if self.tasks else list(self.arguments)

    @property
    def words(self) -> list[str]:
        """The arguments of all tasks, each once."""
        return list(dict.fromkeys(word for task in self.tasks for word in self.of_task(task)))

    @property
    def about(self) -> str:
        """The values of the first and the last task, in one line."""
        ends = dict.fromkeys((self.tasks[0], self.tasks[-1]))
        return "; ".join(f"task {task}: {' '.join(self.values(task))}" for task in ends)

    def values(self, task: int) -> list[str]:
        """Return the arguments of a task that contain a line, with the options before them."""
        found, option = [], []
        for argument, filled in zip(self.arguments, self.of_task(task)):
            if any(_PLACE.findall(argument)):
                found += [*option, filled]
            option = [argument] if argument.startswith("-") and "=" not in argument else []
        return found


def kept_sweep(arguments: Sequence[str], file: str) -> Sweep | None:
    """Read what the submission of an array has kept; None if nothing in the arguments varies."""
    if not any(map(_PLACE.search, arguments)):
        return None
    try:
        return Sweep(**json.loads(Path(file).read_text(encoding="utf-8")))
    except OSError as error:
        raise LongshipError(
            f"cannot read the values of this task: {file or 'LONGSHIP_JOB_VALUES is not set'}",
            "submit the array with submit.py, which keeps the values",
        ) from error


def read_sweep(arguments: Sequence[str], array: str) -> Sweep:
    """Read the files that arguments of a job name; array is the value of ``--array``, or empty."""
    names = dict.fromkeys(name for each in arguments for name in _PLACE.findall(each))
    names.pop("", None)
    if not array:
        found = next((each for each in names if os.path.isfile(each)), "")
        if found:  # other programs have a meaning for it: git for HEAD@{1}
            raise LongshipError(
                f"@{{{found}}} requires a job array",
                "add --array=0-7 after the job script, with a task for each line",
            )
        return Sweep(tuple(arguments))
    tasks = tuple(sorted({task for each in array_tasks(array) for task in each}))
    last = tasks[-1] if tasks else 0
    return Sweep(tuple(arguments), tasks, {each: _read_lines(each, last) for each in names})


def _read_lines(name: str, last: int) -> list[str]:
    """Return the lines of a file for the tasks up to the last one, without their ends."""
    try:
        with open_file(Path(name)) as stream:
            lines = list(islice(stream, last + 1))
    except OSError as error:
        raise LongshipError(
            f"cannot read {name}: {error.strerror}",
            f"write a value for each task into it, one per line; to pass @{{{name}}}: @@{{{name}}}",
        ) from error
    if len(lines) <= last:
        raise LongshipError(
            f"{name} has {len(lines)} lines, but task {last} takes line {last + 1}",
            f"use --array=0-{len(lines) - 1}: task 0 takes the first line"
            if lines
            else "write a value for each task into it, one per line",
        )
    if any(b"\0" in each for each in lines):
        raise LongshipError(
            f"{name} contains a zero byte, which is not possible in an argument",
            f"save it as UTF-8 text: iconv -f UTF-16 -t UTF-8 {name}",
        )
    ended = (each[:-1] if each.endswith(b"\n") else each for each in lines)
    return [each.decode(errors="surrogateescape") for each in ended]
