#!/usr/bin/env python3
"""Compare an overlay with common practice: build time, import time, path operations.

    python3 benchmarks/overlays.py IMAGE.sif [--scratch DIR] [--rounds 5]

Needs mksquashfs, strace, 10 GB in DIR, and an Apptainer that uses user namespaces, because strace
cannot follow a setuid one. The image needs python3 with venv, and no torch. The packages come from
the sources that pip is configured with, so building depends on the network.

The recipe is `python3 -m venv --system-site-packages`, `pip install -r` and `mksquashfs -comp xz
-b 1M -no-xattrs`, with a directory bound to the path where the file is mounted later. Imports are
timed inside Python, after a round that fills the caches. Path operations open, stat, list, execute
or read a link by its path, in the directory with the packages: for a file, in its directory, with
the overlay's record and link. The client of a parallel file system can answer some from its cache.
Requests to a mounted file go to Apptainer's FUSE process and are not counted; the requests of that
process are. Reads are calls; memory-mapped files, such as libraries in a directory, are not
included. The image and the launchers are in other directories and are not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from imports import import_table
from side_by_side import machine
from tables import Compared, Table, megabytes, seconds, written
from traces import PATH_CALLS, READ_CALLS, STRACE, below, calls
from workplace import need

ROOT = Path(__file__).resolve().parent.parent
MOUNTED_AT = "/user-software"
PACKED = "packed/recipe.sqsh"  # the output of the recipe
PYTHON = f"{MOUNTED_AT}/bin/python"
REQUIREMENTS = "transformers\ndatasets\nsacrebleu\nwandb\ntrl\n"  # and the stack's torch
VENV = ("python3", "-m", "venv", "--system-site-packages", MOUNTED_AT)
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-cache-dir", "--dest", "/fetched")
MKSQUASHFS = ("-comp", "xz", "-b", "1M", "-no-xattrs", "-quiet", "-no-progress")
IMPORT = "import torch, transformers, trl"
TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
LISTED = (
    "import importlib.metadata as m; "
    "print(*('=='.join((each.metadata['Name'], each.version)) for each in m.distributions()))"
)
CONFIGURATION = """\
[paths]
project_dir = "{folder}"
scratch_dir = "{folder}/{kind}"
[container]
runtime = "apptainer"
image = "{image}"
[packages]
requirements = "{requirements}"
overlay = "{overlay}"
"""


class Case(NamedTuple):
    """One way to provide the packages.

    Parameters
    ----------
    name : str
        Name in the tables.
    launcher : pathlib.Path
        Launcher of a command.
    bind : str
        Additional bind of Apptainer.
    folders : tuple of str
        Directories in which path operations and reads count.
    """

    name: str
    launcher: Path
    bind: str
    folders: tuple[str, ...]

    def run(self, *command: str, under: Sequence[str] = ()) -> list[str]:
        """Run a command inside; return its output lines."""
        environ = {"PYTHONDONTWRITEBYTECODE": "1", "APPTAINER_BIND": self.bind}
        return run([*under, "bash", str(self.launcher), *command], environ).splitlines()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file")
    parser.add_argument("--scratch", type=Path, help="directory for all temporary files")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        tables = results(arguments.image.resolve(), Path(name).resolve(), arguments.rounds)
    print(f"{machine()}, {run(['apptainer', '--version'], {}).strip()}\n\n{written(tables)}")


def results(
    image: Path,
    folder: Path,
    rounds: int,
    requirements: str = REQUIREMENTS,
    code: str = IMPORT,
) -> list[Table]:
    """Build, import and count in an empty directory.

    Parameters
    ----------
    image, folder : pathlib.Path
        A SIF file, and an empty directory.
    rounds : int
        Rounds of the imports.
    requirements, code : str
        The packages, as in a requirements file, in addition to the stack's torch; the import code.
    """
    need("an overlay", ("apptainer", "mksquashfs", "strace"))
    write_configurations(folder, image, requirements)
    built = build_tables(folder)
    cases = all_cases(folder)
    imported = replace(import_table(times(cases, rounds, code), code), note=version_note(cases))
    return [*built, imported, trace_table(cases, folder, code)]


def run(command: Sequence[str], environ: dict[str, str]) -> str:
    """Run a command with additional variables; return its output."""
    environ = {**os.environ, **environ}
    done = subprocess.run(command, check=True, env=environ, stdout=subprocess.PIPE, text=True)
    return done.stdout


def write_configurations(folder: Path, image: Path, packages: str) -> None:
    """Write overlay.toml and recipe.toml; the latter has no packages."""
    requirements = folder / "requirements.txt"
    requirements.write_text(packages, encoding="utf-8")
    for kind, file, overlay in (("recipe", "", ""), ("overlay", requirements, "benchmark")):
        facts = {"folder": folder, "kind": kind, "image": image, "overlay": overlay}
        text = CONFIGURATION.format(**facts, requirements=file)
        (folder / f"{kind}.toml").write_text(text, encoding="utf-8")


def script(folder: Path, kind: str, *words: str, bind: str = "") -> str:
    """Run one of Longship's scripts with KIND.toml; return its output."""
    environ = script_environ(folder, kind, bind)
    return run([sys.executable, str(ROOT / words[0]), *words[1:]], environ).strip()


