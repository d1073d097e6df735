"""The options of container_run.py."""

from __future__ import annotations

from pathlib import Path

import click

from lib.commands import Call, note_lost_names, offered, script_options
from lib.runtimes.launch import run_lines
from lib.script.command import call as shown
from lib.script.errors import print_messages
from lib.script.render import render


@click.command(
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    epilog="Example: python3 container_run.py python train.py --help",
)
@click.option("--online", is_flag=True, help="Allow the Hugging Face libraries to use the network.")
@click.option(
    "--launcher",
    metavar="FILE",
    help="Write a launcher script to FILE, which every rank of a job starts.",
    shell_complete=offered("file"),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=offered("command"))
@script_options
def container_run(call: Call, online: bool, launcher: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND, or an interactive shell, inside the environment.

    Put options before COMMAND; all later arguments are passed to it unchanged. Exits with COMMAND's
    exit code.
    """
    title = call.title("container_run.py; arguments: the command")
    if launcher and not call.dry_run:
        from lib.jobs.launcher import write_launcher  # an ordinary launch does not pay for it

        job = call.environ.get("SLURM_JOB_ID", "")
        env = call.environment("job" if job else "ranks")
        write_launcher(env, Path(launcher), online=online, job=job, title=title)
        print_messages(next=shown("srun", launcher, "COMMAND"))
        return
    note_lost_names(call.environ)
    lines = run_lines(call.environment("ranks" if launcher else "run"), online=online)
    call.finish(render(title, lines), "container_run.py", command)
