"""The options of build_container.py."""

from __future__ import annotations

import click

from lib.builds import offline_lines, online_lines
from lib.cli import Call, script_options
from lib.cli.wrong_calls import Mode
from lib.downloads import download_lines
from lib.images import image_source
from lib.records import recorded_digest
from lib.script import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 build_container.py download --machine jpb, on a laptop",
)
@click.argument("mode", type=Mode(["online", "download", "offline"]), default="online")
@click.option("--locked", is_flag=True, help="Only at the digest that was recorded last time.")
@click.option("--force", is_flag=True, help="Even if it is there: a tag can have moved.")
@script_options
def build_container(call: Call, mode: str, locked: bool, force: bool) -> None:
    r"""Make the image; move_built_container_to_active.py puts it in use.

    \b
    online     fetch it from its registry, or build it from its definition file
    download   fetch it as an archive, on a machine with network, for --machine
    offline    make it from that archive, without network

    Where it comes from is container.image in configuration.toml, else the stack's image for the
    machine's GPUs.
    """
    if locked and mode == "offline":
        raise click.UsageError("offline makes what the archive holds: leave --locked out")
    settings, runtime = call.settings, call.builder().runtime
    given = {"again": force, "typed": call.typed("build_container.py")}
    paths = call.paths_here() if mode == "download" else call.paths
    if mode == "offline":
        lines = offline_lines(settings, paths, runtime, **given)
    else:
        digest = recorded_digest(runtime, image_source(settings), paths) if locked else ""
        make = online_lines if mode == "online" else download_lines
        lines = make(settings, paths, runtime, digest=digest, **given)
    script = render(call.title(f"build_container.py {mode}"), lines)
    call.finish(script, "build_container.py")
