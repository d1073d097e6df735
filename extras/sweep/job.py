"""The hooks of sweeps: `@{FILE}` in the arguments of a job array is a line of the file.

Task 0 takes the first line. A submission keeps the arguments of each task, as they are now.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lib.jobs.checks import check_words
from lib.jobs.request import Request
from lib.jobs.size import array_tasks
from lib.jobs.start import Start
from lib.jobs.submit import keep_lines
from lib.script.command import array, call
from lib.script.errors import LongshipError, printable
from lib.script.records import open_file, read_file
from lib.script.trust import read_named

_PLACE = re.compile(r"@\{([^}]+)\}")


def check(request: Request) -> Request:
    """Keep the arguments of each task."""
    asked = request.options.get("array", "")
    tasks = sorted({task for each in array_tasks(asked) for task in each}) if asked else []
    files = dict.fromkeys(name for each in request.arguments for name in _PLACE.findall(each))
    if not tasks or not files:
        _check_differ(request, asked, tasks, files)
        return request
    if request.again and any(map(os.path.isfile, files)):
        raise LongshipError(
            "a re-run has the values of its task already, and takes none from a file",
            "submit them: python3 submit.py SITE/JOB.sbatch --array=... -- --option '@{FILE}'",
        )
    # what a re-run repeats has been filled in
    lines = {} if request.again else {name: _read_lines(name, tasks[-1]) for name in files}
    filled = {task: _fill(request.arguments, lines, task) for task in tasks}
    check_words(request.env, [word for each in filled.values() for word in each])
    ends = dict.fromkeys((tasks[0], tasks[-1]))
    shown = (f"task {n}: {' '.join(_values(request.arguments, filled[n]))}" for n in ends)
    kept = keep_lines("LONGSHIP_JOB_VALUES", request.env.paths.runs / "values", json.dumps(filled))
    return request._replace(
        first=filled[tasks[0]],
        lines=(*request.lines, *kept, call("note", printable("; ".join(shown)))),
    )


def start(start: Start) -> Start:
    """Put the line of this task into its arguments."""
    environ = start.env.settings.environ
    task = environ.get("SLURM_ARRAY_TASK_ID", "")
    if not task or not any(map(_PLACE.search, start.arguments)):
        return start
    file = environ.get("LONGSHIP_JOB_VALUES", "")
    try:
        filled = json.loads(read_named(Path(file)))[task]
    except (OSError, KeyError, ValueError) as error:
        raise LongshipError(
            f"cannot read the values of this task: {file or 'LONGSHIP_JOB_VALUES is not set'}",
            "submit the array with submit.py, which keeps the values",
        ) from error
    return start._replace(
        variables=(*start.variables, array("JOB_ARGUMENTS", filled)),
        record={**start.record, "values": call(*_values(start.arguments, filled))},
    )


def _check_differ(request: Request, asked: str, tasks: Sequence[int], files: Iterable[str]) -> None:
    """Stop if tasks would write to the same checkpoints, at the same time."""
    for name in files:
        if os.path.isfile(name):  # HEAD@{1} means something to git
            raise LongshipError(
                f"@{{{name}}} requires a job array",
                "add --array=0-7 after the job script, with a task for each line",
            )
    if len(tasks) < 2 or asked.endswith("%1") or request.asked.agreed or request.again:
        return
    script = Path(request.env.paths.root, request.job.path)
    if "SLURM_ARRAY_" not in read_file(script).decode(errors="replace"):
        raise LongshipError(
            f"--array={asked}: {len(tasks)} tasks would run the same command",
            "name a file with a line for each task: -- --seed '@{seeds.txt}'; "
            "or, if the program reads SLURM_ARRAY_TASK_ID itself, add --yes",
        )


def _fill(arguments: Sequence[str], lines: Mapping[str, list[str]], task: int) -> list[str]:
    def line(place: re.Match[str]) -> str:
        return lines[place[1]][task] if lines else place[0]

    return [_PLACE.sub(line, each) for each in arguments]


def _values(arguments: Sequence[str], filled: Sequence[str]) -> Iterator[str]:
    """Yield the arguments that contain a line, each after its option."""
    option = ""
    for argument, value in zip(arguments, filled):
        if _PLACE.search(argument):
            yield from filter(None, (option, value))
        option = argument if argument.startswith("-") and "=" not in argument else ""


def _read_lines(name: str, last: int) -> list[str]:
    """Return the lines of a file up to the last task's, without their ends."""
    try:
        with open_file(Path(name)) as stream:
            lines = stream.read().decode().replace("\r\n", "\n").split("\n")
    except (OSError, ValueError) as error:
        raise LongshipError(
            f"cannot read {name} as text: {error}", "write a line for each task into it, as UTF-8"
        ) from error
    lines = lines[: -1 if not lines[-1] else None]
    if len(lines) <= last or any("\0" in each for each in lines):
        raise LongshipError(
            f"{name} has {len(lines)} lines of text, but task {last} takes line {last + 1}",
            "write a line for each task into it: task 0 takes the first",
        )
    return lines
