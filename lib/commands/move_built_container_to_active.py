"""The options of move_built_container_to_active.py."""

from __future__ import annotations

import click

from lib.commands import Invocation, command_line
from lib.commands.options import script_options
from lib.images import versions
from lib.images.list import images_as_json, list_images
from lib.runtimes.packages import SET_UP_COMMAND
from lib.script.render import render

_NAME = "move_built_container_to_active.py"


@click.command(context_settings={"max_content_width": 100})
@click.option("--list", "show", is_flag=True, help="List all versions and mark the active one.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@click.option("--rollback", is_flag=True, help="Activate the previously active version.")
@click.option(
    "--use",
    metavar="VERSION",
    help="Activate VERSION, as shown by --list.",
)
@click.option("--prune", is_flag=True, help="Delete inactive versions that no job has pinned.")
@script_options
def move_built_container_to_active(
    invocation: Invocation, show: bool, as_json: bool, rollback: bool, use: str | None, prune: bool
) -> None:
    """Verify the new image and make it the active image.

    The previous image is kept as a version. Running jobs keep the image they started with.
    """
    if sum(map(bool, (show, rollback, use is not None, prune))) > 1:
        raise click.UsageError("--list, --rollback, --use and --prune cannot be combined")
    if as_json and not show:
        raise click.UsageError("--json requires --list")
    if show:
        report = images_as_json if as_json else list_images
        invocation.show(
            f"{_NAME} --list", lambda: report(invocation.environment(choice=invocation.builder()))
        )
        return
    env = invocation.environment(choice=invocation.builder())
    following = env.packages.steps or [env.settings.command(*SET_UP_COMMAND)]
    if rollback or use is not None:
        lines = versions.use_lines(env, following, use)
    elif prune:
        lines = versions.image_prune_lines(env)
    else:
        lines = versions.move_lines(env, command_line(_NAME), following)
    invocation.finish(render(invocation.title(_NAME), lines), _NAME)
