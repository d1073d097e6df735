"""The options of build_overlay.py."""

from __future__ import annotations

import sys

import click

from lib.commands import Invocation, command_line
from lib.commands.options import Mode, WrongCall, script_options
from lib.packages import overlay
from lib.packages.list import list_overlays, overlays_as_json
from lib.runtimes.packages import Packages
from lib.script.output import Report
from lib.script.render import render

_NAME = "build_overlay.py"


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 build_overlay.py && python3 container_run.py python train.py",
)
@click.argument("mode", type=Mode(["online", "download", "offline"]), default="online")
@click.argument("pip_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- PIP_OPTION...]")
@click.option(
    "--print-path", is_flag=True, help="Print the overlay's path, even if it is not built."
)
@click.option("--list", "show", is_flag=True, help="List all overlays and mark the active one.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@click.option(
    "--prune",
    is_flag=True,
    help="Delete all overlays but the active one and those of running jobs, after confirmation.",
)
@click.option("--yes", is_flag=True, help="With --prune: do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Rebuild even if it exists, to get newer packages.")
@script_options
def build_overlay(
    invocation: Invocation,
    mode: str,
    pip_options: tuple[str, ...],
    print_path: bool,
    show: bool,
    as_json: bool,
    prune: bool,
    yes: bool,
    force: bool,
) -> None:
    r"""Build an overlay: the Python packages in one SquashFS file, mounted at /user-software.

    \b
    online     install the packages on top of the active image, byte-compile and
               pack them
    download   download the packages for --machine, on a machine with network
               access
    offline    like online, from downloaded packages, without network access

    Set the name with packages.overlay in configuration.toml. The file name contains a checksum of
    the requirements, so changed requirements produce a new overlay and the old one is kept. The
    same requirements, lock file and image always produce the same file, byte for byte.

    A file or link that you put at that path is checked once and then used unchanged.
    """
    if sum((print_path, show, prune)) > 1:
        raise click.UsageError("--print-path, --list and --prune cannot be combined")
    if as_json and not show:
        raise click.UsageError("--json requires --list")
    if yes and not prune:
        raise click.UsageError("--yes requires --prune")
    if pip_options and (mode != "download" or "--" not in sys.argv):
        raise WrongCall(
            f'unexpected argument: "{pip_options[0]}"',
            "pass pip options after --: python3 build_overlay.py download -- OPTION...",
        )
    if print_path:
        packages = Packages(invocation.settings, invocation.paths)
        invocation.show(
            f"{_NAME} --print-path", lambda: Report(f"{overlay.overlay_link(packages)}\n")
        )
        return
    if show:
        report = overlays_as_json if as_json else list_overlays
        invocation.show(f"{_NAME} --list", lambda: report(invocation.environment()))
        return
    if prune:
        lines = overlay.overlay_prune_lines(invocation.settings, invocation.paths, asked=yes)
    elif mode == "download":
        here = invocation.paths_here()
        typed = command_line(_NAME)
        env = invocation.environment(choice=invocation.target_runtime(here), paths=here)
        lines = overlay.overlay_download_lines(env, typed)
    else:
        lines = overlay.overlay_build_lines(
            invocation.environment("set_up"),
            offline=mode == "offline",
            force=force,
            command_line=command_line(_NAME),
        )
    script = render(invocation.title(f"{_NAME} {mode}"), lines)
    invocation.finish(script, _NAME, pip_options)
