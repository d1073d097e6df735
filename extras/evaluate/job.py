"""The hooks of an evaluation: the job that is submitted with a training, and what it starts."""

from __future__ import annotations

import click

from lib.commands.options import complete
from lib.configuration.layers import load_settings
from lib.jobs.checks import check_script
from lib.jobs.job_files import evaluation_file
from lib.jobs.request import Request
from lib.jobs.start import Start
from lib.jobs.submit import request_of
from lib.script.errors import LongshipError

OPTIONS = (
    click.Option(
        ["--then"],
        default="",
        metavar="STACK",
        help="Evaluate the trained model with STACK, such as evaluate.",
        shell_complete=complete("stack"),
    ),
)


def check(request: Request) -> Request:
    """Add the job that evaluates what this one trains."""
    stack = request.asked.of(__name__).get("then")
    return request._replace(then=(*request.then, _evaluation(request, stack))) if stack else request


def _evaluation(request: Request, stack: str) -> Request:
    env, job = request.env, request.job
    if job.is_interactive:
        raise click.UsageError("--then requires the job script of a training")
    if job.script != "run_training.sh":
        raise LongshipError(
            f"--then requires a training, but {job.path} does not start run_training.sh",
            "to start another job after it: python3 submit.py SITE/JOB.sbatch --after JOB",
        )
    check_script(env.settings, "--then", "export.sh")
    if "array" in request.options:
        raise LongshipError("--then cannot be used with job arrays", "leave out --then or --array")
    options = {**request.asked.options, "machine": env.machine.name, "stack": stack}
    settings = load_settings(env.paths.root, options, env.settings.environ)
    account = [each for each in request.typed if each.name == "account"]
    evaluation = request_of(
        env._replace(settings=settings), evaluation_file(env.paths.root, env.machine), account
    )
    return evaluation._replace(prefix="then_", send="submission_send_then")


def start(start: Start) -> Start:
    """Export the model that an evaluation names, if a training is still to be exported."""
    if not (start.stack / "run_evaluation.sh").exists():
        return start
    # also of an interactive job, from whose run another job exports a model: job_export
    return start._replace(step=(*start.step, 'job_export "${JOB_ARGUMENTS[0]-}"'))
