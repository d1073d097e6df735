"""The verb `submit.py begin`, which only jobs run."""

from __future__ import annotations

import sys

import click

from lib.commands import Call, note_lost_names
from lib.configuration.snapshot import resolved
from lib.jobs import start
from lib.jobs.hooks import hooks
from lib.jobs.launcher import job_launcher
from lib.jobs.size import slurm_facts
from lib.script.execute import write_file
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
    call = Call.read({"machine": machine}, dry_run=False)
    given = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    text = given.decode(errors="surrogateescape")
    facts = slurm_facts(text, call.environ.get("SLURM_JOB_NAME", ""))
    note_lost_names(call.environ)
    env = call.environment("job")
    start.check_own(env.paths, call.environ.get("LONGSHIP_CONFIGURATION", ""))
    restarted = facts.get("Restarts", "0") != "0"
    cluster = call.environ.get("SLURM_CLUSTER_NAME", "")
    run = start.make_run_directory(env.paths, facts, cluster, restarted=restarted)
    for environment in hooks("environment").values():
        env = environment(env, run)
    write_file(run / "slurm.txt", text)
    write_file(run / "configuration.json", resolved(env.settings))
    begun = start.start_of(env, run, facts, arguments)
    title = call.title(f"launcher of job {run.name}; arguments: the command")
    named = job_launcher(begun, restarted=restarted, title=title)
    for name, (words, lines) in begun.scripts.items():
        title = call.title(f"{name} of job {run.name}; arguments: {words}")
        write_file(run / name, render(title, lines))
    title = call.title(f"start of job {run.name}")
    write_file(run / "start.bash", render(title, start.start_lines(begun, named), sourced=True))
    click.echo(run)
