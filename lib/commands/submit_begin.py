"""The verb `submit.py begin`, which only jobs run."""

from __future__ import annotations

import sys

import click

from lib.commands import Invocation, note_lost_names
from lib.configuration.snapshot import resolved
from lib.jobs import start
from lib.jobs.launcher import job_launcher
from lib.jobs.size import slurm_facts
from lib.script.execute import write_file
from lib.script.hooks import hooks
from lib.script.render import render


@click.command(hidden=True, context_settings={"allow_interspersed_args": False})
@click.argument("machine")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def begin(machine: str, arguments: tuple[str, ...]) -> None:
    """Start the run of a job with its ARGUMENTS; start_job in job scripts runs this command.

    It reads the output of `scontrol show job --oneliner JOB` from standard input, and the
    configuration that submit.py kept for the job ($LONGSHIP_CONFIGURATION, JSON; without it,
    configuration.toml). It pins the active image and packages, or those of the run that is re-run,
    and creates the run directory: launcher, configuration.json, slurm.txt, and start.bash, which
    the job script sources. It prints the path of that directory.
    """
    invocation = Invocation.read({"machine": machine}, dry_run=False)
    given = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    text = given.decode(errors="surrogateescape")
    facts = slurm_facts(text, invocation.environ.get("SLURM_JOB_NAME", ""))
    note_lost_names(invocation.environ)
    env = invocation.environment("job")
    start.check_own(env.paths, invocation.environ.get("LONGSHIP_CONFIGURATION", ""))
    restarted = facts.get("Restarts", "0") != "0"
    cluster = invocation.environ.get("SLURM_CLUSTER_NAME", "")
    run = start.make_run_directory(env.paths, facts, cluster, restarted=restarted)
    for environment in hooks("environment").values():
        env = environment(env, run)
    write_file(run / "slurm.txt", text)
    write_file(run / "configuration.json", resolved(env.settings))
    begun = start.start_of(env, run, facts, arguments)
    named = job_launcher(
        begun, restarted=restarted, title=invocation.title(begun.usage("launcher"))
    )
    for name, (_, lines) in begun.scripts.items():
        write_file(run / name, render(invocation.title(begun.usage(name)), lines))
    title, lines = invocation.title(begun.usage("start.bash")), start.start_lines(begun, named)
    write_file(run / "start.bash", render(title, lines, sourced=True))
    click.echo(run)
