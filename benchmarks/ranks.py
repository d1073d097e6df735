#!/usr/bin/env python3
"""Split the time of a rank, from its launch to the end of an import, and count its requests.

    python3 benchmarks/ranks.py IMAGE.sif [--scratch DIR] [--rounds 9] [--ranks 1 4]

Compares a directory on the local disk with the same packages in an overlay, with and without its
module index. Needs apptainer, mksquashfs, unsquashfs, strace and 4 GB in DIR. All ranks of a case
start at once; the cases alternate. `container` ends with the first program inside: runtime, mounts
and the launcher. `Python` ends with Python's first statement. The rest of an import's time is
waiting for files: `CPU` is that of Python alone, without the processes that serve the mounts.

On a machine with other work, times vary and the counts do not; `--rounds 0` only counts: path
operations of the program in the directory with the packages, requests to the processes that serve
image and overlay, and what the latter reads of the overlay's file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from side_by_side import machine
from tables import Table, megabytes, plural, quartiles, seconds, spread_text, written
from traces import PATH_CALLS, READ_CALLS, STRACE, below, calls
from workplace import ROOT, Workplace, need, run

MOUNTED_AT = "/user-software"
REQUIREMENTS = ROOT / "requirements/torch.txt"
MKSQUASHFS = (
    "-comp",
    "zstd",
    "-Xcompression-level",
    "3",
    "-all-root",
    "-no-xattrs",
    "-no-progress",
)
PACKED = {
    "blocks of 1 MB": ("-b", "1M"),
    "libraries not compressed": ("-b", "128K", "-action", "uncompressed@name(*.so*)"),
}
STAMPED = (
    "import time; start = time.time(), time.process_time(); {}; "
    "print(*start, time.time(), time.process_time())"
)


class Case(NamedTuple):
    """One way to provide the packages.

    Parameters
    ----------
    name : str
        Name in the tables.
    launcher : pathlib.Path
        Launcher of a rank.
    environ : dict
        Additional variables.
    file : pathlib.Path or None
        The file that is mounted.
    """

    name: str
    launcher: Path
    environ: dict[str, str]
    file: Path | None = None

    def command(self, code: str) -> list[str]:
        """Return the command of a rank that prints when it begins, and runs the code."""
        inside = 'date +%s.%N; exec "$@"'
        python = (f"{MOUNTED_AT}/bin/python", "-c", code)
        return ["bash", str(self.launcher), "/bin/sh", "-c", inside, "sh", *python]

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a rank."""
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **self.environ}


class Rank(NamedTuple):
    """The seconds of one rank: until the container, Python and the import are there."""

    container: float
    python: float
    imported: float
    cpu: float

    @property
    def whole(self) -> float:
        """From the launch to the end of the import."""
        return self.container + self.python + self.imported


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file")
    parser.add_argument("--scratch", type=Path, help="directory for all temporary files")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--requirements", default=str(REQUIREMENTS), metavar="FILE")
    parser.add_argument("--module", default="torch", help="module of these packages to import")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        place = Workplace(Path(name).resolve(), given.image.resolve())
        cases, packed = make_cases(place, given.requirements)
        code = f"import {given.module}"
        tables = [count_table([*cases, *packed], place.folder, code)]
        if given.rounds:
            tables += [time_table(cases, each, given.rounds, code) for each in given.ranks]
    load = f"{os.getloadavg()[0]:.0f}"
    print(
        f"# Time and requests of a rank\n\n{machine()}, load {load} at the end\n\n{written(tables)}"
    )


