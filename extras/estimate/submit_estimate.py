"""The verb `submit.py estimate`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from extras.estimate.estimates import estimate_file, gpu_memory, last_run
from lib import ROOT
from lib.commands import Invocation
from lib.commands.submit import JobCommand, read_job, submission_options
from lib.jobs.options import Option
from lib.jobs.request import Asked, Request
from lib.jobs.size import gpus_of_a_node
from lib.jobs.submit import request_of
from lib.runtimes.launch import run_lines
from lib.script.command import call, text_below, wrapped
from lib.script.errors import LongshipError
from lib.script.render import render

_INSIDE = Path(ROOT, "extras/estimate/inside")


@click.command(cls=JobCommand, context_settings={"ignore_unknown_options": True})
@click.argument("job", metavar="SITE/run_training_MACHINE.sbatch")
@click.option(
    "--gpu-memory",
    "memory",
    type=click.IntRange(1),
    metavar="GB",
    help="Memory of a GPU (default: that of the machine).",
)
@submission_options
def estimate(
    invocation: Invocation,
    job: str,
    typed: list[Option],
    arguments: tuple[str, ...],
    asked: Asked,
    memory: int | None,
) -> None:
    """Estimate the GPU memory of a training, and list the layouts that fit, without a GPU.

    The estimator is the stack's own, inside the environment. Type the job as it would be submitted.
    """
    invocation, read = read_job(invocation, job)
    request = request_of(invocation.environment("job"), read, typed, arguments, asked)
    _check(request)
    env, size, file = invocation.environment(), request.trained_on, estimate_file(request)
    last, peak = last_run(request)
    gpus_per_node = size.gpus // size.nodes or gpus_of_a_node(env.machine, size.partition) or 1
    data = {
        **{"machine": env.machine.name, "stack": env.settings.stack.name, "nodes": size.nodes},
        **{"gpus_per_node": gpus_per_node, "gpus": size.nodes * gpus_per_node},
        **{"gpu_memory": memory or gpu_memory(request), "file": str(file)},
        **{"last_run": last, "last_peak_gib": peak, "as_json": asked.as_json},
    }
    stack = env.paths.root / "stacks" / env.settings.stack.name
    program = _INSIDE / "estimate.py"
    command = [
        *("env", f"NUM_NODES={size.nodes}", f"GPUS_PER_NODE={gpus_per_node}"),
        *(f"LONGSHIP_INSTEAD_OF_RANKS={program}", "bash", stack / "run_training.sh"),
    ]
    lines = [
        call("directory_make", file.parent),
        text_below("estimate_data", json.dumps(data), "What the estimate is about."),
        'exec <<<"$estimate_data"',
        wrapped("set", "--", *command, *request.first),
        call("cd", "--", env.paths.root),
        *run_lines(env),
    ]
    script = render(invocation.title(f"submit.py estimate {job}"), lines)
    invocation.finish(script, "submit.py")


def _check(request: Request) -> None:
    """Stop at what cannot be estimated."""
    if request.job.script != "run_training.sh":
        raise LongshipError(
            f"{request.job.path} starts no training of a stack",
            "name the site's job script: SITE/run_training_MACHINE.sbatch",
        )
    if "array" in request.options:
        raise LongshipError(
            "the tasks of an --array differ", "leave it out, and give the arguments of one task"
        )
    if request.size.unclear:
        raise LongshipError(
            f"the number of GPUs is not known with {request.size.unclear}",
            "give it by --nodes and --gpus-per-node",
        )
    stack = request.env.settings.stack.name
    known = [each.stem[len("stack_") :].replace("_", "-") for each in _INSIDE.glob("stack_*.py")]
    if stack not in known:
        raise LongshipError(
            f"the stack {stack} has no estimator of the GPU memory",
            f"stacks that have one: {', '.join(sorted(known))}; docs/how-to/estimate_memory.md",
        )
