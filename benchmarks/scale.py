#!/usr/bin/env python3
"""Count the requests of each rank to the shared file system; model them for 4,096 nodes.

    python3 benchmarks/scale.py IMAGE.sif [--scratch DIR] [--ranks 1 2 4 8]

Needs apptainer, mksquashfs, strace, fusermount3, 8 GB in DIR, an Apptainer that uses user
namespaces, because strace cannot follow a setuid one, and Slurm for the ranks; without Slurm they
are started directly.
Each rank is traced separately, with all its children, so the counts are exact: they include
Apptainer and the FUSE processes of its mounts.

DIR is used in place of a shared file system: it contains a copy of IMAGE.sif, the packages and the
launchers. Path operations open, stat, list, execute or read a link by its path. Reads of a mounted
file are those of its FUSE process; the node's page cache answers most of them, so a node fetches
each different byte once, whatever its number of ranks. The client of a parallel file system can
answer more requests itself.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from counting import Case, Node, count
from model import Demand, model_table
from side_by_side import machine
from tables import Compared, Table, megabytes, plural, written
from workplace import ROOT, Workplace, has_slurm, need, run

MOUNTED_AT = "/user-software"
PACK = "-comp lz4"  # for the image with the packages: fast to build
ROUNDS = 3  # of launches without strace
LATE = 10  # milliseconds
Traced = dict[str, list[Node]]  # by case: one node per number of ranks


def main() -> None:
    """Count, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file")
    parser.add_argument("--scratch", type=Path, help="directory for all temporary files")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        tables = results(given.image.resolve(), Path(name).resolve(), given.ranks)
    print(f"{machine()}\n\n{written(tables)}")


def results(
    image: Path,
    folder: Path,
    ranks: Sequence[int],
    requirements: str = str(ROOT / "requirements/environment.txt"),
    module: str = "torch",
) -> list[Table]:
    """Make the environments, count, and apply the model.

    Parameters
    ----------
    image, folder : pathlib.Path
        A SIF file, and an empty directory.
    ranks : sequence of int
        Numbers of ranks on the node.
    requirements, module : str
        Packages in addition to the stack's torch, and the module to import.
    """
    need("counting", ("apptainer", "mksquashfs", "unsquashfs", "strace", "fusermount3"))
    place = Workplace(folder, image)
    cases, code = make_cases(place, requirements), f"import {module}"
    traced = {case.name: count(place, case, ranks, code) for case in cases}
    return [
        _rank_table(traced, ranks, code),
        _node_table(traced),
        model_table(
            demands(traced, launch_seconds(cases, code), waits(place, cases, code)), max(ranks)
        ),
    ]


def make_cases(place: Workplace, requirements: str) -> list[Case]:
    """Install the packages for each case."""
    place.configure("venv", requirements)
    place.script("venv", "set_up.py", "install")
    overlay = make_overlay(place, requirements)
    place.configure("image", image=pack_image(place, overlay))
    launchers = {kind: place.launcher(kind) for kind in ("venv", "overlay", "image")}
    quoted = {kind: f'"{file}"' for kind, file in launchers.items()}
    return [
        Case("a venv on the shared file system", quoted["venv"], (place.image,)),
        Case(
            "the image, packages in it",
            quoted["image"],
            (place.folder / "packed.sif",),
            f"{MOUNTED_AT}/bin/python",
        ),
        Case("the overlay", quoted["overlay"], (place.image, overlay)),
    ]


def make_overlay(place: Workplace, requirements: str) -> Path:
    """Install the packages in an overlay; return the file."""
    place.configure("overlay", requirements, "benchmark")
    place.script("overlay", "build_overlay.py")
    return Path(place.script("overlay", "build_overlay.py", "--print-path")).resolve()


def pack_image(place: Workplace, overlay: Path) -> Path:
    """Make an image that contains the overlay's packages."""
    tree, packed = place.folder / "tree", place.folder / "packed.sif"
    run(["apptainer", "build", "--sandbox", str(tree), str(place.image)])
    shutil.rmtree(tree / MOUNTED_AT[1:], ignore_errors=True)
    run(["unsquashfs", "-no-xattrs", "-d", f"{tree}{MOUNTED_AT}", str(overlay)])
    run(["apptainer", "build", f"--mksquashfs-args={PACK}", str(packed), str(tree)])
    run(["chmod", "-R", "u+w", str(tree)])
    shutil.rmtree(tree)
    return packed


