"""Patched files, which replace files of the image: the lines that notice a changed original.

A launch only binds them (`lib.runtimes.contract.patched_files`).
"""

from __future__ import annotations

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.runtimes.contract import patched_files
from lib.runtimes.environment import IMAGE
from lib.script.command import assign, call, wrapped
from lib.script.quoting import Word


def check_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that compare the image's files with the originals of ours.

    The variable ``image`` names the image; there are no lines if no file is replaced.
    """
    if not patched_files(settings, paths):
        return []
    if runtime == "host":
        return [call("note", "container.patched_files has no effect with the runtime host")]
    return [assign("runtime", runtime), *compare_lines(settings, paths, IMAGE)]


def compare_lines(settings: Settings, paths: Paths, image: Word) -> list[str]:
    """Return the line that compares them."""
    words = [word for each in patched_files(settings, paths) for word in (each.source, each.target)]
    return [wrapped("check_patched_files", image, *words)] if words else []
