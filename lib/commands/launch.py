"""The launch by container_run.py, without click, whose import takes long."""

from __future__ import annotations

from lib.commands import Call, note_lost_names
from lib.runtimes.launch import run_lines
from lib.script.render import render

TITLE = "container_run.py; arguments: the command"


def launch(
    call: Call, command: tuple[str, ...], *, online: bool = False, purpose: str = "run"
) -> None:
    """Run a command, or an interactive shell, inside the environment in place of this process."""
    note_lost_names(call.environ)
    lines = run_lines(call.environment(purpose), online=online)
    call.finish(render(call.title(TITLE), lines), "container_run.py", command)
