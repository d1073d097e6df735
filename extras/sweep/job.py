"""The hooks of sweeps: each task of an array takes its own line."""

from __future__ import annotations

from extras.sweep.sweep import kept_sweep, read_sweep
from lib.jobs.checks import check_words
from lib.jobs.request import Request
from lib.jobs.start import Start
from lib.jobs.submit import keep_lines
from lib.script.command import array, call
from lib.script.errors import printable


def check(request: Request) -> Request:
    """Keep the lines for the tasks."""
    sweep = read_sweep(request.arguments, request.options.get("array", ""))
    check_words(request.env, sweep.words)
    directory, lines = request.env.paths.runs / "values", list(request.lines)
    if sweep.kept:
        lines += keep_lines("LONGSHIP_JOB_VALUES", directory, sweep.kept)
    if sweep.lines:
        lines.append(call("note", printable(sweep.about)))
    return request._replace(first=sweep.first, lines=(*lines,))


def start(start: Start) -> Start:
    """Put the line of this task into its arguments."""
    environ = start.env.settings.environ
    task = environ.get("SLURM_ARRAY_TASK_ID", "")
    sweep = kept_sweep(start.arguments, environ.get("LONGSHIP_JOB_VALUES", "")) if task else None
    if not sweep:
        return start
    filled, values = sweep.of_task(int(task)), sweep.values(int(task))
    lines = [array("JOB_ARGUMENTS", filled)] if filled else []
    return start._replace(
        variables=(*start.variables, *lines), record={**start.record, "values": call(*values)}
    )
