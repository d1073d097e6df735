"""The hooks of a re-run: it starts what the recorded run has started."""

from __future__ import annotations

from pathlib import Path

from lib.jobs.request import Request
from lib.jobs.start import Start
from lib.script.command import call, export


def check(request: Request) -> Request:
    """Name the run to the job, and keep what the run needs from being pruned."""
    if not request.again:
        return request
    named, kept = export("LONGSHIP_JOB_RERUN", request.again), call("rerun_pin", request.again)
    return request._replace(lines=(*request.lines, named), sent=(*request.sent, kept))


def start(start: Start) -> Start:
    """Take the launcher of the run."""
    again = start.env.settings.environ.get("LONGSHIP_JOB_RERUN", "")
    if not again:
        return start
    return start._replace(again=Path(again), record={**start.record, "run_again": again})
