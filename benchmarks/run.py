#!/usr/bin/env python3
"""Run all benchmarks: Markdown tables and plots of Longship and each alternative.

    pip install -r requirements/host.txt -r benchmarks/requirements.txt
    python3 benchmarks/run.py [--image IMAGE.sif] [--only NAME...] [--runs N] [--quick]

Writes results.md, again after each topic, and PNG files to benchmarks/results/ or --output. A topic
names the programs that it misses. The alternatives run alternately, so that a disturbance affects
all of them; figures are ratios with their quartiles, or with their range in N runs. Packages come
from the sources that pip is configured with. The topics are the other files of this directory,
which are also separate programs. --quick has fewer rounds and smaller inputs: it tests that
everything works, and its figures are rough.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import containers
import jobs
import launch
import overlays
import peers
import plots
import scale
import training
from archive import archive_of
from side_by_side import machine
from tables import MissingError, Table, combined, markdown, plural, summary, written
from workplace import ROOT

import bundle

# Images of the tests, the default.
IMAGES = Path.home() / ".cache/longship-tests"
VERSIONS = (
    ("apptainer", "--version"),
    ("sbatch", "--version"),
    ("mksquashfs", "-version"),
    ("strace", "--version"),
    ("git", "--version"),
)

Runs = dict[str, list[list[Table]]]  # the tables of each run, by topic


class Setting(NamedTuple):
    """The settings of the topics.

    Parameters
    ----------
    image : pathlib.Path or None
        A SIF file.
    scratch : pathlib.Path
        An empty directory for each topic.
    quick : bool
        Whether rough figures are enough.
    requirements, module : str
        The packages to install for counting, and the module of them to import.
    """

    image: Path | None
    scratch: Path
    quick: bool
    requirements: str
    module: str

    def sif(self) -> Path:
        """Return the image, or fail if it is missing."""
        if self.image is None:
            raise MissingError("there is no image: name one with --image")
        return self.image

    def rounds(self, many: int, few: int = 2) -> int:
        """Return the number of rounds."""
        return few if self.quick else many


def run_overlays(given: Setting) -> list[Table]:
    """Build from the same packages as the later topics."""
    packages = Path(given.requirements).read_text(encoding="utf-8")
    code = f"import {given.module}"
    return overlays.results(given.sif(), given.scratch, given.rounds(5), packages, code)


def run_scale(given: Setting) -> list[Table]:
    """Count with several numbers of ranks."""
    ranks = (1, 2) if given.quick else (1, 2, 4, 8)
    return scale.results(given.sif(), given.scratch, ranks, given.requirements, given.module)


def run_containers(given: Setting) -> list[Table]:
    """Build from an archive of the image."""
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
        "The cost of a launch",
        lambda given: launch.results(given.sif(), given.scratch, given.rounds(40, 5)),
    ),
    "jobs": (
        "The cost of a job compared with plain Slurm",
        lambda given: jobs.results(given.sif(), given.scratch, given.rounds(20, 3)),
    ),
    "overlays": (
        "An overlay compared with common practice",
        run_overlays,
    ),
    "scale": ("Requests of the ranks to the shared file system", run_scale),
    "containers": ("A build without network", run_containers),
    "bundle": ("A bundle for an air-gapped machine", run_bundle),
    "training": ("Preprocessing and training", run_training),
    "peers": (
        "Other tools of the package index",
        lambda given: peers.results(given.image, given.scratch, given.rounds(5)),
    ),
}


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--image", type=Path, help="a SIF file with python3 (default: the tests' own)")
    add(
        "--only",
        nargs="+",
        choices=TOPICS,
        default=list(TOPICS),
        help="topics to run (default: all)",
    )
    add("--runs", type=int, default=1, metavar="N", help="measure everything N times")
    add("--quick", action="store_true", help="run few rounds, for rough figures")
    add(
        "--output",
        type=Path,
        default=ROOT / "benchmarks/results",
        help="output directory (default: %(default)s)",
    )
    add("--scratch", type=Path, help="directory on the disk to measure, with 20 GB")
    add("--requirements", default=str(ROOT / "requirements/environment.txt"), metavar="FILE")
    add("--module", default="torch", help="module of these packages to import")
    given = parser.parse_args()
    if given.runs < 1:
        parser.error(f"--runs: expected 1 or more, got {given.runs}")
    image = given.image.resolve() if given.image else newest(IMAGES.glob("base-*.sif"))
    given.output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    tables: Runs = {}
    missing: dict[str, str] = {}

    def write(drawn: Sequence[str] = ()) -> None:
        runs = max(map(len, tables.values()), default=1)
        head = heading(given.quick, runs, time.monotonic() - start)
        text = report(head, tables, missing, drawn, runs)
        (given.output / "results.md").write_text(text, encoding="utf-8")

    for name, measured, reason in measure_all(given, image):
        if reason:
            missing[name] = reason
        else:
            tables.setdefault(name, []).append(measured)
        write()  # so that a later failure loses nothing
    write([file.name for file in plots.draw(tables, given.output)])
    print(given.output / "results.md")
    sys.exit(1 if any(each.startswith("failed") for each in missing.values()) else 0)


def measure_all(
    given: argparse.Namespace, image: Path | None
) -> Iterator[tuple[str, list[Table], str]]:
    """Yield the tables of each topic, or the reason why it has none, for each run."""
    for number in range(given.runs):
        with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
            scratch = Path(folder).resolve()
            for name in given.only:
                print(f"run {number + 1} of {given.runs}: {name} ...", file=sys.stderr, flush=True)
                own = (given.quick, given.requirements, given.module)
                setting = Setting(image, scratch / name, *own)
                yield (name, *measure(name, setting))


def measure(name: str, setting: Setting) -> tuple[list[Table], str]:
    """Return the tables of a topic, or the error that prevented them."""
    setting.scratch.mkdir()
    try:
        return TOPICS[name][1](setting), ""
    except MissingError as error:
        return [], str(error)
    except Exception as error:
        traceback.print_exc()
        text = "".join(traceback.format_exception_only(type(error), error))
        return [], "failed: " + text.strip().splitlines()[-1]
    finally:
        shutil.rmtree(setting.scratch, ignore_errors=True)


def report(
    head: str, tables: Runs, missing: Mapping[str, str], drawn: Sequence[str], runs: int
) -> str:
    """Return the summary of all runs, then a section per topic with its last run."""
    measured = [table for several in tables.values() for each in several for table in each]
    parts = ["# Benchmarks", head, markdown(summary(combined(measured, runs), runs))]
    for name, (title, _) in TOPICS.items():
        if name in tables:
            parts += [f"## {title}", written(tables[name][-1])]
        elif name in missing:
            parts += [f"## {title}", f"Not measured: {missing[name].rstrip('.')}."]
    parts += [f"![{name.partition('.')[0]}]({name})" for name in drawn]
    return "\n\n".join(parts) + "\n"


def heading(quick: bool, runs: int, seconds: float) -> str:
    """Describe machine, date, versions and accuracy."""
    versions = [version(*command) for command in VERSIONS]
    kind = "A quick run, whose figures are rough. " if quick else ""
    taken = f"{'The run' if runs == 1 else plural(runs, 'run')} took {seconds / 60:.0f} minutes."
    if runs > 1:
        taken += " The summary has the run with the median ratio, the sections have the last run."
    return f"{kind}{machine()}; {'; '.join(versions)}. {taken}"


def version(program: str, option: str) -> str:
    """Return a program's version; sbatch prints none if Slurm is not configured."""
    if not shutil.which(program):
        return f"no {program}"
    command = [program, option]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return (done.stdout.strip() or f"{program} of unknown version").splitlines()[0]


def newest(paths) -> Path | None:
    """Return the newest file."""
    return max(paths, key=os.path.getmtime, default=None)


if __name__ == "__main__":
    main()
