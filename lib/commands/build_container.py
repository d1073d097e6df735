"""The options of build_container.py."""

from __future__ import annotations

import click

from lib.commands import Invocation, command_line
from lib.commands.options import Mode, script_options
from lib.images.build import image_build_lines, image_download_lines
from lib.script.render import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 build_container.py download --machine jpb, on a laptop",
)
@click.argument("mode", type=Mode(["online", "download", "offline"]), default="online")
@click.option("--locked", is_flag=True, help="Require the digest that the previous build recorded.")
@click.option("--force", is_flag=True, help="Rebuild even if the image exists: a tag can move.")
@script_options
def build_container(invocation: Invocation, mode: str, locked: bool, force: bool) -> None:
    r"""Build the container image. Activate it with move_built_container_to_active.py.

    \b
    online     pull the image from a registry, or build it from a definition file
    download   save the image as an archive for --machine, on a machine with
               network access
    offline    build the image from that archive, without network access

    The source is container.image in configuration.toml, or by default the stack's image for the
    machine's GPUs.
    """
    if locked and mode == "offline":
        raise click.UsageError(
            "--locked cannot be used with offline: the archive determines the image"
        )
    given = {
        "locked": locked,
        "force": force,
        "command_line": command_line("build_container.py"),
    }
    paths = invocation.paths_here() if mode == "download" else invocation.paths
    env = invocation.environment(choice=invocation.builder(), paths=paths)
    if mode == "download":
        lines = image_download_lines(env, **given)
    else:
        offline = mode == "offline"
        lines = image_build_lines(env, offline=offline, **given)
    script = render(invocation.title(f"build_container.py {mode}"), lines)
    invocation.finish(script, "build_container.py")
