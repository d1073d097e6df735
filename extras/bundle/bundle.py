"""The options of bundle.py."""

from __future__ import annotations

import click

from extras.bundle.plan import pack_lines, unpack_lines, verify_lines
from lib.commands import Invocation, command_line
from lib.commands.options import Mode, complete, script_options
from lib.script.render import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 bundle.py pack /media/stick/longship --machine jpb, on a laptop",
)
@click.argument("mode", type=Mode(["pack", "verify", "unpack"]))
@click.argument("directory", metavar="DIR", shell_complete=complete("directory"))
@click.option("--no-history", is_flag=True, help="With pack: leave out the git history.")
@click.option(
    "--allow",
    multiple=True,
    metavar="FILE",
    shell_complete=complete("file"),
    help="With pack: accept FILE, although it looks like a secret (path as in the error).",
)
@script_options
def bundle(
    invocation: Invocation, mode: str, directory: str, no_history: bool, allow: tuple[str, ...]
) -> None:
    r"""Pack, verify or unpack a bundle: everything that an air-gapped machine needs.

    \b
    pack     write the bundle to DIR, on a machine with network access: this
             repository with its history and your edits, and what
             `build_container.py download` and `set_up.py download` have fetched
             for --machine. Run it again to update: only changed files are written
    verify   check every file, and list the ones that are corrupt or missing
    unpack   install the image, packages, repositories and assets where the
             offline modes expect them; each file is checked

    Copy DIR unchanged (rsync -a, or on a disk), then run on that machine:
    bash DIR/unpack.sh [TARGET]. This verifies the bundle, puts this repository into TARGET, where
    it keeps the files that you have changed, and unpacks the rest; it requires bash, coreutils and
    python3.

    Packing stops at files that look like tokens or keys. configuration.local.toml is not packed.
    """
    if mode != "pack" and (no_history or allow):
        raise click.UsageError("--no-history and --allow require pack")
    typed, settings = command_line("bundle.py"), invocation.settings
    if mode == "pack":
        chosen = {"typed": typed, "history": not no_history, "allowed": allow}
        lines = pack_lines(settings, invocation.paths_here(), directory, **chosen)
    elif mode == "verify":
        lines = verify_lines(settings.root, directory, typed=typed)
    else:
        lines = unpack_lines(settings, invocation.paths, directory, typed=typed)
    invocation.finish(render(invocation.title(f"bundle.py {mode}"), lines), "bundle.py")
