"""The container runtimes that exist, found by listing lib/runtimes/ and the directories of extras/.

A runtime is a pair of files, NAME.py and NAME.bash; `lib/runtimes/runtime.py` says what they
contain. The module's line ENDINGS has its names in the configuration, and the ending of its images'
files for each. The line is read, not imported: a launch imports only its own runtime.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from lib import ROOT
from lib.script.errors import LongshipError, suggest

_LINE = re.compile(r"^ENDINGS = \{(.*)\}$", re.MULTILINE)
_ENDING = re.compile(r'"(\w+)": (?:"(\w*)"|None)')


class Known(NamedTuple):
    """A runtime: its module, and the ending of its images' files."""

    module: str
    ending: str | None  # empty: it has no images; None: it starts those of another runtime


def find_runtimes() -> Iterator[tuple[str, Known]]:
    """Yield the runtimes by name, those of the core first, so that a launch reads few files."""
    yield from _runtimes_in("lib/runtimes")
    extras = f"{ROOT}/extras"
    for each in sorted(os.listdir(extras)) if os.path.isdir(extras) else []:
        if os.path.isdir(f"{extras}/{each}"):
            yield from _runtimes_in(f"extras/{each}")


def _runtimes_in(directory: str) -> Iterator[tuple[str, Known]]:
    files = set(os.listdir(f"{ROOT}/{directory}"))
    for name in sorted(each[:-3] for each in files if each.endswith(".py")):
        if f"{name}.bash" in files:
            with open(f"{ROOT}/{directory}/{name}.py", encoding="utf-8") as file:
                line = _LINE.search(file.read())
            module = f"{directory.replace('/', '.')}.{name}"
            for each in _ENDING.finditer(line[1]) if line else ():
                yield each[1], Known(module, each[2])


def runtime_names() -> tuple[str, ...]:
    """Return the names that a configuration can contain."""
    return tuple(name for name, each in find_runtimes() if each.ending is not None)


@functools.cache
def known_runtime(name: str, file: str = "configuration.toml") -> Known:
    """Return the runtime that a file names; its extra can have been deleted."""
    for each, known in find_runtimes():
        if each == name:
            return known
    raise LongshipError(
        f"{file}: unknown container runtime: {name}", suggest(name, runtime_names())
    )
