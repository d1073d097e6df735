"""Trust in a file that decides what runs: nobody else can have written it."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lib.script.errors import LongshipError


def is_own(path: Path) -> bool:
    """Tell whether a file or directory, no link, is the user's, and others cannot write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not _is_open(found)


def check_trusted(path: Path, top: Path, owner: str = "", hint: str = "") -> None:
    """Stop if somebody else can change a path, or a directory on the way to it from ``top``.

    Somebody else is neither the user nor root nor the ``owner``, a login name. The mode of a file
    with an ACL contains what the ACL gives to others. A missing path is reported where it is used.
    The hint is for files that only their author can replace; the default is to close the path.
    """
    trusted = {0, os.geteuid(), *_uid_of(owner)}
    for each in (top, *(top / each for each in _steps(path, top))):
        for found in _stats_of(each):
            _check(each, found, trusted, hint)


def _check(path: Path, found: os.stat_result, trusted: set[int], hint: str) -> None:
    if found.st_uid not in trusted:
        raise LongshipError(
            f"{path} belongs to {name_of(found.st_uid)}, who would decide what you run",
            hint or "use files of your own; or name the member who builds them: paths.shared_owner",
        )
    if _is_open(found):
        command = shlex.join(["chmod", "go-w", str(path)])
        asked = "" if found.st_uid == os.geteuid() else f"ask {name_of(found.st_uid)} to "
        raise LongshipError(
            f"other users can write to {path}, and would decide what you run",
            hint or f"{asked}delete what others may have changed in it, and run: {command}",
        )


def _stats_of(path: Path) -> Iterable[os.stat_result]:
    """Return what the path is, and the directory that it leads to; nothing if it is missing.

    A link to a file, such as an image of the site, says that its owner trusts that file.
    """
    with suppress(OSError):
        yield path.lstat()
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            yield found


def refuse_default_acl(directory: Path) -> None:
    """Stop if an ACL of the user's directory, and no umask, decides who can write to new files."""
    with suppress(OSError):
        if directory.stat().st_uid != os.geteuid():
            return
        os.getxattr(directory, "system.posix_acl_default")
        raise LongshipError(
            f"the default ACL of {directory} lets others write to new files",
            f"run: {shlex.join(['setfacl', '-k', str(directory)])}",
        )


def _steps(path: Path, top: Path) -> Iterable[Path]:
    """Return the directories between, the highest first, and the path itself."""
    relative = path.relative_to(top)
    return [*reversed(list(relative.parents)[:-1]), relative] if relative.parts else []


def _is_open(found: os.stat_result) -> bool:
    """Tell whether others can write to it; the mode of a link means nothing."""
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _uid_of(owner: str) -> list[int]:
    if not owner:
        return []
    try:
        return [pwd.getpwnam(owner).pw_uid]
    except KeyError as error:
        raise LongshipError(
            f'paths.shared_owner: no user of this machine has the login name "{owner}"',
            "write the login name of the member who builds in paths.shared_dir",
        ) from error


def name_of(uid: int) -> str:
    """Return the login name of a user, or the number of one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
