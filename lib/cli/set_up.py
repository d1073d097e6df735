"""The options of set_up.py."""

from __future__ import annotations

import sys

import click

from lib import setup
from lib.cli import Call, before_pip, script_options
from lib.cli.wrong_calls import Mode, WrongCall
from lib.script import render

_LINES = {
    "install": setup.install_lines,
    "update": setup.update_lines,
    "offline": setup.offline_lines,
}
_MODES = ("install", "update", "download", "offline", "save-patches")


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 set_up.py download --machine jpb, on a laptop",
)
@click.argument("mode", type=Mode(_MODES), default=_MODES[0])
@click.argument("pip_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- PIP_OPTION...]")
@click.option("--continue", "go_on", is_flag=True, help="update: go on after a conflict.")
@click.option("--abort", is_flag=True, help="update: back to exactly what was before.")
@script_options
def set_up(call: Call, mode: str, pip_options: tuple[str, ...], go_on: bool, abort: bool) -> None:
    r"""Set up what runs on top of the image: repositories, Python packages, models and datasets.

    \b
    install       clone the repositories, make the venv with the packages of the
                  stack and of requirements/environment.txt, fetch the assets;
                  what is there is left alone
    update        move the repositories to what is configured, with your changes
                  on top, lock the newest versions of the packages in
                  requirements/<stack>_<arch>.lock, and say what changes
    download      fetch all of it, on a machine with network, for --machine
    offline       set up all of it from what was downloaded, without network
    save-patches  write your changes in the repositories to patches/, for all

    An update that stops at a conflict is resolved with git's own commands in that repository; then
    `update --continue`. Your changes are saved before anything is touched.
    """
    if pip_options and (mode != "download" or "--" not in sys.argv):
        raise WrongCall(
            f'what is "{pip_options[0]}"?',
            "options of pip: python3 set_up.py download -- OPTION...",
        )
    if (go_on or abort) and (mode != "update" or (go_on and abort)):
        raise click.UsageError("--continue and --abort are two ways to go on with: update")
    if mode == "download":
        here = call.paths_here()
        typed = before_pip("set_up.py")
        lines = setup.download_lines(call.settings, here, call.runtime(here).runtime, typed)
    elif go_on or abort or mode == "save-patches":
        function = "continue_update" if go_on else "abort_update" if abort else "save_all_series"
        typed = call.typed("set_up.py")
        lines = setup.repositories_alone_lines(call.settings, call.paths, function, typed)
    else:
        lines = _LINES[mode](call.settings, call.paths, call.runtime().runtime)
    call.finish(render(call.title(f"set_up.py {mode}"), lines), "set_up.py", pip_options)
