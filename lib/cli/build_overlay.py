"""The options of build_overlay.py."""

from __future__ import annotations

import sys

import click

from lib import overlay_builds
from lib.cli import Call, before_pip, script_options
from lib.cli.wrong_calls import Mode, WrongCall
from lib.script import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 build_overlay.py && python3 container_run.py python train.py",
)
@click.argument("mode", type=Mode(["online", "download", "offline"]), default="online")
@click.argument("pip_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- PIP_OPTION...]")
@click.option("--print-path", is_flag=True, help="Print the overlay's path, built or not.")
@click.option("--list", "show", is_flag=True, help="Show all overlays, and which is in use.")
@click.option("--json", "as_json", is_flag=True, help="--list: for a program.")
@click.option("--prune", is_flag=True, help="Delete those that nothing uses, after asking.")
@click.option("--yes", is_flag=True, help="--prune: do not ask.")
@click.option("--force", is_flag=True, help="Even if it is there: newer versions can be had.")
@script_options
def build_overlay(
    call: Call,
    mode: str,
    pip_options: tuple[str, ...],
    print_path: bool,
    show: bool,
    as_json: bool,
    prune: bool,
    yes: bool,
    force: bool,
) -> None:
    r"""Pack the Python packages into one file, which container_run.py mounts at /user-software.

    \b
    online     install them on top of the image in use, byte-compile and pack them
    download   fetch them, on a machine with network, for --machine
    offline    the same as online from what was downloaded, without network

    It has a name in configuration.toml: packages.overlay = "myenv". The file's name holds a
    checksum of the requirements, so after a change of them another one is built, and both stay.
    With the same requirements, lock and image everybody gets the same file, byte for byte.

    A file from elsewhere, or a link to one, that lies at that path is not built again: it is looked
    into once, and used as it is.
    """
    if sum((print_path, show, prune)) > 1:
        raise click.UsageError("--print-path, --list and --prune exclude each other")
    if as_json and not show:
        raise click.UsageError("--json is for --list")
    if yes and not prune:
        raise click.UsageError("--yes is for --prune")
    if pip_options and (mode != "download" or "--" not in sys.argv):
        raise WrongCall(
            f'what is "{pip_options[0]}"?',
            "options of pip: python3 build_overlay.py download -- OPTION...",
        )
    if print_path:
        click.echo(overlay_builds.overlay_link(call.settings, call.paths))
        return
    if show:
        given = call.settings, call.paths, call.runtime().runtime
        lines = overlay_builds.list_lines(*given, as_json=as_json)
    elif prune:
        lines = overlay_builds.prune_lines(call.settings, call.paths, asked=yes)
    elif mode == "download":
        here = call.paths_here()
        typed = before_pip("build_overlay.py")
        runtime = call.runtime(here).runtime
        lines = overlay_builds.download_lines(call.settings, here, runtime, typed)
    else:
        lines = overlay_builds.build_lines(
            *(call.settings, call.paths, call.runtime().runtime),
            offline=mode == "offline",
            again=force,
            typed=call.typed("build_overlay.py"),
        )
    script = render(call.title(f"build_overlay.py {mode}"), lines)
    call.finish(script, "build_overlay.py", pip_options)
