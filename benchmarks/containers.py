#!/usr/bin/env python3
"""Measure what build_container.py adds to the bare build, and the time of a swap and a list.

    python benchmarks/containers.py ARCHIVE.tar [--rounds 4]

Needs apptainer, and a docker archive for this machine (`docker save`, `skopeo copy`). The builds
run alternately; the tables show medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import compare, machine, measure
from tables import Table, megabytes, written
from workplace import need

ROOT = Path(__file__).resolve().parent.parent
BUILD = [sys.executable, str(ROOT / "build_container.py")]
MOVE = [sys.executable, str(ROOT / "move_built_container_to_active.py")]

# A script, so that each round activates the other version.
TO_AND_FRO = """
if [[ -e $FLAG ]]; then rm "$FLAG"; to=$FIRST; else : >"$FLAG"; to=$SECOND; fi
exec "$@" --use "$to" 2>/dev/null
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("archive", type=Path, help="a docker archive")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    archive = arguments.archive.resolve()
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        print(f"{machine()}\n\n{written(results(archive, Path(name), arguments.rounds))}")


def results(archive: Path, folder: Path, rounds: int) -> list[Table]:
    """Measure builds from an archive, and swaps, in an empty directory."""
    need("building", ("apptainer",))
    environ = prepare(archive, folder)
    return [build_table(folder, environ, rounds), swap_table(folder, environ)]


def prepare(archive: Path, folder: Path) -> dict[str, str]:
    """Store the archive like `download`; return the environment of all commands."""
    configuration = folder / "configuration.toml"
    configuration.write_text(
        f"[paths]\nproject_dir = {json.dumps(str(folder / 'project'))}\n"
        f"scratch_dir = {json.dumps(str(folder / 'scratch'))}\n[container]\n"
        f'runtime = "apptainer"\nimage = {json.dumps(f"docker-archive:{archive}")}\n',
        encoding="utf-8",
    )
    environ = {
        **os.environ,
        "LONGSHIP_MACHINE": "local",
        "LONGSHIP_CONFIGURATION": str(configuration),
    }
    for variable in ("APPTAINER_CACHEDIR", "APPTAINER_TMPDIR"):
        environ[variable] = str(folder / variable.lower())
        (folder / variable.lower()).mkdir()
    quietly([*BUILD, "download"], environ)
    return environ


def quietly(command: list[str], environ: dict[str, str]) -> None:
    """Run a command that is not measured."""
    subprocess.run(command, check=True, env=environ, stderr=subprocess.DEVNULL)


def build_table(folder: Path, environ: dict[str, str], rounds: int) -> Table:
    """Compare a build from the archive with the bare one."""
    (archive,) = folder.glob("scratch/offline/containers/*.tar")
    bare = ["apptainer", "--silent", "build", "--force", str(folder / "bare.sif")]
    script = [*BUILD, "offline", "--force"]
    commands = {
        "`apptainer build IMAGE docker-archive:ARCHIVE`": [*bare, f"docker-archive:{archive}"],
        "`python3 build_container.py offline`": ["bash", "-c", 'exec "$@" 2>&1', "", *script],
    }
    head = f"build from {megabytes(archive.stat().st_size)}"
    taken = measure(commands, rounds, environ, warm_up=1)
    return compare(taken, head, {"a build of the image, offline": 1})


def swap_table(folder: Path, environ: dict[str, str]) -> Table:
    """Compare a swap, and a list of two versions, with an empty Python program."""
    quietly(MOVE, environ)
    quietly([*BUILD, "offline", "--force"], environ)
    quietly(MOVE, environ)
    first, second = sorted(each.name for each in folder.glob("scratch/containers/versions/*.sif"))
    environ = {**environ, "FIRST": first, "SECOND": second, "FLAG": str(folder / "flag")}
    commands = {
        "`python3 -c pass`": [sys.executable, "-c", "pass"],
        "`move_built_container_to_active.py --list`": [*MOVE, "--list"],
        "`... --use VERSION`, a swap": ["bash", "-c", TO_AND_FRO, "", *MOVE],
    }
    return compare(measure(commands, 20, environ), "swap")


if __name__ == "__main__":
    main()
