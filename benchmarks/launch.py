#!/usr/bin/env python3
"""Measure the cost of a launch compared with the bare runtime.

    python benchmarks/launch.py IMAGE.sif [--rounds 40]

Needs apptainer and any image with /bin/sh. The commands run alternately; the table shows medians
and their ratio to the bare runtime.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import compare, machine, measure
from tables import Table, written
from workplace import need

ROOT = Path(__file__).resolve().parent.parent

_IMPORT_ALL = """\
import lib
lib.find_packages()
import lib.commands.container_run, lib.commands.set_up
"""
CONFIGURATION = """\
[paths]
project_dir = "{folder}/project"
scratch_dir = "{folder}/scratch"
[container]
runtime = "apptainer"
image = "{image}"
[packages]
requirements = ""
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tables = results(arguments.image.resolve(), Path(name), arguments.rounds)
    version = subprocess.run(["apptainer", "--version"], stdout=subprocess.PIPE, text=True)
    print(f"{machine()}, {version.stdout.strip()}\n\n{written(tables)}")


def results(image: Path, folder: Path, rounds: int) -> list[Table]:
    """Measure launches and imports."""
    need("launching", ("apptainer",))
    return [launch_table(image, folder, rounds), import_table(rounds)]


def launch_table(image: Path, folder: Path, rounds: int) -> Table:
    """Compare a launch with the bare runtime."""
    configuration = folder / "configuration.toml"
    configuration.write_text(CONFIGURATION.format(folder=folder, image=image), encoding="utf-8")
    environ = {**os.environ, "LONGSHIP_CONFIGURATION": str(configuration)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as for users, who have compiled modules
    launcher = folder / "launcher"
    script = [sys.executable, str(ROOT / "container_run.py")]
    subprocess.run([*script, "--launcher", str(launcher)], check=True, env=environ)
    commands = {
        "`apptainer exec IMAGE true`": ["apptainer", "exec", str(image), "true"],
        "`LAUNCHER true`": [str(launcher), "true"],
        "`python3 container_run.py true`": [*script, "true"],
    }
    summary = {"launch through a job's launcher": 1, "launch through container_run.py": 2}
    return compare(measure(commands, rounds, environ), "command", summary)


def import_table(rounds: int) -> Table:
    """Measure the CPU time of importing the scripts' own code, compared with bare Python."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {
        "pass": [sys.executable, "-c", "pass"],
        "all": [sys.executable, "-c", _IMPORT_ALL],
    }
    taken = measure(commands, rounds, environ)
    base, everything = (sorted(each.cpu_seconds)[rounds // 2] for each in taken)
    rows = [
        ("all of the scripts' own code, click included", f"{(everything - base) * 1000:.0f} ms"),
    ]
    return Table(("import, CPU time over bare Python", "median"), rows)


if __name__ == "__main__":
    main()
