"""The hooks of frozen code: a job runs a copy of the clone and of the external repositories."""

from __future__ import annotations

import os
from contextlib import suppress

import click

from extras.frozen.frozen_code import clone_of, freeze_lines, frozen_repositories, with_frozen_code
from lib.jobs.request import Request
from lib.jobs.start import Start
from lib.script.command import call

OPTIONS = (
    click.Option(
        ["--live"], is_flag=True, help="Run from the clone, with later changes of the code."
    ),
)


def check(request: Request) -> Request:
    """Freeze the code of a job, or let it run from the clone.

    A shell or an editor on a compute node is for working in the clone; a job that builds something
    writes lock files into it.
    """
    job, env = request.job, request.env
    live = request.asked.of(__name__).get("live")
    edited = job.is_interactive or job.serves == "ssh" or not job.needs_image
    if request.again and not live:
        lines = freeze_lines(env, request.again)
    elif live or edited or not env.settings.configuration.jobs.freeze:
        lines = [call("code_live", env.paths.root)]
    else:
        lines = freeze_lines(env)
    return request._replace(code=lines)


def start(start: Start) -> Start:
    """Let the program inside find the frozen code, and return what the job writes next to it."""
    environ = start.env.settings.environ
    clone, frozen = clone_of(environ, start.env.paths), environ.get("LONGSHIP_FROZEN", "")
    if clone == start.env.paths.root and not frozen:
        return start
    repositories = frozen_repositories(environ, start.env.paths)
    for each in repositories.values():
        with suppress(OSError):
            os.utime(str(each).rpartition("-")[0])  # a copy that no job uses is removed
    return start._replace(
        env=with_frozen_code(start.env, start.run),
        repositories={**start.repositories, **repositories},
        record={**start.record, "repository": str(clone), "code": frozen},
        step=(*start.step, call("code_enter", clone)),
        at_end=(*start.at_end, "code_return"),
    )
