"""Scripts: the lines of one emitted bash script, with the functions of lib/ that they use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib import ROOT
from lib.script.command import Below, array, comment
from lib.script.errors import offline_commands

# In the bash files a definition starts at the left margin and a function ends with } there; above
# each definition is an empty line, and a comment belongs to the definition below it. A search for
# that line is five times as fast as one for the beginning of any line.
_DEFINITION = re.compile(
    r"\n\n((?:#.*\n)*"
    r"(?:(?P<function>\w+)\(\) \{\n(?:.*\n)*?\}(?=\n)"
    r"|(?:readonly|declare -g[aA]?) (?P<variable>\w+)=.+(?:\n.+)*))"
)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"^ *#.*", re.MULTILINE)


def render(title: str, lines: Iterable[str], *, sourced: bool = False) -> str:
    """Return a script that begins with its plan and needs no other file.

    The plan is ``longship_main``; the functions and constants that it uses follow, under the name
    of their file; the last line starts it. A variable that the caller exports under a name that
    could be the script's, in lower case, is kept for the program that the script starts. A job
    script sources a ``sourced`` script, and continues.
    """
    lines = list(lines)
    files = {path: definitions_of(path) for path in shell_files()}
    end = "exported_restore" if sourced else ""
    used = _used("\n".join(["exported_keep", *lines, end]), _joined(files.values()))
    parts = [
        f"#!/usr/bin/env bash\n{comment(title)}\nset -euo pipefail",
        f"longship_main() {{\n{_plan(lines)}\n}}",
        *(line for line in lines if isinstance(line, Below)),
    ]
    first, *others = sorted(files, key=lambda path: path.name != "exported.bash")
    below = [_part(path, files[path], used) for path in others]
    parts += [_part(first, files[first], used), "exported_keep", *below]
    if "longship_offline_commands" in used and offline_commands():
        parts.append(array("longship_offline_commands", offline_commands()))
    return "\n\n".join([*filter(None, parts), f'longship_main "$@"\n{end}'.rstrip()]) + "\n"


def _part(path: Path, known: Mapping[str, str], used: set[str]) -> str:
    """Return what is used of a file, under its name."""
    texts = [text for name, text in known.items() if name in used]
    return "\n\n".join([f"# ---------- {path.relative_to(ROOT)}", *texts]) if texts else ""


def shell_files() -> list[Path]:
    """Return the files that definitions are taken from, those of the core first."""
    return [
        path for each in ("lib", "extras") for path in sorted(Path(ROOT, each).glob("*/*.bash"))
    ]


def definitions() -> Mapping[str, str]:
    """Return every function and constant of the bash files by name, with the comment above it."""
    return _joined(map(definitions_of, shell_files()))


def _joined(files: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: text for known in files for name, text in known.items()}


def _used(plan: str, known: Mapping[str, str]) -> set[str]:
    """Return the names of the definitions that a text uses, directly or through others."""
    used: set[str] = set()
    waiting = [plan]
    while waiting:
        words = _WORD.findall(_COMMENT.sub("", waiting.pop()))
        for name in set(words) & (known.keys() - used):
            used.add(name)
            waiting.append(known[name])
    return used


def definitions_of(path: Path) -> dict[str, str]:
    """Return what a bash file defines, by name."""
    found = {}
    for match in _DEFINITION.finditer(path.read_text(encoding="utf-8")):
        found[match["function"] or match["variable"]] = match[1]
    return found


def _plan(lines: Iterable[str]) -> str:
    """Return the body of the plan: indented, with single empty lines between its steps."""
    plan: list[str] = []
    for line in lines:
        if isinstance(line, Below) or (not line and (not plan or not plan[-1])):
            continue
        # only where it begins: further lines can be those of a quoted text, which must stay
        plan.append(f"  {line}" if line else "")
    return "\n".join(plan).rstrip("\n")
