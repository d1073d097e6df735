#!/usr/bin/env python3
"""Split the time of a rank, from its launch to the end of an import, and count its requests.

    python3 benchmarks/ranks.py IMAGE.sif [--scratch DIR] [--rounds 9] [--ranks 1 4] [--delays 1 10]

Compares a directory on the local disk with the same packages in an overlay, with and without its
module index. Needs apptainer, mksquashfs, unsquashfs, strace and 4 GB in DIR. All ranks of a case
start at once: in one launch, as torchrun starts those of a node, and with a launch for each, as
Slurm does. The cases alternate. `container` ends with the first program inside: runtime, mounts
and the launcher. `Python` ends with Python's first statement. The rest of an import's time is
waiting for files: `CPU` is that of Python alone, without the processes that serve the mounts.

On a machine with other work, times vary and the counts do not; `--rounds 0` only counts: path
operations of the program in the directory with the packages, requests to the processes that serve
image and overlay, and what the latter reads of the overlay's file.

With `--delays`, packages are also imported from a file system that delays each operation by so many
milliseconds (delayed.py; needs mfusepy and fusermount3), by one rank with empty caches: from a
directory, from the overlay, and without reading ahead what an import reads. The image is there too.

With `--kernel`, the overlay is also compared as a mount by the kernel, as a setuid runtime may make
it. That needs root, once: the program prints the command, and waits until the mount is there.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from side_by_side import machine
from tables import Table, megabytes, plural, quartiles, seconds, spread_text, written
from traces import PATH_CALLS, READ_CALLS, STRACE, below, calls
from workplace import ROOT, Workplace, need, run

MOUNTED_AT = "/user-software"
TREE = "tree"  # the directory with the packages
UNREAD = {"LONGSHIP_READ_AHEAD": "0"}
KINDS = ("paths", "reads")  # of operations, in the output of delayed.py, which has bytes too
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
# One write for a line: ranks of a launch share their output.
STAMPED = (
    "import sys, time; start = time.time(), time.process_time(); {}; "
    "found = sys.argv[1], *start, time.time(), time.process_time(); "
    "sys.stdout.write(' '.join(map(str, found)) + chr(10))"
)
# After 20 seconds all ranks have imported, and they stay until all have looked: a page that two of
# them map counts half for each.
HELD = (
    "import sys, time; {}; time.sleep(max(0, float(sys.argv[1]) + 20 - time.time())); "
    "rollup = open('/proc/self/smaps_rollup').read(); time.sleep(3); "
    "sys.stdout.write(rollup.partition('Pss:')[2].split()[0] + chr(10))"
)
# sh -c STARTED sh RANKS COMMAND...: the ranks of one launch, with the time as the last argument.
STARTED = (
    'left=$1; shift; while [ "$left" -gt 0 ]; do "$@" "$(date +%s.%N)" & left=$((left - 1)); done; '
    "wait"
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

    def command(self, code: str, ranks: int = 1) -> list[str]:
        """Return the command of a launch whose ranks run the code."""
        python = (f"{MOUNTED_AT}/bin/python", "-c", code)
        return ["bash", str(self.launcher), "/bin/sh", "-c", STARTED, "sh", str(ranks), *python]

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


class Delayed(NamedTuple):
    """One launch with the packages on a file system that answers late.

    Parameters
    ----------
    whole : float
        Seconds from the launch to the end of the import.
    ratio : float
        The same relative to a local directory.
    counts : collections.Counter
        Operations that reached the file system, of `KINDS`.
    """

    whole: float
    ratio: float
    counts: Counter[str]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file")
    parser.add_argument("--scratch", type=Path, help="directory for all temporary files")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--requirements", default=str(REQUIREMENTS), metavar="FILE")
    parser.add_argument("--module", default="torch", help="module of these packages to import")
    help_of_delays = "milliseconds, for a file system that answers late"
    parser.add_argument("--delays", type=float, nargs="+", default=[], help=help_of_delays)
    help_of_kernel = "empty directory on which root mounts the overlay, to compare that mount too"
    parser.add_argument("--kernel", type=Path, metavar="DIR", help=help_of_kernel)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        place = Workplace(Path(name).resolve(), given.image.resolve())
        cases, packed = make_cases(place, given.requirements)
        by_kernel = [mounted_by_root(cases, given.kernel.resolve())] if given.kernel else []
        compared = [*cases, *by_kernel]
        code = f"import {given.module}"
        tables = [count_table([*cases, *packed], place.folder, code)]
        if given.rounds:
            for ranks in given.ranks:
                for launches in sorted({1, ranks}):
                    tables.append(time_table(compared, ranks, launches, given.rounds, code))
        if given.rounds:
            remembered = [cases[0], *compared[2:]]
            tables.append(memory_table(remembered, max(given.ranks), code))
        if given.delays:
            tables.append(delay_table(cases, place, given.delays, given.rounds or 1, code))
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
    tree = place.folder / TREE
    run(["unsquashfs", "-no-progress", "-dest", str(tree), str(file)])
    plain, overlay = place.launcher("directory"), place.launcher("overlay")
    off = {"LONGSHIP_MODULE_INDEX": "0"}
    cases = [
        Case("a local directory", plain, {**bound(tree), **off}),
        Case("the overlay, without its index", overlay, off, file),
        Case("the overlay", overlay, {}, file),
    ]
    packed = []
    for name, options in PACKED.items():
        file = place.folder / f"{name}.sqsh"
        run(["mksquashfs", str(tree), str(file), *MKSQUASHFS, *options])
        packed.append(Case(f"the overlay, {name}", plain, bound(file), file))
    return cases, packed


def mounted_by_root(cases: Sequence[Case], folder: Path) -> Case:
    """Wait until root has mounted the overlay; return the case of this mount."""
    directory, *_, overlay = cases
    command = ("mount", "-t", "squashfs", "-o", "loop,ro", str(overlay.file), str(folder))
    print(f"as root, run: {shlex.join(command)}", file=sys.stderr, flush=True)
    while not folder.is_mount():
        time.sleep(1)
    return directory._replace(name="the overlay, mounted by the kernel", environ=bound(folder))


def bound(source: Path) -> dict[str, str]:
    """Return the variable that mounts a file or directory."""
    kind = "image-src=/," if source.is_file() else ""
    return {"APPTAINER_BIND": f"{source}:{MOUNTED_AT}:{kind}ro"}


def count_table(cases: Sequence[Case], folder: Path, code: str) -> Table:
    """Count the requests of one rank of each case."""
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory(dir=folder) as traces:
            trace = [*STRACE, "-o", f"{traces}/process"]
            command = [*trace, *case.command(code)]
            environ = {**case.variables, **UNREAD}
            subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
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


def time_table(cases: Sequence[Case], ranks: int, launches: int, rounds: int, code: str) -> Table:
    """Split the time of ranks that start at once."""
    taken: dict[str, list[Rank]] = {case.name: [] for case in cases}
    for _ in range(1 + rounds):  # the first one fills the caches
        for case in cases:
            taken[case.name].append(start(case, ranks, launches, code))
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
    title = f"{plural(ranks, 'rank')}, {'one launch' if launches == 1 else 'a launch for each'}"
    return Table((f"{title}, `{code}` from", *heads, "quartiles"), rows)


def start(case: Case, ranks: int, launches: int, code: str) -> Rank:
    """Start ranks at once; return the mean of each part of their time."""
    begun = time.time()
    found = []
    for line in output_of(case, ranks, launches, STAMPED.format(code)):
        inside, first, cpu, last, cpu_last = map(float, line.split())
        found.append(Rank(inside - begun, first - inside, last - first, cpu_last - cpu))
    return Rank(*map(statistics.mean, zip(*found)))


def output_of(case: Case, ranks: int, launches: int, code: str) -> list[str]:
    """Start ranks at once; return the line of each."""
    command = case.command(code, ranks // launches)
    options = {"stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen(command, env={**case.variables, "SLURM_LOCALID": str(rank)}, **options)
        for rank in range(launches)
    ]
    lines = "".join(process.communicate()[0] for process in processes).splitlines()
    if len(lines) != ranks:
        raise RuntimeError(f"{case.name}: {len(lines)} of {ranks} ranks succeeded")
    return lines


def memory_table(cases: Sequence[Case], ranks: int, code: str) -> Table:
    """Measure the memory of ranks that run at once, without the processes that serve mounts."""
    rows: list[tuple[str, ...]] = []
    base: dict[int, float] = {}
    for case in cases:
        one, *several = (
            1024 * sum(map(int, output_of(case, number, launches, HELD.format(code))))
            for number, launches in ((1, 1), (ranks, 1), (ranks, ranks))
        )
        cells = [megabytes(one)]
        for launches, all_ranks in zip((1, ranks), several):
            further = (all_ranks - one) / max(ranks - 1, 1)
            ratio = further / base.setdefault(launches, further)
            cells += [megabytes(further), f"{ratio:.2f}"]
        rows.append((case.name, *cells))
    heads = ["one rank"]
    for launches in ("one launch", "a launch for each"):
        heads += [f"each further of {plural(ranks, 'rank')}, {launches}", "ratio"]
    return Table((f"memory after `{code}` from", *heads), rows)


def delay_table(
    cases: Sequence[Case], place: Workplace, delays: Sequence[float], rounds: int, code: str
) -> Table:
    """Compare a local directory with directory and overlay on a file system that answers late."""
    local, overlay = cases[0], cases[-1]
    unread = overlay._replace(name="the overlay, not read ahead", environ=UNREAD)
    slow = (local._replace(name="the directory"), unread, overlay)
    taken: dict[tuple[str, ...], list[Delayed]] = {}
    for _ in range(rounds):
        base = start(local, 1, 1, code).whole
        taken.setdefault((local.name, ""), []).append(Delayed(base, 1, Counter()))
        for delay, case in itertools.product(delays, slow):
            with place.answering_late(delay) as counts:
                whole = start(case, 1, 1, code).whole
            found = taken.setdefault((case.name, f"{delay:g} ms"), [])
            found.append(Delayed(whole, whole / base, counts))
    rows = []
    for titles, found in taken.items():
        whole, ratio = (statistics.median(each) for each in list(zip(*found))[:2])
        numbers = [statistics.median(each.counts[kind] for each in found) for kind in KINDS]
        ratios = spread_text(quartiles([each.ratio for each in found]))
        read = megabytes(statistics.median(each.counts["bytes"] for each in found))
        figures = (seconds(whole), f"{ratio:.2f}", ratios, *map("{:,.0f}".format, numbers), read)
        rows.append((*titles, *figures))
    heads = ("delay", "from launch to import", "ratio", "quartiles", "path operations", "reads")
    heads += ("bytes",)
    return Table((f"1 rank with empty caches, `{code}` from", *heads), rows)


if __name__ == "__main__":
    main()
