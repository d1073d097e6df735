"""The files of a bundle: their names, links and checksums; all cores hash and copy them."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import BinaryIO, Callable

from lib.script.errors import LongshipError, check_owner, print_messages, write_error
from lib.script.worker import in_parallel, stopping


def is_inside(name: str) -> bool:
    """Tell whether a name is of a file below a directory, and can be stored in SHA256SUMS."""
    return not {"", ".", ".."} & set(name.split("/")) and not re.search(r"[\0-\x1f\x7f\\]", name)


def link_is_inside(name: str, target: str) -> bool:
    """Tell whether a link leads to something in the first directory of its name.

    Only leading .. are followed: after the name of another link they lead elsewhere.
    """
    depth = name.count("/") - 1
    while target == ".." or target.startswith(("../", "./")):
        depth -= target[1] == "."
        if depth < 0 or target == "..":
            return depth >= 0
        target = target.partition("/")[2]
    return is_inside(name) and is_inside(target[:-1] if target.endswith("/") else target)


def parents(name: str) -> list[str]:
    """Return the directories of a name, such as a and a/b of a/b/c."""
    return [name[: found.start()] for found in re.finditer("/", name)]


def is_regular(path: str) -> bool:
    """Tell whether a path is a file, and not a link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def read_lines(path: str) -> list[str]:
    """Return the complete lines of a file; none if it does not exist."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return os.fsdecode(file.read()).split("\n")[:-1]
    return []


def replace_file(path: str, lines: Iterable[str]) -> None:
    """Write a file of lines; at any moment it is the old one or the complete new one."""
    with open(f"{path}.partial", "wb") as file:
        file.writelines(os.fsencode(f"{line}\n") for line in lines)
    os.replace(f"{path}.partial", path)


def read_manifest(bundle: str) -> dict[str, str]:
    """Return the checksum of each file of a complete bundle."""
    if not os.path.isdir(bundle):
        hint = "name the directory that bundle.py pack has written"
        raise LongshipError(f"bundle not found: {bundle}", hint)
    path, sums = f"{bundle}/SHA256SUMS", {}
    reason = f"{path} is truncated" if is_regular(path) else f"not found: {path}"
    for line in read_lines(path):
        name = line[66:]
        if line == f"# {len(sums)} files in all":
            return sums
        if line.startswith("# "):
            break
        if not re.match("[0-9a-f]{64}  ", line):
            reason = f"{path}: not a checksum line: {quote(line)}"
            break
        if not is_inside(name) or name in sums:
            reason = f"{path}: invalid name: {quote(name)}"
            break
        sums[name] = line[:64]
    hint = "copy the bundle again; or, where it was packed, run the same pack again"
    raise LongshipError(f"the bundle is incomplete: {reason}", hint)


def read_links(bundle: str, names: Iterable[str]) -> dict[str, str]:
    """Return the links of a bundle; none leads out of it, and no file is named through one."""
    lines = [line.partition("\t") for line in read_lines(f"{bundle}/links")]
    links = {name: target for target, _, name in lines}
    wrong = [f"invalid link: {each}" for each in links if not link_is_inside(each, links[each])]
    for name in (*names, *links):
        if not links.keys().isdisjoint(parents(name)):
            wrong.append(f"path through a link: {name}")
    if wrong:
        message = f"the bundle is not trustworthy: {bundle}/links: {wrong[0]}"
        raise LongshipError(message, "delete it, then pack it again")
    return links


def walk(directory: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and kind (file, link or other) of everything below a directory."""
    try:
        entries = sorted(os.scandir(f"{directory}/{prefix}"), key=lambda each: each.name)
    except OSError as error:
        hint = f"run: chmod u+rx {quote(f'{directory}/{prefix}')}"
        raise LongshipError(f"cannot read the directory {directory}/{prefix}", hint) from error
    for entry in entries:
        name = prefix + entry.name
        if entry.is_symlink():
            yield name, "link"
        elif not entry.is_dir():
            yield name, "file" if entry.is_file() else "other"
        elif name != "lost+found":  # of ext4, readable for root only
            yield from walk(directory, f"{name}/")


