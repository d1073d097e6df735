"""The hooks of restarts: the job script becomes the watcher of its steps."""

from __future__ import annotations

from typing import NamedTuple

import click

from extras.restarts.watcher import final_messages, watch_limits, with_restarts
from lib.configuration.schema import Jobs
from lib.jobs.checks import log_path
from lib.jobs.options import Option
from lib.jobs.request import Request
from lib.jobs.size import Size
from lib.jobs.start import Start
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.records import readable_values

OPTIONS = (
    click.Option(
        ["--restarts"],
        type=click.IntRange(min=0),
        metavar="N",
        help="Restart a failed or hanging job step, N times at most (default: jobs.restarts).",
    ),
    click.Option(
        ["--spare-nodes"],
        type=click.IntRange(min=0),
        metavar="N",
        help="With restarts: keep N of the nodes to replace faulty ones "
        "(default: jobs.spare_nodes).",
    ),
)


class Asked(NamedTuple):
    """The values of the options; None: that of the configuration."""

    restarts: int | None = None
    spare_nodes: int | None = None


def check(request: Request) -> Request:
    """Let the job keep spare nodes, and Slurm requeue it if it has none left."""
    job, asked = request.job, Asked(**request.asked.of(__name__))
    if job.is_interactive and (asked.restarts or asked.spare_nodes):
        hint = "--restarts and --spare-nodes require an .sbatch file"
        raise LongshipError(f"{job.path} is interactive", hint)
    settings = request.env.settings
    # the key is for trainings, also those of the user's own scripts; other jobs often have one node
    trains = job.script in ("", "run_training.sh") and not job.serves
    spares = asked.spare_nodes if trains else asked.spare_nodes or 0
    restarts = (asked.restarts or 0) if job.serves else asked.restarts
    # a server prints nothing while nobody uses it, and preprocess_data.py nothing while it works
    silent = job.serves or (job.step == "data" and not settings.configuration.jobs.silence)
    settings = with_restarts(settings, restarts, spares, "0" if silent else None)
    request = request._replace(env=request.env._replace(settings=settings))
    if job.is_interactive:
        return request
    _check_watched(request)
    jobs = settings.configuration.jobs
    if jobs.restarts:  # the watcher can requeue the job; the log then continues
        names = {each.name for each in request.own}
        more = [Option("requeue", None), Option("open-mode", "append")]
        more = [each for each in more if not {each.name, f"no-{each.name}"} & names]
        request = request._replace(typed=[*request.typed, *more])
    return (
        request._replace(trained_on=_without_spares(request, jobs)) if jobs.spare_nodes else request
    )


def _check_watched(request: Request) -> None:
    """Stop if the watcher, which reads one log, would take errors in another one for silence."""
    env, error = request.env, request.options.get("error")
    limits = watch_limits(env.settings.configuration.jobs, env.settings.origins["jobs.silence"])
    if error and any(limits) and log_path(env.paths, request.options, error) != request.log:
        raise LongshipError(
            f"--error={error} cannot be combined with restarts or jobs.silence",
            "leave out --error, also in the job script: the log then contains the errors too",
        )


def _without_spares(request: Request, jobs: Jobs) -> Size:
    """Return the size without the spare nodes; srun then knows only what is given per node."""
    if not jobs.restarts:
        raise LongshipError("spare nodes require restarts", "add --restarts=3, or --spare-nodes=0")
    for name in ("gpus", "ntasks"):
        if name in request.options:
            raise LongshipError(
                f"--{name} and spare nodes cannot be combined",
                f"request --{name}-per-node instead, or add --spare-nodes=0",
            )
    size = request.size
    nodes = size.nodes - jobs.spare_nodes
    if nodes < 1:
        raise LongshipError(
            f"no node to train on: {size.nodes} requested, {jobs.spare_nodes} of them spare",
            f"request more: --nodes={jobs.spare_nodes + 1}; or add --spare-nodes=0",
        )
    return size._replace(nodes=nodes, gpus=size.gpus // size.nodes * nodes)


def start(start: Start) -> Start:
    """Let the job script become the watcher of its steps, and keep its spare nodes."""
    settings, nodes = start.env.settings, start.size.nodes
    earlier = readable_values(start.run / "record.json")  # of a requeued job
    record = {**start.record, "attempts": earlier.get("attempts", "")}
    start = start._replace(record=record)
    jobs, origin = settings.configuration.jobs, settings.origins["jobs.silence"]
    restarts, silence = watch_limits(jobs, origin) if start.is_batch else (0, 0)
    if not restarts and not silence:
        return start
    spares = min(jobs.spare_nodes, nodes - 1) if restarts else 0
    kept = [call("watch_keep_spares", str(nodes - spares))] if spares else []
    limits = (str(each) for each in (restarts, spares, silence))
    return start._replace(
        record={**start.record, "spare_nodes": str(spares or "")},
        variables=(*start.variables, *kept),
        begun=(*start.begun, call("watch_run", *limits, start.log, final_messages())),
    )
