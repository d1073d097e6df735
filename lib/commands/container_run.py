"""The options of container_run.py."""

from __future__ import annotations

from pathlib import Path

import click

from lib.commands import LAUNCH, Invocation, launch
from lib.commands.options import complete, script_options
from lib.configuration.paths import check_roots
from lib.script.command import call
from lib.script.errors import print_messages


@click.command(
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    epilog="Example: python3 container_run.py python train.py --help",
)
@click.option("--online", is_flag=True, help="Allow the Hugging Face libraries to use the network.")
@click.option(
    "--launcher",
    metavar="FILE",
    help="Write a launcher script to FILE, which every rank of a job starts.",
    shell_complete=complete("file"),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete("command"))
@script_options
def container_run(
    invocation: Invocation, online: bool, launcher: str | None, command: tuple[str, ...]
) -> None:
    """Run COMMAND, or an interactive shell, inside the environment.

    Put options before COMMAND; all later arguments are passed to it unchanged. The exit code is
    COMMAND's.
    """
    if launcher and not invocation.dry_run:
        from lib.jobs.launcher import write_launcher  # an ordinary launch does not pay for it

        job = invocation.environ.get("SLURM_JOB_ID", "")
        env = invocation.environment("job" if job else "ranks")
        check_roots(env.paths)  # ranks do not
        write_launcher(env, Path(launcher), online=online, job=job, title=invocation.title(LAUNCH))
        print_messages(next=call("srun", launcher, "COMMAND"))
    else:
        launch(invocation, command, online=online, purpose="ranks" if launcher else "run")
