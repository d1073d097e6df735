"""The parts of a file that an import reads: what is in memory, in pieces that are read at once."""

import os
import random
import subprocess
import sys

import pytest

from lib import ROOT

PROGRAMS = os.path.join(ROOT, "lib/packages/inside")
OWN = os.path.join(ROOT, "extras/overlay_speed/inside")
MB = 1 << 20


@pytest.fixture
def reads(monkeypatch):
    """Give the program as a module."""
    monkeypatch.syspath_prepend(OWN)
    return __import__("import_reads")


@pytest.mark.parametrize("number", [0, 1, 5, 16, 17, 200])
def test_pieces_cover_everything_and_are_of_similar_size(number, reads):
    chosen = random.Random(number)
    edges = sorted(chosen.sample(range(100_000), 2 * number))
    ranges = [(begin * 4096, end * 4096) for begin, end in zip(edges[::2], edges[1::2])]
    pieces = reads.balanced(ranges)
    assert pieces == sorted(pieces) and all(begin < end for begin, end in pieces)
    assert all(one[1] <= two[0] for one, two in zip(pieces, pieces[1:]))
    assert len(pieces) <= 32  # lib/runtimes/overlay.bash starts so many at once
    for begin, end in ranges:
        inside = (min(end, last) - max(begin, first) for first, last in pieces)
        assert sum(max(0, each) for each in inside) == end - begin
    if number > 16:  # what lies between is read too, where that is least
        closed = sum(end - begin for begin, end in pieces) - sum(e - b for b, e in ranges)
        gaps = sorted(two[0] - one[1] for one, two in zip(ranges, ranges[1:]))
        assert closed == sum(gaps[: number - 16])


def test_modules_of_a_package_are_named(reads):
    assert reads.modules_of("pytest") == {"pytest", "_pytest", "py"}
    assert reads.modules_of("Click") == {"click"}
    assert reads.modules_of("not-installed-anywhere") == set()


def test_parts_are_those_in_memory(reads, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(16 * MB))
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        before = reads.cached_ranges(file)
        if before == [(0, 16 * MB)]:  # a file system in memory keeps it
            return
        assert before == []
        os.pread(opened.fileno(), 1, 8 * MB)
        ((begin, end),) = reads.cached_ranges(file)
    assert begin <= 8 * MB < end < begin + MB


def test_import_is_recorded_for_each_file(tmp_path):
    """As `build_overlay.py` calls it: a package that fails, one that is missing, a small file."""
    (tmp_path / "small").write_bytes(b"x")
    large = tmp_path / "large"
    large.write_bytes(bytes(64 * MB))
    with open(large, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(opened.fileno(), 1, 0)
    function = f"{OWN}/import_reads.print_parts"
    command = [sys.executable, PROGRAMS, function, large, tmp_path / "small"]
    requirements = "# a comment\n-r other.txt\nno-such-package==1.0 \\\n  --hash=sha256:0\n"
    done = subprocess.run(command, input=requirements, capture_output=True, text=True, check=True)
    first, second, end = done.stdout.split("\n")
    assert (second, end, done.stderr) == ("", "", "")
    if first:  # else the file system keeps all of it in memory
        assert first.startswith("skip=0 count=")
