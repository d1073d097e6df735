"""The check of faulty nodes, for doctor.py."""

from __future__ import annotations

from collections.abc import Iterator

from extras.nodes.nodes import described, faulty_nodes
from lib.configuration.layers import Settings
from lib.configuration.paths import derive_paths
from lib.script.errors import LongshipError
from lib.script.output import Finding, ok, warning


def findings(settings: Settings) -> Iterator[Finding]:
    """Report the nodes that submissions exclude, and files that cannot be read."""
    try:
        paths = derive_paths(settings)
    except LongshipError:  # a finding of the directories
        return
    known, problems = faulty_nodes(paths, settings.machine.name)
    if known:
        yield ok("nodes", f"excluded from submissions: {described(known)}")
    for each in problems:
        yield warning("nodes", str(each), each.hint)
