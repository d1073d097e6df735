#!/usr/bin/env python3
"""Measure bundle.py pack and verify against sha256sum of the same files on all cores.

    python3 benchmarks/bundle.py [--scratch DIR] [--gigabytes 3] [--rounds 5]

Needs git, and a network or a pip that finds click and tomli. The files are random bytes in the
proportions of a real bundle: an image, parts of a model, wheels, and this repository. The commands
run alternately; the table shows medians and their ratio, and the speed relative to sha256sum.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import compare, machine, measure
from tables import Table, markdown, plural
from workplace import need

ROOT = Path(__file__).resolve().parent.parent
# share of all bytes, and number of files of that name
FILES = {
    "containers/base_1_amd64.tar": (0.4, 1),
    "assets/model/model-{}.safetensors": (0.4, 4),
    "pip/package{}-1-py3-none-any.whl": (0.2, 60),
}
# The largest first, each on the next free core; small files in groups of a hundred.
ALL_CORES = """
find "$BUNDLE" -type f -size +1M -printf '%s\\t%p\\0' | sort -z -n -r | cut -z -f 2- |
    xargs -0 -n 1 -P "$(nproc)" sha256sum
find "$BUNDLE" -type f ! -size +1M -print0 | xargs -0 -n 100 -P "$(nproc)" sha256sum
"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, help="directory on the disk to measure")
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        (table,) = results(Path(name), arguments.gigabytes, arguments.rounds)
    print(f"{machine()}\n\n{markdown(table)}")


def results(folder: Path, gigabytes: float, rounds: int) -> list[Table]:
    """Measure in an empty directory."""
    need("bundling", ("git", "sha256sum"))
    clone, environ = prepare(folder, gigabytes)
    bundle = str(folder / "bundle")
    script = [sys.executable, str(clone / "bundle.py")]
    again = [*script, "pack", str(folder / "kept")]
    subprocess.run(again, check=True, env=environ, stderr=subprocess.DEVNULL)
    files = sum(path.is_file() for path in (folder / "kept").rglob("*"))
    environ["BUNDLE"] = str(folder / "kept")
    commands = {
        "`sha256sum`, all cores": ["bash", "-c", ALL_CORES],
        "`bundle.py verify`": quiet(*script, "verify", str(folder / "kept")),
        "`bundle.py pack`": quiet(*script, "pack", bundle),
        "`bundle.py pack`, nothing new": quiet(*again),
        "": ["rm", "-rf", bundle],
    }
    taken = measure(commands, rounds, environ, warm_up=1)[:-1]
    summary = {"a bundle: verify": 1, "a bundle: pack": 2}
    return [compare(taken, f"{gigabytes:g} GB in {plural(files, 'file')}", summary)]


def quiet(*command: str) -> list[str]:
    """Wrap a command that prints its steps."""
    return ["bash", "-c", 'exec "$@" 2>&1', "", *command]


def prepare(folder: Path, gigabytes: float) -> tuple[Path, dict[str, str]]:
    """Make a clone and fill its downloads; return clone and environment."""
    clone, scratch = folder / "clone", folder / "scratch"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".git", ".venv*", ".cache"))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        subprocess.run(["git", "-C", str(clone), *identity, *command], check=True)
    for pattern, (share, count) in FILES.items():
        for number in range(count):
            write_random(scratch / "offline" / pattern.format(number), share * gigabytes / count)
    archive = scratch / "offline/containers/base_1_amd64.tar"
    record = {"sha256": f"sha256:{checksum(archive)}"}
    archive.with_name(f"{archive.name}.json").write_text(json.dumps(record))
    wheels = scratch / "offline/pip"
    (wheels / "pytorch_amd64.lock").write_text("# image: docker://example.org/base:1\n")
    sums = [f"{checksum(path)}  {path.name}\n" for path in wheels.iterdir()]
    sums.append(f"# {len(sums)} files in all\n")
    (wheels / "pytorch_amd64.sha256").write_text("".join(sums))
    configuration = folder / "configuration.toml"
    configuration.write_text(
        f"[paths]\nproject_dir = {json.dumps(str(folder / 'project'))}\n"
        f"scratch_dir = {json.dumps(str(scratch))}\n"
        '[container]\nruntime = "apptainer"\nimage = "docker://example.org/base:1"\n',
        encoding="utf-8",
    )
    configured = {"LONGSHIP_MACHINE": "local", "LONGSHIP_CONFIGURATION": str(configuration)}
    return clone, {**os.environ, **configured}


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    done = subprocess.run(["sha256sum"], stdin=path.open("rb"), capture_output=True, check=True)
    return done.stdout.split()[0].decode()


def write_random(path: Path, gigabytes: float) -> None:
    """Write a number of random bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = int(gigabytes * 1e9)
    with open(path, "wb") as file:
        while left > 0:
            left -= file.write(os.urandom(min(left, 1 << 24)))


if __name__ == "__main__":
    main()
