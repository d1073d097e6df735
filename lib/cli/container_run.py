"""The options of container_run.py."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lib import ROOT, remembered
from lib.cli import Call, offered, script_options
from lib.command import call as shown
from lib.container import run_lines
from lib.errors import print_messages
from lib.images import image_source
from lib.launchers import write_launcher
from lib.overlays import configured_overlay, requirements_file
from lib.packages import wanted_venv
from lib.script import render, shell_files


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
    choice = call.runtime()
    title = call.title("container_run.py; arguments: the command")
    given = call.settings, call.paths, choice.runtime
    if launcher and not call.dry_run:
        job = call.environ.get("SLURM_JOB_ID", "")
        write_launcher(*given, Path(launcher), online=online, job=job, title=title)
        print_messages(next=shown("srun", launcher, "COMMAND"))
        return
    venv = wanted_venv(call.settings, call.paths)
    lines = run_lines(*given, online=online, venv=venv, for_ranks=bool(launcher))
    script = render(title, lines)
    if choice.lasting and sys.argv[1:] == list(command):  # what an option says is for one call
        remembered.remember(script, call.environ.seen, _looked_at(call, choice.runtime))
    call.finish(script, "container_run.py", command)


def _looked_at(call: Call, runtime: str) -> list[str]:
    """Return every file and folder that a launch depends on."""
    own = [ROOT + "/lib", ROOT + "/lib/cli", ROOT + "/lib/shell", *map(str, shell_files())]
    own += map(str, sorted(Path(ROOT, "lib").glob("**/*.py")))
    search = call.environ.get("PATH", "").split(":")
    links = [str(call.paths.venv), str(call.paths.containers), "/dev/nvidiactl"]
    overlay = configured_overlay(call.settings, call.paths)
    if overlay:
        links += [str(requirements_file(call.settings)), str(overlay.parent)]
    if runtime != "host":
        links.append(
            image_source(call.settings).address
        )  # a file of the site, or an address: no file
    return [*call.settings.files, *own, *search, *links]
