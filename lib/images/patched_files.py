"""Patched files, which replace files of the image: the lines that notice a changed original.

A launch only binds them (`lib.runtimes.contract.patched_files`).
"""

from __future__ import annotations

from lib.runtimes.environment import IMAGE, Environment
from lib.script.command import assign, call, wrapped
from lib.script.quoting import Word


def check_lines(env: Environment) -> list[str]:
    """Return the lines that compare the image's files with the originals of ours.

    The variable ``image`` names the image; there are no lines if no file is replaced.
    """
    if not env.patched_files:
        return []
    if env.runtime == "host":
        return [call("note", "container.patched_files has no effect with the runtime host")]
    return [assign("runtime", env.runtime), *compare_lines(env, IMAGE)]


def compare_lines(env: Environment, image: Word) -> list[str]:
    """Return the line that compares them."""
    words = [word for each in env.patched_files for word in (each.source, each.target)]
    return [wrapped("patched_files_check", image, *words)] if words else []
