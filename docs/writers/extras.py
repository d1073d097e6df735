"""extras.md: the features that can be deleted, from their directories."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from lib import ROOT
from lib.commands.verbs import find_scripts, find_verbs, load_verb
from writers.markdown import code, first_line, page, table

_INTRO = """\
Longship has a core, `lib/`, and features around it: each directory of `extras/` contains the code
and the tests of one. Delete those that you do not use; everything else works as before, and
`rm -r extras` leaves a working Longship. `git checkout -- extras` restores them."""

_ADD = """\
To add one, make a directory. These files in it are found, without any registration:
`SCRIPT_VERB.py` with a click command is a verb of that entry script; `SCRIPT.py` is the
command of an entry script; `check.py` with `findings(settings)` is a check of `doctor.py`; and any
script can use the functions of `*.bash`. An extra imports from `lib/`, never from another one."""


def extras_page() -> str:
    """Return the page."""
    head = ("extra", "commands", "lines", "to delete it")
    return page("Extras", _INTRO, table(head, _rows()), _ADD)


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for path in sorted(Path(ROOT).glob("extras/*/__init__.py")):
        directory = path.parent
        extra = importlib.import_module(f"extras.{directory.name}")
        about = first_line(extra)
        guide = re.search(r"docs/((?:how-to|explanation)/\S+)", extra.__doc__ or "")
        if guide:
            about = f"[{about}](../{guide[1]})"
        scripts = [f"{each}.py" for each in find_scripts() if (directory / f"{each}.py").exists()]
        commands = ", ".join(map(code, [*scripts, *_verbs(directory)]))
        deleted = " ".join(["rm -r", f"extras/{directory.name}", *scripts])
        yield f"`{directory.name}`: {about}", commands, f"{_lines(directory):,}", code(deleted)


def _verbs(directory: Path) -> Iterator[str]:
    for script in find_scripts():
        for name, file in find_verbs(script).items():
            if file.parent == directory and not load_verb(name, file).hidden:
                yield f"{script}.py {name}"


def _lines(directory: Path) -> int:
    """Return about how many lines of code there are, without tests."""
    files = [each for each in directory.rglob("*") if each.suffix in (".py", ".bash", ".sh")]
    files = [each for each in files if "tests" not in each.parts]
    return max(50, round(sum(each.read_bytes().count(b"\n") for each in files) / 50) * 50)
