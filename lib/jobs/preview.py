"""The scripts that a job will run, as far as they are known before it is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Callable

from lib.configuration.partitions import time_text
from lib.jobs.launcher import described
from lib.jobs.request import Request
from lib.jobs.size import run_name
from lib.jobs.start import Start, start_lines, start_of
from lib.runtimes.launch import run_lines
from lib.script.render import render

_ID = "%j"  # Slurm's placeholder, as in the path of a log


def preview(request: Request, title: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield where each script of a job and of those submitted with it will run, and its text.

    What only the start of the job knows is missing: Slurm's facts, and the place of frozen code.
    """
    for each in (request, *request.then):
        if each.job.needs_image:  # else it starts no run
            start = _expected(each)
            lines = start_lines(start, described(start.env.files))
            yield (
                f"on the first node, where start_job in {each.job.path} sources it",
                render(title(start.usage("start.bash")), lines, sourced=True),
            )
            for name, (_, lines) in start.scripts.items():
                yield f"on each node: {name}", render(title(start.usage(name)), lines)
            inside = "inside" if each.env.in_pyxis else "outside"
            yield (
                f'for each rank, {inside} the container: srun "$LAUNCHER" COMMAND',
                render(title(start.usage("launcher")), run_lines(start.env)),
            )


def _expected(request: Request) -> Start:
    """Return the start of a job that Slurm has not seen yet."""
    env, facts = request.env, _facts(request)
    # what the submission forgets, if it is typed in a job
    theirs = ("SLURM_", "LONGSHIP_JOB_")
    environ = {k: v for k, v in env.settings.environ.items() if not k.startswith(theirs)}
    env = env._replace(settings=env.settings._replace(environ=environ))
    return start_of(env, env.paths.runs / run_name(facts), facts, request.arguments)


def _facts(request: Request) -> Mapping[str, str]:
    """Return what Slurm will report of a job, by Slurm's names."""
    size, log = request.size, request.named_log
    return {
        "JobId": _ID,
        "JobName": size.name,
        "Partition": size.partition,
        "Account": size.account,
        "QOS": size.qos,
        "NumNodes": str(size.nodes),
        "NumCPUs": str(size.cores),
        "AllocTRES": f"gres/gpu={size.gpus}" if size.gpus else "",
        "TimeLimit": time_text(size.hours) if size.hours else "UNLIMITED",
        "BatchFlag": "0" if request.job.is_interactive else "1",
        "StdOut": log,
        "StdErr": log,
    }
