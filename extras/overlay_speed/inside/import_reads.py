"""Find the parts of an overlay and of its image that an import of the packages reads.

Programs read a mounted file in small parts, one after the other, and a parallel file system can
answer each late. A launch reads the same parts ahead, several at once (lib/runtimes/overlay.bash).
"""

import contextlib
import ctypes
import importlib.metadata
import mmap
import os
import re
import subprocess
import sys

SECONDS = 300  # for the import: some packages wait for devices that a login node lacks
READERS = 16  # so many read ahead at once, and as many again where large parts are cut
LEAST = 1 << 23  # bytes: smaller files are read in a moment
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException:  # a package can fail in any way without its GPU
        pass
"""


def print_parts(*files):
    """Import the packages of the requirements on standard input; print a line for each file.

    A line is what `dd` needs to read each part, and empty if nothing is known of the file.
    """
    distributions = re.findall(r"^\s*([A-Za-z0-9][\w.-]*)", sys.stdin.read(), re.MULTILINE)
    # the image can have torch, which every stack imports
    names = sorted({"torch", *(name for each in distributions for name in modules_of(each))})
    command = [sys.executable, "-I", "-c", IMPORT, *names]
    null = subprocess.DEVNULL
    with contextlib.suppress(subprocess.TimeoutExpired):  # what has been read until then helps too
        subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=SECONDS)
    for file in files:
        size = os.path.getsize(file)
        ranges = cached_ranges(file) if size >= LEAST else []
        # everything: the file system does not say what it keeps, or has it in memory anyway
        known = sum(end - begin for begin, end in ranges) < 0.95 * size
        parts = balanced(ranges) if known else []
        print(*(f"skip={begin} count={end - begin}" for begin, end in parts))


def modules_of(distribution):
    """Return the modules at the top level of an installed distribution."""
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return set()
    found = re.findall(r"^(\w+)(?:\.py|/__init__\.py)$", "\n".join(map(str, files)), re.MULTILINE)
    return set(found)


def cached_ranges(file):
    """Return the parts of a file that are in memory: pairs of begin and end, in bytes.

    The kernel tells this only to those who could write to the file; to others, all is in memory.
    """
    library = ctypes.CDLL(None, use_errno=True)
    with open(file, "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    pages = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
    failed = library.mincore(address, ctypes.c_size_t(len(mapped)), pages)
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), file)
    spans = (found.span() for found in re.finditer(rb"\x01+", pages.raw))
    return [(begin * mmap.PAGESIZE, end * mmap.PAGESIZE) for begin, end in spans]


def balanced(ranges):
    """Return about `READERS` ranges of similar size: small gaps are closed, large ones are cut."""
    if not ranges:
        return []
    by_gap = sorted(range(1, len(ranges)), key=lambda i: ranges[i][0] - ranges[i - 1][1])
    firsts = [0, *sorted(by_gap[1 - READERS :])]
    lasts = [first - 1 for first in (*firsts[1:], len(ranges))]
    joined = [(ranges[first][0], ranges[last][1]) for first, last in zip(firsts, lasts)]
    most = max(LEAST // READERS, sum(end - begin for begin, end in joined) // READERS)
    return [(at, min(at + most, end)) for begin, end in joined for at in range(begin, end, most)]
