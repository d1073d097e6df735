"""Scripts: the lines of one emitted bash script, with the functions of lib/shell/ they use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib import ROOT
from lib.command import comment

# In lib/shell/ a definition starts at the left margin and a function ends with } there; between
# two definitions stands an empty line, and comment lines belong to what follows them.
_DEFINITION = re.compile(
    r"((?:^#.*\n)*)"
    r"(^(?P<function>\w+)\(\) \{\n(?:.*\n)*?\}\n"
    r"|^(?:readonly|declare -[aA]) (?P<variable>\w+)=(?:.+\n)+)",
    re.MULTILINE,
)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"^ *#.*", re.MULTILINE)


def render(title: str, lines: Iterable[str]) -> str:
    """Write a script.

    Parameters
    ----------
    title : str
        What it is and how it is used, for its second line.
    lines : iterable of str
        What it does, from `lib.command`.

    Returns
    -------
    str
        Bash source that needs no other file.
    """
    body = "\n".join(lines)
    known = definitions()
    used = _used(body, known)
    parts = [
        f"#!/usr/bin/env bash\n{comment(title)}\nset -euo pipefail",
        *(text for name, text in known.items() if name in used),
        body,
    ]
    return "\n\n".join(parts) + "\n"


def shell_files() -> list[Path]:
    """Return the files that definitions are taken from."""
    return sorted(Path(ROOT, "lib", "shell").glob("*.bash"))


def definitions() -> Mapping[str, str]:
    """Read every function and constant of ``lib/shell/``, with the comment above it.

    Returns
    -------
    mapping
        Source by name, in the order of the files.
    """
    found = {}
    for path in shell_files():
        for match in _DEFINITION.finditer(path.read_text(encoding="utf-8")):
            found[match["function"] or match["variable"]] = match[0].rstrip()
    return found


def _used(body: str, known: Mapping[str, str]) -> set[str]:
    """Return the names that a text uses, directly or through other definitions."""
    used: set[str] = set()
    waiting = [body]
    while waiting:
        words = _WORD.findall(_COMMENT.sub("", waiting.pop()))
        for name in set(words) & (known.keys() - used):
            used.add(name)
            waiting.append(known[name])
    return used