def script_environ(folder: Path, kind: str, bind: str = "") -> dict[str, str]:
    """Return the variables of a script."""
    return {
        "LONGSHIP_MACHINE": "local",
        "LONGSHIP_CONFIGURATION": str(folder / f"{kind}.toml"),
        "APPTAINER_BIND": bind,
    }


def build_steps(folder: Path, *options: str) -> dict[str, float]:
    """Build the overlay; return the seconds of each step, by what the build says of it."""
    command = [sys.executable, str(ROOT / "build_overlay.py"), *options]
    environ = {**os.environ, **script_environ(folder, "overlay")}
    steps, step, start = {}, "before the first step", time.perf_counter()
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        for line in chain(process.stderr, ["[0/0] end"]):
            found = re.match(r"\[\d/\d\] (.+?)( for | with |$)", line)
            if found:
                steps[step], step, start = (
                    time.perf_counter() - start,
                    found[1],
                    time.perf_counter(),
                )
            else:
                sys.stderr.write(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return steps


def step_table(builds: Sequence[tuple[str, dict[str, float]]]) -> Table:
    """Say where the time of each build goes."""
    names = dict.fromkeys(name for _, steps in builds for name in steps)
    rows = [
        (name, *(seconds(steps[name]) if name in steps else "" for _, steps in builds))
        for name in names
    ]
    return Table(("step of a build", *(name for name, _ in builds)), rows)


def build_tables(folder: Path) -> list[Table]:
    """Compare the times to build a file that can be mounted, and split them."""
    installing, packing = build_by_recipe(folder)
    rows = [("venv, `pip install`, `mksquashfs -comp xz`", installing + packing, folder / PACKED)]
    builds = []
    for name, more in (
        ("`build_overlay.py`, empty caches", ()),
        ("`build_overlay.py --force`, full caches", ("--force",)),
        ('the same, `work_dir = "/dev/shm"`', ("--force",)),
    ):
        if "work_dir" in name:
            with open(folder / "overlay.toml", "a", encoding="utf-8") as file:
                file.write('work_dir = "/dev/shm"\n')
        steps = build_steps(folder, *more)
        builds.append((name, steps))
        rows.append((name, sum(steps.values()), overlay_file(folder)))
    cells = [
        (name, seconds(taken), f"{rows[0][1] / taken:.1f}", megabytes(file.stat().st_size))
        for name, taken, file in rows
    ]
    recipe = f"{seconds(rows[0][1])}, common practice"
    compared = [
        Compared(f"building an overlay, {name}", seconds(row[1]), recipe, row[1] / rows[0][1])
        for name, row in zip(("empty caches", "full caches"), rows[1:])
    ]
    head = ("from nothing to a file to mount", "time", "times faster", "size")
    figures = {name: [taken] for name, taken, _ in rows}
    note = f"`mksquashfs` is {packing:.0f} s of the first."
    return [Table(head, cells, note, compared, figures), step_table(builds)]


def build_by_recipe(folder: Path) -> tuple[float, float]:
    """Return the seconds of installing and of packing.

    Everything is downloaded once before the clock starts, so that caches on the way to the package
    index are full for all alternatives.
    """
    tree, file, fetched = folder / "tree", folder / PACKED, folder / "fetched"
    for each in (tree, file.parent, fetched):
        each.mkdir()
    files = ("-r", str(ROOT / "requirements/torch.txt"), "-r", str(folder / "requirements.txt"))
    binds = f"{tree}:{MOUNTED_AT},{fetched}:/fetched"

    def inside(*command: str) -> None:
        script(folder, "recipe", "container_run.py", *command, bind=binds)

    inside(*VENV)
    inside(PYTHON, *DOWNLOAD, *files)
    shutil.rmtree(fetched)
    shutil.rmtree(tree)
    tree.mkdir()
    fetched.mkdir()
    start = time.perf_counter()
    inside(*VENV)
    inside(PYTHON, *PIP, *files)
    installed = time.perf_counter()
    run(["mksquashfs", str(tree), str(file), *MKSQUASHFS], {})
    return installed - start, time.perf_counter() - installed


def overlay_file(folder: Path) -> Path:
    """Return the link to the overlay."""
    return Path(script(folder, "overlay", "build_overlay.py", "--print-path"))


def all_cases(folder: Path) -> list[Case]:
    """Write the launchers; return the ways to provide the packages."""
    for kind in ("recipe", "overlay"):
        script(folder, kind, "container_run.py", "--launcher", str(folder / f"{kind}.launcher"))
    tree, file, overlays = folder / "tree", folder / PACKED, overlay_file(folder).parent
    plain, own = folder / "recipe.launcher", folder / "overlay.launcher"
    in_file = f"{file}:{MOUNTED_AT}:image-src=/,ro"
    return [
        Case("a local directory", plain, f"{tree}:{MOUNTED_AT}:ro", (str(tree), MOUNTED_AT)),
        Case("common practice", plain, in_file, (str(file.parent),)),
        Case("the overlay", own, "", (str(overlays),)),
    ]


def version_note(cases: Sequence[Case]) -> str:
    """Report whether recipe and overlay have the same versions, except pip, which a venv has."""
    recipe, overlay = (set(case.run(PYTHON, "-c", LISTED)[-1].split()) for case in cases[::2])
    different = [each for each in sorted(recipe ^ overlay) if not each.startswith("pip==")]
    return f"Packages that are not the same in both: {', '.join(different) or 'none'}."


def times(cases: Sequence[Case], rounds: int, code: str) -> dict[str, list[list[float]]]:
    """Return the import times of the first process in a mount and of the next one."""
    taken: dict[str, list[list[float]]] = {case.name: [] for case in cases}
    for _ in range(1 + rounds):
        for case in cases:
            timed = (PYTHON, "-c", TIMED.format(code))
            lines = case.run("/bin/sh", "-c", '"$@" && "$@"', "sh", *timed)
            taken[case.name].append([float(line) for line in lines[-2:]])
    return {name: pairs[1:] for name, pairs in taken.items()}


def trace_table(cases: Sequence[Case], folder: Path, code: str) -> Table:
    """Count the requests of a launch with this import to the file system of the packages."""
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory(dir=folder) as traces:
            case.run(PYTHON, "-c", code, under=[*STRACE, "-o", f"{traces}/process"])
            found = [each.name for each in calls(Path(traces)) if below(each.paths, case.folders)]
        counts = (sum(name in each for name in found) for each in (PATH_CALLS, READ_CALLS))
        rows.append((case.name, *(f"{each:,}" for each in counts)))
    return Table((f"a launch and `{code}` from", "path operations", "reads"), rows)


if __name__ == "__main__":
    main()
