"""The verb `doctor.py job`, or `doctor.py --job`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from extras.job_check.diagnosis import diagnose, job_lines
from lib.commands.doctor import checked_invocation, json_option
from lib.commands.options import plain_options
from lib.doctor.report import Diagnosis, exit_on_signals
from lib.script.render import render


@click.command()
@json_option
@plain_options
def job(options: Mapping[str, str], dry_run: bool, as_json: bool) -> None:
    """Check that the ranks of the current job get right sums from each other, and how fast.

    This takes about a minute on healthy nodes, and three at most. Put it into a job script before
    srun, or run: salloc --nodes=2 OPTION... python3 doctor.py --job. The exit code is 1 if there is
    a problem.
    """
    exit_on_signals()
    invocation = checked_invocation(options, dry_run=dry_run)
    env = invocation.environment("job")
    script = render(invocation.title("doctor.py --job"), job_lines(env))
    if dry_run:
        invocation.finish(script, "doctor.py")
    else:
        diagnose(env, script, Diagnosis(as_json=as_json))
