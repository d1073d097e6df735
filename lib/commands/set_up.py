"""The options of set_up.py."""

from __future__ import annotations

import sys

import click

from lib.commands import Invocation, command_line
from lib.commands.options import Mode, WrongCall, script_options
from lib.commands.verbs import WithVerbs
from lib.packages import set_up as steps
from lib.script.render import render

_MODES = ("install", "update", "download", "offline", "save-patches")


@click.command(
    cls=WithVerbs,
    context_settings={"max_content_width": 100},
    epilog="Example: python3 set_up.py download --machine jpb, on a laptop",
)
@click.argument("mode", type=Mode(_MODES), default=_MODES[0])
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NAME...|-- PIP_OPTION...]")
@click.option("--continue", "go_on", is_flag=True, help="With update: continue after a conflict.")
@click.option("--abort", is_flag=True, help="With update: cancel it; nothing is changed.")
@click.option("--force", is_flag=True, help="With install, offline: rebuild the venv.")
@script_options
def set_up(
    invocation: Invocation,
    mode: str,
    words: tuple[str, ...],
    go_on: bool,
    abort: bool,
    force: bool,
) -> None:
    r"""Install repositories, Python packages, models and datasets on top of the image.

    \b
    install       clone the repositories, build the venv from the requirements of
                  the stack, and download the assets; existing ones are left
                  unchanged
    update        update the repositories to the configured versions, replay your
                  changes, lock the newest versions of the packages in
                  requirements/<stack>_<arch>.lock, and report what changed; with
                  names, only these repositories, or `packages`
    download      download everything for --machine, on a machine with network
                  access
    offline       set up everything from the download, without network access
    save-patches  save your changes in the repositories to patches/, to share with
                  the group

    Local changes are saved first. If an update stops at a conflict, resolve the conflict with git
    in the directory that the error names, then run `set_up.py update --continue`.
    """
    if words and mode != "update" and (mode != "download" or "--" not in sys.argv):
        raise WrongCall(
            f'unexpected argument: "{words[0]}"',
            "pass pip options after --: python3 set_up.py download -- OPTION...",
        )
    if (go_on or abort) and (mode != "update" or (go_on and abort)):
        raise click.UsageError("use either --continue or --abort, and only with update")
    if force and mode not in ("install", "offline"):
        raise click.UsageError("use --force only with install or offline")
    if words and (go_on or abort):
        raise WrongCall(
            "--continue and --abort are for all repositories that an update has stopped in",
            f"leave out {' '.join(words)}; to give up one of several, resolve the others first",
        )
    typed = command_line("set_up.py")
    if mode == "download":
        here = invocation.paths_here()
        env = invocation.environment(choice=invocation.target_runtime(here), paths=here)
        lines = steps.download_lines(env, typed)
    elif go_on or abort or mode == "save-patches":
        action = "continue" if go_on else "abort" if abort else "save-patches"
        lines = steps.repositories_alone_lines(invocation.settings, invocation.paths, action, typed)
    elif mode == "update":
        lines = steps.update_lines(invocation.environment("set_up"), typed, words)
    else:
        env = invocation.environment("set_up")
        lines = steps.install_lines(env, typed, force=force, offline=mode == "offline")
    invocation.finish(
        render(invocation.title(f"set_up.py {mode}"), lines),
        "set_up.py",
        words if mode == "download" else (),
    )
