"""The verb `submit.py sync`."""

from __future__ import annotations

import click

from extras.reports.report_page import synced_runs
from lib.commands import Invocation
from lib.commands.options import WrongCall, complete, script_options
from lib.runtimes.launch import run_lines
from lib.script.command import call
from lib.script.errors import offline_modes
from lib.script.render import render


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=complete("run"))
@click.option("--follow", is_flag=True, help="Repeat it each minute until the jobs have ended.")
@script_options
def sync(invocation: Invocation, runs: tuple[str, ...], follow: bool) -> None:
    """Upload what RUN, or all your runs, have recorded offline for W&B."""
    if follow and not runs:
        raise WrongCall("missing argument: RUN", "python3 submit.py sync RUN --follow")
    env = invocation.environment()
    lines = [call("cd", "--", env.paths.root), *run_lines(env, online=True)]
    program = str(invocation.paths.root / "extras/reports/inside/sync_wandb.bash")
    install = offline_modes(" && ".join(env.packages.steps))
    names = [str(each) for each in synced_runs(invocation.paths, runs)]
    command = ("bash", program, "follow" if follow else "once", install, *names)
    invocation.finish(render(invocation.title("submit.py sync"), lines), "submit.py", command)
