"""The runtime host: no container, the machine itself."""

from __future__ import annotations

from pathlib import Path

from lib.runtimes.contract import SHELL
from lib.runtimes.environment import Environment, overlay_lines
from lib.script.quoting import Word

ENDINGS = {"host": ""}
SOURCES = ()
IN_STORE = DAEMON = False


def build(env: Environment, tag: str, work: Path) -> list[str]:
    """Return no lines: there is no image."""
    return []


def answers(env: Environment) -> list[Word]:
    """Return the command that answers questions about images."""
    return []


def check(env: Environment) -> list[str]:
    """Return no lines: there is no image."""
    return []


def options(env: Environment) -> list[str]:
    """Return the lines that unpack the overlay; there are no options."""
    return overlay_lines(env, "overlay_unpack")


def command_prefix(env: Environment) -> list[Word]:
    """Return the arguments before the user's command."""
    return [*SHELL]


def start_probe(program: str, image: str) -> list[str]:
    """Return a command that succeeds: the machine itself always runs programs."""
    return ["true"]
