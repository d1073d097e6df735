#!/usr/bin/env python3
"""Compare uv with pip: `set_up.py install` with each, with an empty and with a full cache.

    python benchmarks/packages.py [--requirements FILE]

Uses the runtime host and the stack pytorch, in a temporary directory; the packages come from the
sources that pip is configured with, so the first row depends on the network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import machine
from tables import Compared, Table, markdown, seconds

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requirements", default="requirements/environment.txt")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (table,) = results(Path(name), arguments.requirements)
    print(f"{machine()}\n\n{markdown(table)}")


def results(folder: Path, requirements: str = "requirements/environment.txt") -> list[Table]:
    """Measure in an empty directory."""
    taken = {name: install_twice(name, requirements, folder / name) for name in ("pip", "uv")}
    rows, compared = [], []
    for cache, by_pip, by_uv in zip(("empty", "full"), taken["pip"], taken["uv"]):
        rows.append((cache, seconds(by_pip), seconds(by_uv), f"{by_pip / by_uv:.1f}"))
        name = f"`set_up.py install`, {cache} cache"
        compared.append(Compared(name, seconds(by_uv), f"{seconds(by_pip)}, pip", by_uv / by_pip))
    return [Table(("cache", "pip", "uv", "times faster"), rows, summary=compared)]


def install_twice(installer: str, requirements: str, folder: Path) -> tuple[float, float]:
    """Return the seconds of two installations, between which only the caches are kept."""
    scratch = folder / "scratch"
    configuration = folder / "configuration.toml"
    folder.mkdir()
    configuration.write_text(
        f"[paths]\nproject_dir = {json.dumps(str(folder / 'project'))}\n"
        f"scratch_dir = {json.dumps(str(scratch))}\n"
        '[container]\nruntime = "host"\n'
        f'[packages]\ninstaller = "{installer}"\nrequirements = {json.dumps(requirements)}\n',
        encoding="utf-8",
    )
    environ = {**os.environ, "LONGSHIP_CONFIGURATION": str(configuration)}
    first = install(environ)
    shutil.rmtree(scratch / "venvs")
    return first, install(environ)


def install(environ: dict[str, str]) -> float:
    """Return the seconds of one `set_up.py install`."""
    command = [sys.executable, str(ROOT / "set_up.py"), "--machine", "local", "install"]
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
