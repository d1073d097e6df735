"""Patched files, compared with their originals in an image."""

from __future__ import annotations

from lib.runtimes.environment import IMAGE, Environment
from lib.runtimes.runtime import answer_lines
from lib.script.command import call, wrapped
from lib.script.quoting import Word


def check_patched_files(env: Environment) -> list[str]:
    """Return the lines that compare the originals of patched files with those of ``image``."""
    if env.runtime != "host":
        compared = compare_patched_files(env, IMAGE)
        return [*answer_lines(env), *compared] if compared else []
    text = "container.patched_files has no effect with the runtime host"
    return [call("note", text)] if env.patched_files else []


def compare_patched_files(env: Environment, image: Word) -> list[str]:
    """Return the lines that notice if an image has another original of a patched file."""
    words = [(each.source, each.target) for each in env.patched_files]
    return [wrapped("patched_file_check", image, *each) for each in words]
