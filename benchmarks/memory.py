"""How much memory processes take, and which processes a benchmark has started."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MEMORY = "/dev/shm"
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def adopt() -> None:
    """Stay the ancestor of all that is started, such as what serves a mount."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def bury() -> None:
    """Wait for what was adopted and has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def descendants(process: int) -> list[int]:
    """Return the processes that a process started, directly or through others."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, waiting = [], [process]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def mapped_bytes(process: int) -> int:
    """Return the bytes that a process maps, each divided by the number of those that map it.

    What is mapped from /dev/shm counts there.
    """
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    sizes = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
    return 1024 * sum(int(sizes.get(each, 0)) for each in ("Pss_Anon", "Pss_File"))


def bytes_in_memory() -> int:
    """Return what lies in /dev/shm."""
    state = os.statvfs(MEMORY)
    return (state.f_blocks - state.f_bfree) * state.f_frsize
