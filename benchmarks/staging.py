#!/usr/bin/env python3
"""How the ranks of a node should get at an overlay: mounted each, mounted once, or unpacked.

    python3 benchmarks/staging.py IMAGE.sif OVERLAY.sqsh [--rounds 3] [--ranks 1 2 4]

It needs apptainer, unsquashfs and squashfuse_ll, and room for the unpacked overlay in /dev/shm and
beside the overlay. OVERLAY.sqsh has PyTorch, as build_overlay.py makes it. The file is in the
page cache, as it is after a broadcast. What is timed is everything from the first command to the
last rank's `import torch`: copying, unpacking and mounting too. Memory is what the processes map
(`Pss` of the ranks and of those that serve mounts), and what lies in /dev/shm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from memory import MEMORY, adopt, bury, bytes_in_memory, descendants, mapped_bytes
from side_by_side import machine
from tables import (
    Compared,
    MissingError,
    Table,
    megabytes,
    plural,
    quartiles,
    seconds,
    spread_text,
    written,
)

MOUNTED_AT = "/user-software"
IMPORT = (
    "import time; start = time.perf_counter(); import {}; "
    "print(time.perf_counter() - start, flush=True); input()"
)
PROGRAMS = ("apptainer", "unsquashfs", "squashfuse_ll", "fusermount3")


class Node:
    """What the ranks of a node are started from.

    Parameters
    ----------
    image, overlay : pathlib.Path
        SIF and SquashFS files.
    unpacked : pathlib.Path
        What is in the overlay, as a folder on a disk.
    """

    def __init__(self, image: Path, overlay: Path, unpacked: Path) -> None:
        self.image, self.overlay, self.unpacked = image, overlay, unpacked

    @contextmanager
    def from_disk(self) -> Iterator[list[str]]:
        """Show the folder."""
        yield [*self._exec(f"type=bind,src={self.unpacked},dst={MOUNTED_AT},ro")]

    @contextmanager
    def mounted_each(self) -> Iterator[list[str]]:
        """Let each rank mount the file."""
        yield [*self._exec(_file(self.overlay))]

    @contextmanager
    def copied(self) -> Iterator[list[str]]:
        """Copy the file to memory, as on nodes without a disk, and let each rank mount that."""
        with _in_memory() as folder:
            shutil.copyfile(self.overlay, folder / "overlay.sqsh")
            yield [*self._exec(_file(folder / "overlay.sqsh"))]

    @contextmanager
    def instance(self) -> Iterator[list[str]]:
        """Mount image and file once, in an instance that all ranks join."""
        name = f"benchmark{os.getpid()}"
        start = ["apptainer", "--quiet", "instance", "start", "--mount", _file(self.overlay)]
        _quietly([*start, str(self.image), name])
        try:
            yield ["apptainer", "--quiet", "exec", f"instance://{name}"]
        finally:
            _quietly(["apptainer", "instance", "stop", name])

    @contextmanager
    def mounted_once(self) -> Iterator[list[str]]:
        """Mount the file on the node, and show that folder to all ranks."""
        with _in_memory() as folder:
            _quietly(["squashfuse_ll", str(self.overlay), str(folder)])
            try:
                yield [*self._exec(f"type=bind,src={folder},dst={MOUNTED_AT},ro")]
            finally:
                _quietly(["fusermount3", "-u", "-z", str(folder)])

    @contextmanager
    def unpacked_in_memory(self) -> Iterator[list[str]]:
        """Unpack the file into memory, on all cores."""
        with _in_memory() as folder:
            unpack(self.overlay, folder / "tree")
            yield [*self._exec(f"type=bind,src={folder}/tree,dst={MOUNTED_AT},ro")]

    def _exec(self, mount: str) -> list[str]:
        return ["apptainer", "--quiet", "exec", "--mount", mount, str(self.image)]


WAYS: dict[str, Callable] = {
    "a folder on a local disk": Node.from_disk,
    "the file, mounted by each rank": Node.mounted_each,
    "copied to memory, mounted by each rank": Node.copied,
    "the file, mounted once: `squashfuse_ll`, bound": Node.mounted_once,
    "the file, mounted once: an instance": Node.instance,
    "unpacked into memory": Node.unpacked_in_memory,
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file")
    parser.add_argument("overlay", type=Path, help="a SquashFS file with PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    tables = results(given.image.resolve(), given.overlay.resolve(), given.rounds, given.ranks)
    print(f"{machine()}\n\n{written(tables)}")


def results(
    image: Path, overlay: Path, rounds: int, ranks: list[int], module: str = "torch"
) -> list[Table]:
    """Measure all ways, in turn, with so many ranks on this node."""
    absent = [each for each in PROGRAMS if not shutil.which(each)]
    if absent:
        raise MissingError(f"staging needs {', '.join(absent)}")
    adopt()
    taken: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=overlay.parent) as name:
        node = Node(image, overlay, Path(name) / "tree")
        unpack(overlay, node.unpacked)
        start_ranks(node.from_disk, 1, module)  # what is in no cache yet
        for _ in range(rounds):
            for count in ranks:
                for way, prepare in WAYS.items():
                    measured = start_ranks(lambda p=prepare: p(node), count, module)
                    taken.setdefault((way, count), []).append(measured)
    return [_table(taken, count, overlay) for count in ranks]


def _table(taken: dict, count: int, overlay: Path) -> Table:
    rows = []
    for way in WAYS:
        total, own, memory = (statistics.median(each) for each in zip(*taken[way, count]))
        ratios = _ratios(taken, way, next(iter(WAYS)), count)
        ratio = f"{statistics.median(ratios):.2f}"
        cells = (seconds(total), ratio, spread_text(quartiles(ratios)), seconds(own))
        rows.append((way, *cells, megabytes(memory)))
    packed = megabytes(overlay.stat().st_size)
    first = f"{plural(count, 'rank')} on a node, the first import from {packed}"
    columns = (first, "time", "ratio", "quartiles of the ratio", "the import alone", "memory")
    return Table(
        columns,
        rows,
        summary=[_compared(taken, list(WAYS)[1], list(WAYS)[-1], count)],
        figures={way: [each[0] for each in taken[way, count]] for way in WAYS},
    )


def _ratios(taken: dict, one: str, other: str, count: int) -> list[float]:
    return [a[0] / b[0] for a, b in zip(taken[one, count], taken[other, count])]


def _compared(taken: dict, one: str, other: str, count: int) -> Compared:
    own, base = (statistics.median(each[0] for each in taken[way, count]) for way in (one, other))
    ratios = _ratios(taken, one, other, count)
    return Compared(
        f"{plural(count, 'rank')}: to the first import",
        f"{seconds(own)}, {one}",
        f"{seconds(base)}, {other}",
        statistics.median(ratios),
        quartiles(ratios),
    )


def start_ranks(prepare: Callable, count: int, module: str) -> tuple[float, float, float]:
    """Start so many ranks; return seconds in all, the slowest import's, and bytes of memory."""
    start = time.perf_counter()
    with ExitStack() as stack:
        before = bytes_in_memory()
        command = [
            *stack.enter_context(prepare()),
            f"{MOUNTED_AT}/bin/python",
            "-c",
            IMPORT.format(module),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        ranks = [subprocess.Popen(command, text=True, **pipes) for _ in range(count)]
        try:
            imports = [float(rank.stdout.readline()) for rank in ranks]
            taken = time.perf_counter() - start
            memory = sum(map(mapped_bytes, descendants(os.getpid()))) + bytes_in_memory() - before
        finally:
            for rank in ranks:
                rank.communicate("\n")
    bury()
    return taken, max(imports), memory


def unpack(overlay: Path, folder: Path) -> None:
    """Unpack a SquashFS file with all cores; an ordinary user may not set owners."""
    _quietly(["unsquashfs", "-no-progress", "-no-xattrs", "-d", str(folder), str(overlay)])


@contextmanager
def _in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="longship-benchmark-") as name:
        yield Path(name)


def _file(path: Path) -> str:
    return f"type=bind,src={path},dst={MOUNTED_AT},image-src=/,ro"


def _quietly(command: list[str]) -> None:
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if said.returncode:
        raise RuntimeError(f"{command} says: {said.stdout}")


if __name__ == "__main__":
    main()
