"""The verb `doctor.py nodes`."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from extras.nodes.nodes import directory_to_write, faulty_nodes
from lib.commands import Invocation
from lib.commands.options import script_options
from lib.script.command import call
from lib.script.errors import LongshipError, print_messages
from lib.script.output import Report
from lib.script.render import render


@click.command(epilog="Example: python3 doctor.py nodes --remove nid001234")
@click.option("--remove", metavar="NODE", default="", help="Do not exclude NODE any more.")
@script_options
def nodes(invocation: Invocation, remove: str) -> None:
    """List the nodes that submissions exclude, because a job has found them faulty.

    With --remove: use a node again, in the submissions of all members of the group.
    """
    machine = invocation.settings.machine.name
    known, problems = faulty_nodes(invocation.paths, machine)
    if not remove:
        for each in problems:
            print_messages(warning=str(each), hint=each.hint)
        text = "".join(f"{each.node}  {each.words}\n" for each in known)
        text = text or f"no node of {machine} is excluded\n"
        invocation.show("doctor.py nodes", lambda: Report(text))
        return
    if remove not in [each.node for each in known]:
        raise LongshipError(
            f"{remove} is not excluded on {machine}", "run: python3 doctor.py nodes"
        )
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    lines = [
        call("nodes_write", directory_to_write(invocation.paths), machine, remove, now, "", ""),
        call("note", f"{remove} is no longer excluded"),
    ]
    invocation.finish(render(invocation.title("doctor.py nodes"), lines), "doctor.py")
