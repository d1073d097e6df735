"""The options of set_up.py."""

from __future__ import annotations

import click

from lib.cli import Call, script_options
from lib.script import render
from lib.setup import install_lines


@click.command(context_settings={"max_content_width": 100})
@click.argument("mode", type=click.Choice(["install"]), default="install")
@script_options
def set_up(call: Call, mode: str) -> None:
    r"""Set up what runs on top of the image.

    \b
    install    make the venv with the packages of the stack and of requirements/environment.txt;
               what is there already is left alone
    """
    lines = install_lines(call.settings, call.paths, call.runtime().runtime)
    call.finish(render(call.title(f"set_up.py {mode}"), lines), "set_up.py")
