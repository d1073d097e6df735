"""Read traces of strace: the files that a command and its children access.

The traces are written by ``strace -ff -y -o DIR/process`` with the calls of `CALLS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PATH_CALLS = (
    *("open", "openat", "openat2", "stat", "lstat", "newfstatat", "statx", "statfs", "access"),
    *("faccessat", "faccessat2", "readlink", "readlinkat", "getdents", "getdents64", "execve"),
)
READ_CALLS = ("read", "pread64", "readv", "preadv", "preadv2")
FORKS = ("clone", "clone3", "fork", "vfork")
# ?: only if this call exists
CALLS = ",".join(f"?{each}" for each in (*PATH_CALLS, *READ_CALLS, *FORKS, "mmap"))
STRACE = ("strace", "-ff", "-qq", "-y", "--seccomp-bpf", "-e", f"trace={CALLS}")

# openat(AT_FDCWD</folder>, "path", O_RDONLY) = 3</folder/path>; strace -y writes the parts in < >
_CALL = re.compile(r'(?P<name>\w+)\((?:\w+<(?P<at>[^>]*)>(?:, )?)?(?:"(?P<path>[^"]*)")?')
_OPENED = re.compile(r" = \d+<(?P<path>[^>]*)>$")
_MAPPED = re.compile(r"mmap\([^,]*, (?P<size>\d+), .*, \d+<(?P<path>[^>]*)>, ")
_RETURNED = re.compile(r" = (?P<value>\d+)(?:<[^>]*>)?$")
_AT = re.compile(r", (?P<offset>\d+)\) += \d+$")
# Apptainer, the launcher's last program, starts the command: later paths are those of the image.
_INSIDE = 'execve("/bin/sh", ["/bin/sh", "-c", '


class Call(NamedTuple):
    """One system call.

    Parameters
    ----------
    name : str
        Name of the call.
    paths : tuple of str
        Its paths; empty for a stat of a descriptor.
    size : int
        Bytes read or mapped.
    offset : int
        Their offset in the file; -1 if the call has none.
    inside : bool
        True for a process of the container.
    failed : bool
        True if the call returned an error.
    """

    name: str
    paths: tuple[str, ...]
    size: int = 0
    offset: int = -1
    inside: bool = False
    failed: bool = False


def calls(folder: Path) -> Iterator[Call]:
    """Read the traces of all processes, and mark those of the container."""
    texts = {
        int(file.name.rpartition(".")[2]): file.read_text(encoding="utf-8", errors="replace")
        for file in folder.iterdir()
    }
    children = {child for text in texts.values() for child in map(_child, text.splitlines())}
    waiting = [(process, False) for process in sorted(texts.keys() - children)]
    while waiting:
        process, inside = waiting.pop()
        for line in texts.pop(process, "").splitlines():
            inside = inside or (line.startswith(_INSIDE) and line.endswith(" = 0"))
            if child := _child(line):
                waiting.append((child, inside))
            elif call := parse(line):
                yield call._replace(inside=inside)


def parse(line: str) -> Call | None:
    """Read one line; return None if the call is not about a file."""
    call, opened = _CALL.match(line), _OPENED.search(line)
    if not call:
        return None
    name, failed = call["name"], " = -1 E" in line
    if name == "mmap":
        mapped = _MAPPED.match(line)
        return Call(name, (mapped["path"],), int(mapped["size"])) if mapped else None
    if name in READ_CALLS:
        returned, at = _RETURNED.search(line), _AT.search(line)
        offset = int(at["offset"]) if at and name != "read" else -1
        return Call(name, (call["at"] or "",), int(returned["value"]) if returned else 0, offset)
    if name in ("getdents", "getdents64"):
        return Call(name, (call["at"] or "",))
    if name in FORKS or not call["path"]:
        return None
    path = os.path.normpath(os.path.join(call["at"] or "", call["path"]))
    return Call(name, (path, *((opened["path"],) if opened else ())), failed=failed)


def programs(found: Iterable[Call]) -> list[str]:
    """Return the programs that were started outside of the container."""
    started = (each for each in found if each.name == "execve" and not each.failed)
    return [each.paths[0] for each in started if not each.inside]


def below(paths: Sequence[str], folders: Iterable[str]) -> bool:
    """Tell whether one of the paths is one of the directories or is in one."""
    return any(f"{path}/".startswith(f"{folder}/") for path in paths for folder in folders)


def distinct_bytes(reads: Iterable[Call]) -> int:
    """Return the number of different bytes that reads with an offset requested."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for each in reads:
        if each.offset >= 0:
            ranges.setdefault(each.paths[0], []).append((each.offset, each.offset + each.size))
    return sum(map(_covered, ranges.values()))


def whole_bytes(found: Iterable[Call]) -> int:
    """Return an upper bound of the bytes read or mapped, each file counted once."""
    sizes: dict[tuple[str, bool], int] = {}
    for call in found:
        key = (call.paths[0], call.name == "mmap")
        sizes[key] = max(sizes.get(key, 0), call.size) if key[1] else sizes.get(key, 0) + call.size
    files = {path for path, _ in sizes}
    return sum(max(sizes.get((path, mapped), 0) for mapped in (True, False)) for path in files)


def _covered(ranges: list[tuple[int, int]]) -> int:
    total = end = 0
    for low, high in sorted(ranges):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total


def _child(line: str) -> int:
    returned = _RETURNED.search(line)
    is_fork = line.startswith(tuple(f"{each}(" for each in FORKS))
    return int(returned["value"]) if is_fork and returned else 0
