#!/usr/bin/env python3
"""All benchmarks in one run: Markdown tables and plots of what Longship takes beside other ways.

    pip install -r requirements/host.txt -r benchmarks/requirements.txt
    python3 benchmarks/run.py [--image IMAGE.sif] [--only NAME...] [--quick] [--output DIR]

It writes results.md and PNG files into DIR. A topic whose programs are missing says which. What is
compared runs in turn, so that a noisy moment hits all of it; figures are ratios with their
quartiles. Packages come from where pip is configured to find them. The topics are the files beside
this one, which can also be run by themselves. --quick has fewer rounds and smaller inputs; it shows
that all of it works, and its figures are rough.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import containers
import jobs
import launch
import overlays
import peers
import plots
import scale
import staging
import training
from archive import archive_of
from side_by_side import machine
from tables import MissingError, Table, markdown, summary, written
from workplace import ROOT, Workplace

import bundle

# Images that the tests make, where none is named.
IMAGES = Path.home() / ".cache/longship-tests"
VERSIONS = (
    ("apptainer", "--version"),
    ("sbatch", "--version"),
    ("mksquashfs", "-version"),
    ("strace", "--version"),
    ("git", "--version"),
)


class Setting(NamedTuple):
    """What the topics are given.

    Parameters
    ----------
    image : pathlib.Path or None
        A SIF file.
    scratch : pathlib.Path
        An empty folder, each topic's own.
    environment : pathlib.Path
        A folder with the packages, of all topics that want the same.
    quick : bool
        Whether to be quick rather than exact.
    requirements, module : str
        What is installed to count, and what of it is imported.
    """

    image: Path | None
    scratch: Path
    environment: Path
    quick: bool
    requirements: str
    module: str

    def sif(self) -> Path:
        """Return the image, or say that it is missing."""
        if self.image is None:
            raise MissingError("there is no image: name one with --image")
        return self.image

    def rounds(self, many: int, few: int = 2) -> int:
        """Return the number of rounds."""
        return few if self.quick else many


def run_overlays(given: Setting) -> list[Table]:
    """Build from the same packages as the topics that follow."""
    packages = Path(given.requirements).read_text(encoding="utf-8")
    code = f"import {given.module}"
    return overlays.results(given.sif(), given.scratch, given.rounds(5), packages, code)


def run_scale(given: Setting) -> list[Table]:
    """Count, and leave the overlay for the topic `staging`."""
    ranks = (1, 2) if given.quick else (1, 2, 4, 8)
    return scale.results(given.sif(), given.environment, ranks, given.requirements, given.module)


def run_staging(given: Setting) -> list[Table]:
    """Make an overlay, unless it is there, and compare the ways to it."""
    overlay = scale.make_overlay(Workplace(given.environment, given.sif()), given.requirements)
    ranks = [1] if given.quick else [1, 2, 4]
    return staging.results(given.sif(), overlay, given.rounds(2, 1), ranks, given.module)


def run_containers(given: Setting) -> list[Table]:
    """Make an archive of the image, and build from it."""
    archive = archive_of(given.sif(), given.scratch)
    return containers.results(archive, given.scratch, given.rounds(2, 1))


def run_bundle(given: Setting) -> list[Table]:
    """Pack 1 GB."""
    return bundle.results(given.scratch, 0.1 if given.quick else 1, given.rounds(5))


def run_training(given: Setting) -> list[Table]:
    """Tokenize and train."""
    steps, megabytes = (10, 1) if given.quick else (40, 16)
    return training.results(given.scratch, given.rounds(3, 1), steps, megabytes)


TOPICS: Mapping[str, tuple[str, Callable[[Setting], list[Table]]]] = {
    "launch": (
        "What a launch costs",
        lambda given: launch.results(given.sif(), given.scratch, given.rounds(40, 5)),
    ),
    "jobs": (
        "What a job costs over plain Slurm",
        lambda given: jobs.results(given.sif(), given.scratch, given.rounds(20, 3)),
    ),
    "overlays": (
        "An overlay beside the usual recipe",
        run_overlays,
    ),
    "scale": ("What the ranks ask of the shared file system", run_scale),
    "staging": ("How the ranks of a node get at an overlay", run_staging),
    "containers": ("A build without network", run_containers),
    "bundle": ("A bundle for a machine without network", run_bundle),
    "training": ("Preprocessing and training", run_training),
    "peers": (
        "Peers from the package index",
        lambda given: peers.results(given.image, given.scratch, given.rounds(5)),
    ),
}


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--image", type=Path, help="a SIF file with python3 (default: the tests' own)")
    add("--only", nargs="+", choices=TOPICS, default=list(TOPICS), help="these topics")
    add("--quick", action="store_true", help="few rounds: rough figures")
    add("--output", type=Path, default=ROOT / "benchmarks/results", help="default: %(default)s")
    add("--scratch", type=Path, help="on the disk that is to be measured; 20 GB")
    add("--requirements", default=str(ROOT / "requirements/environment.txt"), metavar="FILE")
    add("--module", default="torch", help="of those packages: what is imported")
    given = parser.parse_args()
    image = given.image.resolve() if given.image else newest(IMAGES.glob("base-*.sif"))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        tables, missing = measure_all(given, image, Path(name).resolve())
    given.output.mkdir(parents=True, exist_ok=True)
    drawn = plots.draw(tables, given.output)
    head = heading(given.quick, time.monotonic() - start)
    text = report(head, tables, missing, [file.name for file in drawn])
    (given.output / "results.md").write_text(text, encoding="utf-8")
    print(given.output / "results.md")
    sys.exit(1 if any(each.startswith("failed") for each in missing.values()) else 0)


def measure_all(
    given: argparse.Namespace, image: Path | None, folder: Path
) -> tuple[dict[str, list[Table]], dict[str, str]]:
    """Return the tables of each topic that could be measured, and why the others could not."""
    tables: dict[str, list[Table]] = {}
    missing: dict[str, str] = {}
    (folder / "environment").mkdir()
    for name in given.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        scratch = folder / name
        scratch.mkdir()
        own = (given.quick, given.requirements, given.module)
        try:
            setting = Setting(image, scratch, folder / "environment", *own)
            tables[name] = TOPICS[name][1](setting)
        except MissingError as error:
            missing[name] = str(error)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            missing[name] = "failed: " + str(error).strip().splitlines()[-1]
            print(f"{name}: {error}", file=sys.stderr)
        shutil.rmtree(scratch)
    return tables, missing


def report(
    head: str,
    tables: Mapping[str, Sequence[Table]],
    missing: Mapping[str, str],
    drawn: Sequence[str],
) -> str:
    """Write all of it: the summary, then a section for each topic."""
    parts = [
        "# Benchmarks",
        head,
        markdown(summary(each for group in tables.values() for each in group)),
    ]
    for name, (title, _) in TOPICS.items():
        if name in missing:
            parts += [f"## {title}", f"Not measured: {missing[name]}."]
        elif name in tables:
            parts += [f"## {title}", written(tables[name])]
    parts += [f"![{name.partition('.')[0]}]({name})" for name in drawn]
    return "\n\n".join(parts) + "\n"


def heading(quick: bool, seconds: float) -> str:
    """Say where, when, with which versions, and how exact."""
    versions = [version(*command) for command in VERSIONS]
    kind = "A quick run, whose figures are rough. " if quick else ""
    return f"{kind}{machine()}; {'; '.join(versions)}. The run took {seconds / 60:.0f} minutes."


def version(program: str, option: str) -> str:
    """Return what a program says of itself, or that it is missing."""
    if not shutil.which(program):
        return f"no {program}"
    done = subprocess.run([program, option], stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()[0].strip()


def newest(paths) -> Path | None:
    """Return the file that was written last."""
    return max(paths, key=os.path.getmtime, default=None)


if __name__ == "__main__":
    main()
