"""The options of set_up.py."""

from __future__ import annotations

import click

from lib.cli import Call, script_options
from lib.script import render
from lib.setup import install_lines, update_lines

_MODES = ("install", "update", "save-patches")


@click.command(context_settings={"max_content_width": 100})
@click.argument("mode", type=click.Choice(_MODES), default=_MODES[0])
@click.option("--continue", "go_on", is_flag=True, help="With update: go on after a conflict.")
@click.option("--abort", is_flag=True, help="With update: back to exactly what was before.")
@script_options
def set_up(call: Call, mode: str, go_on: bool, abort: bool) -> None:
    r"""Set up what runs on top of the image.

    \b
    install       clone the repositories, and make the venv with the packages of the stack and of
                  requirements/environment.txt; what there is already is left alone
    update        move the repositories to what is configured, with your changes on top
    save-patches  write your changes in the repositories to patches/, for the group
    """
    if (go_on or abort) and mode != "update" or (go_on and abort):
        raise click.UsageError("--continue and --abort are two ways to go on with: update")
    typed = call.typed("set_up.py")
    if mode == "install":
        lines = install_lines(call.settings, call.paths, call.runtime().runtime)
    else:
        function = "save_all_series" if mode == "save-patches" else "update_repositories"
        function = "continue_update" if go_on else "abort_update" if abort else function
        lines = update_lines(call.settings, call.paths, function, typed)
    call.finish(render(call.title(f"set_up.py {mode}"), lines), "set_up.py")
