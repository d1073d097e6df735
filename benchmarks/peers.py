#!/usr/bin/env python3
"""Compare Longship with tools of the package index: cotainr and submitit.

    python3 benchmarks/peers.py [--image IMAGE.sif] [--rounds 5]

cotainr builds a container with Python packages of conda; if it fails, its error is shown. submitit
submits Python functions to Slurm: the time from the call to the first line of the job, compared
with `submit.py`, whose jobs write a record and a launcher, and with bare `sbatch`. Needs a Slurm
that starts jobs at once. Both tools come from the sources that pip is configured with.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import Result, compare, machine
from tables import Table, seconds, written
from workplace import ROOT, Workplace, for_jobs, has_slurm, run

SECONDS = 120  # for one job
# a package of conda-forge, for cotainr
CONDA = "channels: [conda-forge]\ndependencies: [python=3.11, pip, {pip: [tokenizers]}]\n"
SUBMITTED = """\
import sys, time, submitit
executor = submitit.AutoExecutor(sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=2)
begin = time.time()
print(executor.submit(time.time).result() - begin)
"""
JOB = """\
#!/usr/bin/env bash
#SBATCH --job-name=benchmark --ntasks=1 --time=5
{start}srun {launcher}date +%s.%N
"""
START = """\
start_job local
unset SLURM_LABELIO
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--image", type=Path, help="a SIF file, the base image of cotainr")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    image = arguments.image.resolve() if arguments.image else None
    with tempfile.TemporaryDirectory() as name:
        print(f"{machine()}\n\n{written(results(image, Path(name).resolve(), arguments.rounds))}")


def results(image: Path | None, folder: Path, rounds: int) -> list[Table]:
    """Install and measure the tools in an empty directory."""
    cotainr = try_cotainr(image, folder) if image else "no image was given, see --image"
    tables = [Table(("peer", "what came of it"), [("cotainr", cotainr)])]
    if not has_slurm():
        row = ("submitit", "not tried: it needs a Slurm that answers, which this machine lacks")
        return [Table(tables[0].columns, [*tables[0].rows, row])]
    return [*tables, submissions(folder, rounds)]


def install(peer: str, folder: Path) -> str:
    """Install a tool in its own venv; return the error, or an empty string."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / peer)], check=True)
    pip = [str(folder / peer / "bin/python"), "-m", "pip", "install", "--quiet", peer]
    return failure(pip)


def failure(command: list[str]) -> str:
    """Run a command; return the last line of its error, or an empty string."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, **pipes)
    lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].strip() if done.returncode else ""


def try_cotainr(image: Path, folder: Path) -> str:
    """Add one package to the image with cotainr; return the time, or its error."""
    failed = install("cotainr", folder)
    if failed:
        return f"`pip install cotainr`: {failed}"
    environment = folder / "environment.yml"
    environment.write_text(CONDA, encoding="utf-8")
    options = [f"--base-image={image}", f"--conda-env={environment}", "--accept-licenses"]
    start = time.perf_counter()
    failed = failure(
        [str(folder / "cotainr/bin/cotainr"), "build", str(folder / "out.sif"), *options]
    )
    taken = time.perf_counter() - start
    if failed:
        return f"`cotainr build IMAGE --base-image=... --conda-env=...` ended: `{failed}`"
    return f"`cotainr build` with one package: {seconds(taken)}"


def submissions(folder: Path, rounds: int) -> Table:
    """Compare the times from the call to the first line of the job."""
    place = Workplace(folder)
    place.configure("host")
    jobs = {
        "plain": JOB.format(start="", launcher=""),
        "ours": JOB.format(start=START, launcher='"$LAUNCHER" '),
    }
    for name, text in jobs.items():
        (folder / f"{name}.sbatch").write_text(text, encoding="utf-8")
    ways = {
        "`sbatch`, `srun date`": lambda: plain(folder),
        "`submit.py`, `srun $LAUNCHER date`": lambda: ours(place),
    }
    failed = install("submitit", folder)
    if not failed:
        ways["submitit, a function"] = lambda: submitit(folder)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first one fills the caches
        for name, way in ways.items():
            value = way()
            if number:
                taken[name].append(value)
    measured = [Result(name, tuple(values), ()) for name, values in taken.items()]
    note = f"submitit is missing: {failed}" if failed else ""
    table = compare(measured, "from the call to the job's first line")
    return Table(table.columns, table.rows, note, figures=table.figures)


def plain(folder: Path) -> float:
    """Submit by sbatch; return the seconds to the first line."""
    return submit(folder / "plain.log", ["sbatch", "--parsable"], folder / "plain.sbatch")


def ours(place: Workplace) -> float:
    """Submit by submit.py; return the seconds to the first line."""
    script, job = [sys.executable, str(ROOT / "submit.py")], place.folder / "ours.sbatch"
    return submit(place.folder / "ours.log", script, job, for_jobs(place.environ("host")))


def submit(
    log: Path, command: list[str], job: Path, environ: dict[str, str] | None = None
) -> float:
    """Submit a job, wait for its end, and return the seconds to the time that it prints."""
    log.unlink(missing_ok=True)
    output = f"--output={log}"  # sbatch takes options before the job script, submit.py after it
    words = [str(job), output] if environ else [output, str(job)]
    begin = time.time()
    number = run([*command, *words], environ)
    deadline = time.monotonic() + SECONDS
    while run(["squeue", "--noheader", f"--jobs={number.split()[0]}"]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"job {number} has not ended after {SECONDS} s")
        time.sleep(0.1)
    (line,) = re.findall(r"^\d+\.\d+$", log.read_text(encoding="utf-8"), re.MULTILINE)
    return float(line) - begin


def submitit(folder: Path) -> float:
    """Submit by submitit; return the seconds to the function's start."""
    command = [str(folder / "submitit/bin/python"), "-c", SUBMITTED, str(folder / "submitted")]
    return float(run(command, {**os.environ, "PYTHONWARNINGS": "ignore"}).splitlines()[-1])


if __name__ == "__main__":
    main()