def verify(bundle: str) -> int:
    """Compare every file of a bundle with its checksum; return how many there are.

    What packing has not put there is not judged, nor what Python has compiled: it is not unpacked.
    """
    sums = read_manifest(bundle)
    own = {name.partition("/")[0] for name in sums}
    found = {name: kind for name, kind in walk(bundle) if name.partition("/")[0] in own}
    hashed = hash_files(f"{bundle}/{name}" for name in sums if found.get(name) == "file")
    wrong = ["left by an interrupted pack: .partial"] * os.path.lexists(f"{bundle}/.partial")
    for name in sorted({*sums, *found}):
        kind, checksum = found.get(name, "missing"), hashed.get(f"{bundle}/{name}", "unreadable")
        if kind in ("link", "other"):
            wrong.append(f"unexpected, not a regular file: {quote(name)}")
        elif name in sums and checksum != sums[name]:
            told = kind if kind == "missing" else "corrupt" if len(checksum) == 64 else checksum
            wrong.append(f"{told}: {quote(name)}")
        elif name not in sums and "/__pycache__/" not in name:
            wrong.append(f"unexpected: {quote(name)}")
    for each in wrong:
        print_messages(**dict([each.split(": ", 1)]))
    if wrong:
        raise LongshipError(
            f"{len(wrong)} files of the bundle do not match their checksums: {bundle}",
            "delete the corrupt and unexpected files; then copy the bundle again "
            "(rsync -a --checksum), or run the same pack again",
        )
    read_links(bundle, sums)
    return len(sums)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program; stop if it is missing, or if git refuses to read another user's repository."""
    if not shutil.which(command[0]):
        hint = f"install {command[0]}, or load its module"
        raise LongshipError(f"{command[0]} not found", hint)
    encoding = {"encoding": sys.getfilesystemencoding(), "errors": "surrogateescape"}
    environ = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, env=environ, capture_output=True, check=False, **encoding)
    check_owner(done.stderr)
    return done


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the reason that a program gives for its failure."""
    return done.stderr.strip().rpartition("\n")[2]


def hash_files(paths: Iterable[str]) -> dict[str, str]:
    """Return the checksum of each of these files that can be read."""
    sums = {}

    def hash_one(path: str) -> None:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            sums[path] = _hash(file)

    _work(hash_one, {path: path for path in paths})
    return sums


def copy_files(
    sources: Mapping[str, str], temporary: str, record: Callable[[str, str], object] = max
) -> None:
    """Copy files, SOURCES by target, by way of a directory on the file system of the targets.

    A target is complete or does not exist. RECORD is called with it and its checksum before that.
    """

    def copy_one(target: str) -> None:
        partial = f"{temporary}/{threading.get_ident()}"
        try:
            record(target, _copy(sources[target], partial))
            with suppress(FileNotFoundError):
                return os.replace(partial, target)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(partial, target)
        except OSError as error:
            message = f"cannot copy {sources[target]} to {target}"
            hint = "fix the reason given, then run the same command again"
            raise write_error(temporary, message, hint, error) from error

    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    try:
        _work(copy_one, sources)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _work(function: Callable[[str], None], sources: Mapping[str, str]) -> None:
    """Call a function with each key by all cores, that of the largest file first."""
    errors: list[Exception] = []

    def size(item: str) -> int:
        with suppress(OSError):
            return os.stat(sources[item]).st_size
        return 0

    def call(item: str) -> None:
        try:
            if not errors and not stopping.is_set():
                function(item)
        except Exception as error:  # raised below, when no other thread works any more
            errors.append(error)

    items = sorted(sources, key=size, reverse=True)
    in_parallel(call, items, len(os.sched_getaffinity(0)), "files")
    if errors:
        raise errors[0]


def _copy(source: str, partial: str) -> str:
    """Copy a file with its time, and with its mode as the umask allows; return its checksum."""
    with open(source, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        mode = before.st_mode & 0o777 | 0o200
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT, mode), "wb") as copy:
            checksum = _hash(file, copy)
            copy.flush()
            os.utime(copy.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
        after = os.fstat(file.fileno())
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise OSError(errno.EBUSY, "it was modified while it was copied")
    return checksum


def _hash(file: BinaryIO, copy: BinaryIO | None = None) -> str:
    """Return the checksum of a file, and copy it on the way."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        if stopping.is_set():
            raise InterruptedError
        digest.update(buffer[:count])
        if copy:
            copy.write(buffer[:count])
    return digest.hexdigest()
