"""The runtime host: no container, the machine as it is."""

from __future__ import annotations

from lib.launch import Launch
from lib.quoting import Expansion, Word


def prepare(launch: Launch) -> list[str]:
    """Return no lines: everything is visible already."""
    return []


def words(launch: Launch) -> list[Word]:
    """Return the words in front of the user's command."""
    return ["/bin/sh", "-c", Expansion('"$contract"'), "longship"]