def _rank_table(traced: Traced, ranks: Sequence[int], code: str) -> Table:
    rows = []
    for name, nodes in traced.items():
        each = [rank for node in nodes for rank in node.ranks]
        shared, opens, reads, mapped, mounted, own = (
            _span(getattr(rank, field) for rank in each)
            for field in ("shared", "opens", "reads", "mapped", "mounted", "own")
        )
        rows.append((name, shared, opens, reads, mapped, mounted, own))
    columns = (
        f"one rank: `LAUNCHER python -c '{code}'` from",
        "path operations, shared",
        "of which open image or overlay",
        "reads, shared",
        "mapped, shared",
        "path operations, in a mounted file",
        "path operations, on the node",
    )
    pythons = sum(node.pythons for nodes in traced.values() for node in nodes)
    started = sorted(
        {each for nodes in traced.values() for node in nodes for each in node.programs}
    )
    where = "on a node of a Slurm cluster" if has_slurm() else "on this machine, without Slurm"
    note = (
        f"Each rank of steps of {', '.join(map(str, ranks))} ranks {where}; minimum "
        f"and maximum over them. A Python of the host was started {plural(pythons, 'time')} by all "
        f"of them. Programs started outside of the container: {', '.join(started)}."
    )
    figures = {name: [rank.shared for rank in nodes[0].ranks] for name, nodes in traced.items()}
    return Table(columns, rows, note, _compared(traced), figures)


def _compared(traced: Traced) -> list[Compared]:
    venv, _, overlay = (
        statistics.mean(rank.shared for node in nodes for rank in node.ranks)
        for nodes in traced.values()
    )
    name = "path operations per rank on the shared file system"
    other = f"{venv:,.0f}, a venv"
    return [
        Compared(f"{name}: overlay", f"{overlay:,.0f}", other, overlay / venv),
    ]


def _node_table(traced: Traced) -> Table:
    rows = [
        (
            name,
            str(len(node.ranks)),
            f"{sum(rank.shared for rank in node.ranks):,}",
            f"{sum(rank.opens for rank in node.ranks):,}",
            f"{sum(rank.reads for rank in node.ranks):,}",
            megabytes(node.fetched) if node.fetched else "none",
        )
        for name, nodes in traced.items()
        for node in nodes
    ]
    columns = (
        *("one node", "ranks", "path operations, shared", "opens of image and overlay"),
        *("reads, shared", "different bytes that are read, shared"),
    )
    return Table(columns, rows)


def _span(values: Iterable[int]) -> str:
    found = sorted(values)
    same = found[0] == found[-1]
    return f"{found[0]:,}" if same else f"{found[0]:,} to {found[-1]:,}"


def demands(
    traced: Traced, taken: dict[str, float], waiting: dict[str, float]
) -> dict[str, Demand]:
    """Return the input of the model, by the names of the cases.

    Parameters
    ----------
    traced : mapping
        The nodes of each case, the last with the most ranks.
    taken : mapping
        Seconds of a launch and the import with a warm cache, without strace.
    waiting : mapping
        Requests that wait for each other, see `waits`.
    """
    return {
        name: Demand(
            statistics.mean(rank.shared for rank in nodes[-1].ranks),
            nodes[-1].fetched,
            taken[name],
            waiting[name],
        )
        for name, nodes in traced.items()
    }


def launch_seconds(cases: Sequence[Case], code: str) -> dict[str, float]:
    """Return the median seconds of a launch and the import with warm caches, by case."""
    taken: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(ROUNDS + 1):
        for case in cases:
            start = time.perf_counter()
            subprocess.run([case.launcher.strip('"'), case.python, "-c", code], check=True)
            taken[case.name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in taken.items()}


def waits(place: Workplace, cases: Sequence[Case], code: str) -> dict[str, float]:
    """Return how many requests wait for each other, by case: one launch with empty caches.

    Each request is answered late, and those that are sent at the same time wait together.
    """
    found = {}
    for case in cases:
        taken = []
        for delay in (0, LATE):
            with place.answering_late(delay):
                start = time.perf_counter()
                command = ["bash", case.launcher.strip('"'), case.python, "-c", code]
                subprocess.run(command, check=True)
                taken.append(time.perf_counter() - start)
        found[case.name] = max(0, taken[1] - taken[0]) * 1000 / LATE
    return found


if __name__ == "__main__":
    main()
