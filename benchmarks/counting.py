"""Count the requests of a node's ranks to the file systems, with strace, on a Slurm node."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from traces import (
    PATH_CALLS,
    READ_CALLS,
    STRACE,
    Call,
    below,
    calls,
    distinct_bytes,
    programs,
    whole_bytes,
)
from workplace import ROOT, Workplace, has_slurm, run

# For a process in the container, paths that are neither in the image nor shared.
OF_THE_NODE = ("/proc", "/sys", "/dev", "/tmp", "/run", "/var/tmp", "/etc")
# PROCID is the number of the rank.
JOB = """\
set -e
ranks() { # COUNT COMMAND...
  local count=$1 rank
  shift
  if [[ -n ${SLURM_JOB_ID-} ]]; then srun --overcommit --ntasks="$count" "$@"; return; fi
  for ((rank = 0; rank < count; rank++)); do SLURM_PROCID=$rank "$@" & done
  wait
}
"""
STEP = """\
export TRACES="{traces}"
ranks {count} bash -c 'mkdir -p "$TRACES/$SLURM_PROCID"
  exec {strace} -o "$TRACES/$SLURM_PROCID/process" "$@"' bash {launcher} {python} -c '{code}'
"""


class Case(NamedTuple):
    """One way to provide the packages.

    Parameters
    ----------
    name : str
        Name in the tables.
    launcher : str
        Shell command that starts a rank.
    files : tuple of pathlib.Path
        The image, and the overlay.
    python : str
        The interpreter with the packages.
    """

    name: str
    launcher: str
    files: tuple[Path, ...]
    python: str = "python"


class Counts(NamedTuple):
    """The requests of one rank, or of all ranks of a node.

    Parameters
    ----------
    shared, mounted, own : int
        Path operations on the shared file system, in mounted files, and on node-local storage.
    opens : int
        Opens of the image and of the overlay, if they are shared.
    reads : int
        Calls that read a shared file.
    mapped : int
        Number of times that a shared file was mapped into memory.
    """

    shared: int
    mounted: int
    own: int
    opens: int
    reads: int
    mapped: int


class Node(NamedTuple):
    """The requests of the ranks of one node.

    Parameters
    ----------
    ranks : tuple of Counts
        Requests of each rank.
    fetched : int
        Bytes of shared files that all ranks together read, each byte once: exact for mounted files,
        an upper bound for others, because strace does not show accesses to mapped files.
    pythons : int
        Number of starts of a host Python.
    programs : tuple of str
        Names of the programs started outside of the container.
    """

    ranks: tuple[Counts, ...]
    fetched: int
    pythons: int
    programs: tuple[str, ...]


def count(place: Workplace, case: Case, ranks: Sequence[int], code: str) -> list[Node]:
    """Trace one job on one node, with each number of ranks."""
    folder = place.folder / "traces"
    folder.mkdir()
    steps = [
        STEP.format(
            traces=folder / str(each),
            count=each,
            strace=" ".join(STRACE),
            launcher=case.launcher,
            python=case.python,
            code=code,
        )
        for each in ranks
    ]
    job = place.folder / "job.bash"
    job.write_text("".join([JOB, *steps]), encoding="utf-8")
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    shared = (str(place.folder), str(ROOT))
    allocate = ["salloc", "--quiet", "--nodes=1", f"--ntasks={max(ranks)}", "--overcommit"]
    try:
        run([*(allocate if has_slurm() else []), "bash", str(job)], environ)
        return [node(folder / str(each), shared, case.files) for each in ranks]
    finally:
        shutil.rmtree(folder)


def node(folder: Path, shared: Sequence[str], files: Sequence[Path]) -> Node:
    """Read the traces of a node's ranks."""
    ranks, reads, others, started = [], [], 0, []
    names = [str(file) for file in files]
    for rank in sorted(folder.iterdir(), key=lambda each: int(each.name)):
        found = list(calls(rank))
        ranks.append(counts(found, shared, names))
        data = [each for each in found if each.name in (*READ_CALLS, "mmap")]
        reads += [each for each in data if below(each.paths, names)]
        others = max(others, whole_bytes(each for each in data if _is_other(each, shared, names)))
        started += programs(found)
    pythons = sum(bool(_PYTHON.search(each)) for each in started)
    named = tuple(sorted({Path(each).name for each in started}))
    return Node(tuple(ranks), distinct_bytes(reads) + others, pythons, named)


def counts(found: Iterable[Call], shared: Sequence[str], files: Sequence[str]) -> Counts:
    """Count calls by the location of their files."""
    names = ("shared", "mounted", "own", "opens", "reads", "mapped")
    result = dict.fromkeys(names, 0)
    for call in found:
        place = _place(call, shared)
        if call.name in PATH_CALLS:
            result[place] += 1
            opened = call.name.startswith("open") and not call.failed
            result["opens"] += opened and below(call.paths, files)
        elif place == "shared":
            result["reads" if call.name in READ_CALLS else "mapped"] += 1
    return Counts(**result)


_PYTHON = re.compile(r"/python[\d.]*$")


def _place(call: Call, shared: Sequence[str]) -> str:
    if below(call.paths, shared):
        return "shared"
    return "mounted" if call.inside and not below(call.paths, OF_THE_NODE) else "own"


def _is_other(call: Call, shared: Sequence[str], files: Sequence[str]) -> bool:
    return below(call.paths, shared) and not below(call.paths, files)
