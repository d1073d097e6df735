"""The runtime host: no container, the machine itself."""

from __future__ import annotations

from lib.runtimes.launch import Launch
from lib.script.quoting import Expansion, Word


def prepare(launch: Launch) -> list[str]:
    """Return the lines that unpack the overlay; nothing else is needed."""
    return launch.overlay_lines("unpack_overlay")


def check(launch: Launch) -> list[str]:
    """Return no lines: there is no image."""
    return []


def words(launch: Launch) -> list[Word]:
    """Return the words before the user's command."""
    return ["/bin/sh", "-c", Expansion('"$longship_contract"'), "longship"]
