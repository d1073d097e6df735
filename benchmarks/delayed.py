#!/usr/bin/env python3
"""Mount a directory whose file system answers late, as a loaded parallel file system does.

    python3 benchmarks/delayed.py DIR MILLISECONDS

DIR is mounted read-only over itself until it is unmounted. Each operation that reaches this process
waits; those that the kernel answers do not, so the operations are counted here, and their numbers
are printed as JSON at the end. Each mount begins with empty caches, as a node that has read nothing
yet; then the kernel keeps what it has read, as it does for a parallel file system.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import mfusepy

TIMES = ("st_atime", "st_mtime", "st_ctime")
ATTRIBUTES = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")


class Delayed(mfusepy.Operations):
    """A read-only view of a directory.

    Parameters
    ----------
    folder : str
        The directory.
    delay : float
        Seconds added to each operation.
    """

    use_ns = True

    def __init__(self, folder: str, delay: float) -> None:
        self.folder, self.delay = folder, delay
        self.counts: Counter[str] = Counter()

    def wait(self, kind: str) -> None:
        """Count an operation and delay it."""
        self.counts[kind] += 1
        time.sleep(self.delay)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Return the attributes of a file; times are in nanoseconds."""
        self.wait("paths")
        found = os.lstat(self.folder + path)
        times = {each: getattr(found, f"{each}_ns") for each in TIMES}
        return times | {each: getattr(found, each) for each in ATTRIBUTES}

    def readdir(self, path: str, fh: int) -> list[str]:
        """Return the names in a directory."""
        self.wait("paths")
        return [".", "..", *os.listdir(self.folder + path)]

    def readlink(self, path: str) -> str:
        """Return what a link points to."""
        self.wait("paths")
        return os.readlink(self.folder + path)

    def open(self, path: str, flags: int) -> int:
        """Open a file."""
        self.wait("paths")
        return os.open(self.folder + path, flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Read from an open file."""
        self.wait("reads")
        content = os.pread(fh, size, offset)
        self.counts["bytes"] += len(content)
        return content

    def release(self, path: str, fh: int) -> int:
        """Close a file, without a delay."""
        os.close(fh)
        return 0


if __name__ == "__main__":
    folder, milliseconds = sys.argv[1:]
    below = os.open(folder, os.O_PATH)  # what the mount hides
    delayed = Delayed(f"/proc/self/fd/{below}", float(milliseconds) / 1000)
    mfusepy.FUSE(delayed, folder, foreground=True, ro=True, kernel_cache=True)
    print(json.dumps(delayed.counts))
