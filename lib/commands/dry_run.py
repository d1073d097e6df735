"""What --dry-run prints: a script and those that a job will run, or on a terminal their plans."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from lib.script.command import comment

_END_OF_PLAN = "\n}\n"


def print_scripts(script: str, later: Iterable[tuple[str, str]]) -> None:
    """Print the script of a command, and below it those that run later, each with where it runs.

    bash, which may read them from a pipe, ends after the first.
    """
    on_terminal = sys.stdout.isatty()
    shown, between = (_plan, "\n") if on_terminal else (str, "\nexit\n\n")
    texts = [shown(script), *(f"{_heading(where)}\n{shown(text)}" for where, text in later)]
    if on_terminal:
        texts.append(comment("to see the functions too, append to the command: | less") + "\n")
    sys.stdout.buffer.write(between.join(texts).encode(errors="surrogateescape"))


def _heading(where: str) -> str:
    return comment(f"{'=' * 20} {where}")


def _plan(script: str) -> str:
    """Return the plan of a script, and how many lines are left out below it."""
    plan, end, below = script.partition(_END_OF_PLAN)
    lines = below.count("\n")
    return f"{plan}{end}{comment(f'{lines} lines follow: the functions that it calls')}\n"
