"""The nodes that members of a group have found faulty: a file for each node and member.

``nodes/MACHINE.USER_ID/NODE.json``, in the group's shared directory or the user's scratch
directory. Only that user writes to MACHINE.USER_ID. The newest word about a node counts, whoever
said it; without a reason it says that the node is in order again. So nobody needs to change or
delete a file of somebody else. They are data: other names than those of nodes are passed over.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from lib.configuration.paths import Paths
from lib.configuration.tables import find_files
from lib.script.errors import LongshipError
from lib.script.records import read_file
from lib.script.trust import name_of

_KEPT = timedelta(days=14)  # then a node is used again
_LONGEST = 60  # characters of what others have written, in a message
_SHOWN = 8  # nodes in a message
_FILE = re.compile(r"[^/]+[.][0-9]+/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.json")
_UNSAFE = re.compile("[^ -~]")  # ASCII alone is printed, and no control character


class Faulty(NamedTuple):
    """What somebody has said about a node."""

    node: str
    reason: str  # "" if it is in order again
    time: datetime
    run: str  # job ID
    user: str  # the owner of the file

    @property
    def words(self) -> str:
        """The reason, with its source."""
        return f"{self.reason}, {self.time.day} {self.time:%b}, run {self.run} of {self.user}"


def directories(paths: Paths) -> list[Path]:
    """Return the directories with what members have said: the group's, if it has one, first."""
    return [each / "nodes" for each in dict.fromkeys((paths.shared_dir, paths.scratch_dir))]


def directory_to_write(paths: Paths) -> Path:
    """Return the directory of the group, once its owner has made it, or else the user's."""
    shared, *own = directories(paths)
    return shared if not own or shared.is_dir() else own[0]


def faulty_nodes(paths: Paths, machine: str) -> tuple[list[Faulty], list[LongshipError]]:
    """Return the nodes of a machine that submissions exclude, and files that cannot be read."""
    newest: dict[str, Faulty] = {}
    problems = []
    for top in directories(paths):
        for file in find_files(top, f"{machine}.[0-9]*/*.json"):
            if not _FILE.fullmatch(str(file.relative_to(top))):
                continue
            try:
                found = _read(file)
            except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
                problems.append(_unreadable(file, error))
                continue
            told = (newest.get(found.node, found), found)
            newest[found.node] = max(told, key=lambda each: (each.time, not each.reason))
    after = datetime.now(timezone.utc) - _KEPT
    known = [each for _, each in sorted(newest.items()) if each.reason and each.time > after]
    return known, problems


def _read(file: Path) -> Faulty:
    values: Any = json.loads(read_file(file, 1 << 12, follow=False))
    reason, run, text = (_UNSAFE.sub("?", values[each]) for each in ("reason", "run", "time"))
    time = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    if time > datetime.now(timezone.utc) + timedelta(days=1):
        raise ValueError(f"its time is in the future: {text}")
    owner = name_of(file.lstat().st_uid)
    return Faulty(file.stem, reason[:_LONGEST], time, run[:_LONGEST], owner)


def _unreadable(file: Path, error: Exception) -> LongshipError:
    owner, remove = file.lstat().st_uid, shlex.join(["rm", str(file)])
    hint = f"run: {remove}" if owner == os.geteuid() else f"ask {name_of(owner)} to run: {remove}"
    return LongshipError(f"cannot read {file}, which excludes no node: {error}", hint)


def described(known: Sequence[Faulty]) -> str:
    """Return nodes with their reasons in one line."""
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(f"{each.node} ({each.words})" for each in known[:_SHOWN]) + more
