#!/usr/bin/env python3
"""Measure `set_up.py install` and `update` of six repositories that are up to date.

    python3 benchmarks/repositories.py [--rounds N] [--files N]

Makes six upstreams in a temporary directory, which git uses like servers, so the figures contain no
network. The alternative is `git fetch` in each repository, one after the other.
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
from tables import Table, markdown

ROOT = Path(__file__).resolve().parent.parent
SET_UP = [sys.executable, str(ROOT / "set_up.py"), "--machine", "local"]
COUNT = 6
FETCH = 'for folder in "$@"; do git -C "$folder" fetch --quiet origin; done'


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--files", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (table,) = results(Path(name), arguments.files, arguments.rounds)
    print(f"{machine()}\n\n{markdown(table)}")


def results(folder: Path, files: int, rounds: int) -> list[Table]:
    """Measure in an empty directory."""
    environ = prepare(folder, files)
    clones = sorted(map(str, folder.glob("project/repos/*")))
    quiet = ["bash", "-c", 'exec "$@" 2>/dev/null', ""]
    commands = {
        "`git fetch` in six repositories": ["bash", "-c", FETCH, "", *clones],
        "`set_up.py install`, all there": [*quiet, *SET_UP, "install"],
        "`set_up.py update`, nothing new": [*quiet, *SET_UP, "update"],
    }
    return [compare(measure(commands, rounds, environ), f"six repositories of {files:,} files")]


def prepare(folder: Path, files: int) -> dict[str, str]:
    """Make the upstreams and clone them; return the environment of all commands."""
    entries = []
    for number in range(COUNT):
        upstream = make_upstream(folder / f"upstream{number}", files)
        url = json.dumps(f"file://{upstream}")
        entries.append(f'[[repositories]]\nurl = {url}\nref = "main"\ninstall = "none"\n')
    configuration = folder / "configuration.toml"
    configuration.write_text(
        "".join(entries) + f"[paths]\nproject_dir = {json.dumps(str(folder / 'project'))}\n"
        f"scratch_dir = {json.dumps(str(folder / 'scratch'))}\n"
        '[container]\nruntime = "host"\n[packages]\nrequirements = ""\n',
        encoding="utf-8",
    )
    environ = {**os.environ, "LONGSHIP_CONFIGURATION": str(configuration)}
    subprocess.run([*SET_UP, "install"], check=True, env=environ, stderr=subprocess.DEVNULL)
    return environ


def make_upstream(folder: Path, files: int) -> Path:
    """Make a repository with one commit of a number of files."""
    for number in range(files):
        path = folder / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 20, encoding="utf-8")
    identity = ["-c", "user.name=A. Nordic", "-c", "user.email=a@example.org"]
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "uploadpack.allowFilter", "true"],
        ["add", "."],
        [*identity, "commit", "--quiet", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


if __name__ == "__main__":
    main()
