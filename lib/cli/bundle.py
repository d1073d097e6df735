"""The options of bundle.py."""

from __future__ import annotations

import sys

import click

from lib.bundle import pack_lines, unpack_lines, verify_lines
from lib.cli import Call, offered, script_options
from lib.cli.wrong_calls import Mode
from lib.command import call as shown
from lib.script import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 bundle.py pack /media/stick/longship --machine jpb, on a laptop",
)
@click.argument("mode", type=Mode(["pack", "verify", "unpack"]))
@click.argument("folder", metavar="DIR", shell_complete=offered("folder"))
@click.option("--no-history", is_flag=True, help="pack: the files of this repository alone.")
@click.option(
    "--allow",
    multiple=True,
    metavar="FILE",
    shell_complete=offered("file"),
    help="pack: FILE only looks like a secret; as the message names it below its folder.",
)
@click.option("--verified", is_flag=True, hidden=True)
@script_options
def bundle(
    call: Call, mode: str, folder: str, no_history: bool, allow: tuple[str, ...], verified: bool
) -> None:
    r"""One folder DIR with all that a machine without network needs.

    \b
    pack     write it, where there is a network: this repository with its
             history and your edits, and what `build_container.py download` and
             `set_up.py download` have fetched for --machine. Again after a
             change: only what has changed is written
    verify   look at every file of it, and name each that is bad, missing or
             unexpected
    unpack   verify it, and put the image, the packages, repositories and assets
             where the offline modes find them. What you have changed is kept,
             the new one put beside it

    Copy DIR as it is (rsync -a, a disk), then there: bash DIR/unpack.sh [FOLDER]. That verifies it,
    puts this repository into FOLDER, and unpacks the rest; it needs bash, coreutils and python3.

    Files that look like tokens or keys are refused; configuration.local.toml stays here.
    """
    if mode != "pack" and (no_history or allow):
        raise click.UsageError("--no-history and --allow are for pack")
    if mode != "unpack" and verified:
        raise click.UsageError("--verified is for unpack")
    typed = call.typed("bundle.py")
    if mode == "pack":
        lines = pack_lines(
            *(call.settings, call.paths_here(), folder),
            typed=typed,
            python=sys.executable,
            history=not no_history,
            allowed=allow,
        )
    elif mode == "verify":
        lines = verify_lines(folder, typed=typed)
    else:
        if verified:  # by unpack.sh, which the user has typed
            typed = shown("bash", f"{folder}/unpack.sh", call.settings.root)
        lines = unpack_lines(call.settings, call.paths, folder, typed=typed, verified=verified)
    call.finish(render(call.title(f"bundle.py {mode}"), lines), "bundle.py")
