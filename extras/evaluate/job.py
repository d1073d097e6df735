"""The hooks of an evaluation: the job that is submitted with a training, and what it starts."""

from __future__ import annotations

from pathlib import Path

import click

from lib.commands.options import complete
from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.sites import Machine
from lib.configuration.tables import find_files
from lib.jobs.checks import check_script
from lib.jobs.job_files import JobFile, read_job_file
from lib.jobs.request import Request
from lib.jobs.start import Start
from lib.jobs.submit import request_of
from lib.runtimes.choice import choose_runtime
from lib.script.errors import LongshipError
from lib.script.execute import succeeds

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
    if request.again:  # its configuration is that of the training's stack alone
        raise LongshipError(
            "--then cannot be used with a re-run",
            f"run: python3 submit.py --stack {stack} SITE/JOB.sbatch --after JOB -- RUN/exported",
        )
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
    paths = derive_paths(settings)
    runtime = choose_runtime(settings, paths, succeeds).runtime  # a stack can have its own
    env = env._replace(settings=settings, paths=paths, runtime=runtime)
    evaluation = request_of(env, evaluation_file(env.paths.root, env.machine), account)
    return evaluation._replace(prefix="then_", send="evaluation_send")


def evaluation_file(root: Path, machine: Machine) -> JobFile:
    """Return the job script with which the site of a machine evaluates a model on it."""
    site = Path(machine.site_file).parent
    for path in find_files(root, f"{site}/*.sbatch"):
        job = read_job_file(root, str(path))
        if (job.script, job.machine) == ("run_evaluation.sh", machine.name):
            return job
    raise LongshipError(
        f"no job script in {site} starts run_evaluation.sh on {machine.name}",
        f"copy local/run_evaluation_local.sbatch to {site}/ and adapt it",
    )


def start(start: Start) -> Start:
    """Export the model that an evaluation names, if a training is still to be exported."""
    if not (start.stack / "run_evaluation.sh").exists():
        return start
    # also of an interactive job, from whose run another job exports a model
    return start._replace(step=(*start.step, 'evaluation_export "${JOB_ARGUMENTS[0]-}"'))
