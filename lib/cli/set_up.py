"""The options of set_up.py."""

from __future__ import annotations

import sys

import click

from lib import setup
from lib.cli import Call, script_options
from lib.script import render

_LINES = {
    "install": setup.install_lines,
    "update": setup.update_lines,
    "offline": setup.offline_lines,
}


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python set_up.py download --machine jpb, on a laptop",
)
@click.argument("mode", type=click.Choice([*_LINES, "download"]), default="install")
@click.argument("pip_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- PIP_OPTION...]")
@script_options
def set_up(call: Call, mode: str, pip_options: tuple[str, ...]) -> None:
    r"""Set up what runs on top of the image.

    \b
    install    make the venv with the packages of the stack and of requirements/environment.txt;
               what is there already is left alone
    update     pin the newest versions of the packages, and say what changes
    download   fetch the packages, on a machine with network, for --machine
    offline    make the venv from what was downloaded, without network
    """
    if pip_options and (mode != "download" or "--" not in sys.argv):
        raise click.UsageError(
            f"what is {pip_options[0]}? Options of pip: python set_up.py download -- OPTION..."
        )
    if mode == "download":
        here = call.paths_here()
        runtime = call.runtime(here).runtime
        lines = setup.download_lines(call.settings, here, runtime, call.typed("set_up.py"))
    else:
        lines = _LINES[mode](call.settings, call.paths, call.runtime().runtime)
    call.finish(render(call.title(f"set_up.py {mode}"), lines), "set_up.py", pip_options)