def make_cases(place: Workplace, requirements: str) -> tuple[list[Case], list[Case]]:
    """Build the overlay and unpack it; return the cases, and the same packages packed otherwise."""
    need("splitting", ("apptainer", "mksquashfs", "unsquashfs", "strace"))
    place.configure("overlay", requirements, "benchmark")
    place.script("overlay", "build_overlay.py")
    file = Path(place.script("overlay", "build_overlay.py", "--print-path")).resolve()
    place.configure("directory")
    tree = place.folder / "tree"
    run(["unsquashfs", "-no-progress", "-dest", str(tree), str(file)])
    bound = {"APPTAINER_BIND": f"{tree}:{MOUNTED_AT}:ro"}
    plain, overlay = place.launcher("directory"), place.launcher("overlay")
    off = {"LONGSHIP_MODULE_INDEX": "0"}
    cases = [
        Case("a local directory", plain, {**bound, **off}),
        Case("the overlay, without its index", overlay, off, file),
        Case("the overlay", overlay, {}, file),
    ]
    packed = []
    for name, options in PACKED.items():
        file = place.folder / f"{name}.sqsh"
        run(["mksquashfs", str(tree), str(file), *MKSQUASHFS, *options])
        mounted = {"APPTAINER_BIND": f"{file}:{MOUNTED_AT}:image-src=/,ro"}
        packed.append(Case(f"the overlay, {name}", plain, mounted, file))
    return cases, packed


def count_table(cases: Sequence[Case], folder: Path, code: str) -> Table:
    """Count the requests of one rank of each case."""
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory(dir=folder) as traces:
            trace = [*STRACE, "-o", f"{traces}/process"]
            command = [*trace, *case.command(code)]
            subprocess.run(command, env=case.variables, check=True, stdout=subprocess.DEVNULL)
            found = list(calls(Path(traces)))
        paths = sum(each.name in PATH_CALLS and below(each.paths, [MOUNTED_AT]) for each in found)
        requests = sum(each.paths == ("/dev/fuse",) and each.size > 0 for each in found)
        files = [str(case.file)] if case.file else []
        data = (each for each in found if each.name in READ_CALLS)
        reads = [each.size for each in data if below(each.paths, files)]
        size = megabytes(case.file.stat().st_size) if case.file else ""
        numbers = (f"{each:,}" for each in (paths, requests, len(reads)))
        rows.append((case.name, *numbers, megabytes(sum(reads)), size))
    heads = ("path operations", "requests to mounts", "reads of the file", "bytes", "its size")
    return Table((f"one rank, `{code}` from", *heads), rows)


def time_table(cases: Sequence[Case], ranks: int, rounds: int, code: str) -> Table:
    """Split the time of ranks that start at once."""
    taken: dict[str, list[Rank]] = {case.name: [] for case in cases}
    for _ in range(1 + rounds):  # the first one fills the caches
        for case in cases:
            taken[case.name].append(start(case, ranks, code))
    rows = []
    for name, found in taken.items():
        parts = [seconds(statistics.median(each)) for each in zip(*found[1:])]
        both = list(zip(found[1:], taken[cases[0].name][1:]))
        imports = [one.imported / other.imported for one, other in both]
        whole = [one.whole / other.whole for one, other in both]
        least = min(each.imported for each in found[1:])
        ratios = (f"{statistics.median(each):.2f}" for each in (imports, whole))
        rows.append((name, *parts, seconds(least), *ratios, spread_text(quartiles(whole))))
    heads = ("container", "Python", "import", "CPU", "least import", "ratio of imports", "ratio")
    return Table((f"{plural(ranks, 'rank')}, `{code}` from", *heads, "quartiles"), rows)


def start(case: Case, ranks: int, code: str) -> Rank:
    """Start ranks at once; return the mean of each part of their time."""
    begun = time.time()
    command = case.command(STAMPED.format(code))
    options = {"env": case.variables, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **options) for _ in range(ranks)]
    found = []
    for process in processes:
        words = process.communicate()[0].split()
        if process.returncode:
            raise RuntimeError(f"{case.name}: the rank ended with {process.returncode}")
        inside, first, cpu, last, cpu_last = map(float, words[-5:])
        found.append(Rank(inside - begun, first - inside, last - first, cpu_last - cpu))
    return Rank(*map(statistics.mean, zip(*found)))


if __name__ == "__main__":
    main()
