"""Trust in a file that decides what runs: nobody else can have written it.

`private.bash` has the same rule for the directories of an emitted script.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from lib.script.errors import LongshipError
from lib.script.records import LARGEST, read_file

DIGITS = 32  # of a checksum in a file's name: nobody can make another file of the same one
_LINKS = 40  # on the way to a file, as many as Linux follows


def is_own(path: Path) -> bool:
    """Tell whether a file or directory, no link, is the user's, and others cannot write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not _is_open(found)


def is_closed(directory: Path) -> bool:
    """Tell whether a directory is the user's, and nobody else can enter it."""
    try:
        found = directory.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def is_reachable(directory: Path) -> bool:
    """Tell whether others can enter a directory: none on the way to it is closed."""
    real = Path(os.path.realpath(directory))
    return not any(map(is_closed, (real, *real.parents)))


def check_closed(directory: Path) -> None:
    """Stop if others can enter a directory into which programs write what runs."""
    if directory.exists() and not is_closed(directory):
        raise LongshipError(
            f"other users can enter {directory}, in which programs write what you run",
            "delete what others may have changed in it, and run: "
            f"{shlex.join(['chmod', 'go=', str(directory)])}",
        )


def check_trusted(path: Path, top: Path, owner: str = "", hint: str = "") -> None:
    """Stop if somebody else can change a path, or a directory on the way to it from ``top``.

    Somebody else is neither the user nor root nor the ``owner``, a login name. Links on the way to
    ``top`` are theirs too. The mode of a file with an ACL contains what the ACL gives to others. A
    missing path is reported where it is used. The hint is for files that only their author can
    replace; the default is to close the path.
    """
    trusted = {0, os.geteuid(), *_uid_of(owner)}
    for each in links_on_the_way(top):
        _check(each, each.lstat(), trusted, hint)
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


def links_on_the_way(path: Path) -> Iterator[Path]:
    """Yield each link on the way to a path, and those on the way to where they lead."""
    place, rest, found = Path("/"), [*path.parts[1:]], 0
    while rest and found < _LINKS:
        part = rest.pop(0)
        if part == "..":
            place = place.parent
        elif os.path.islink(place / part):
            found += 1
            yield place / part
            target = Path(os.readlink(place / part))
            place = Path("/") if target.is_absolute() else place
            rest = [*target.parts[target.is_absolute() :], *rest]
        else:
            place /= part


def open_parents(path: Path) -> list[Path]:
    """Return the directories above a path in which others can put another one in its place.

    In a sticky directory, such as /tmp, they cannot.
    """
    found = []
    for each in Path(os.path.realpath(path)).parents:
        with suppress(OSError):
            seen = each.stat()
            if _is_open(seen) and not seen.st_mode & stat.S_ISVTX:
                found.append(each)
    return found


def read_named(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file; stop if its name is a checksum, and not that of the content."""
    content = read_file(path, most)
    if re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", path.stem):
        import hashlib  # 5 ms that only the start of a job needs

        if not hashlib.sha256(content).hexdigest().startswith(path.stem):
            raise LongshipError(
                f"{path} is not the file that was submitted: it has another checksum",
                "submit the job again",
            )
    return content


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
