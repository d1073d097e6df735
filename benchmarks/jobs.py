#!/usr/bin/env python3
"""Measure the cost of a job compared with plain Slurm and the bare runtime.

    python benchmarks/jobs.py IMAGE.sif [--rounds 20] [--nodes 2]

Needs apptainer and a Slurm that starts jobs at once, such as that of the tests
(tests/integration/servers/slurm.sh). One job runs the steps alternately.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from side_by_side import Result, compare, machine, measure
from tables import MissingError, Table, written
from workplace import for_jobs, has_slurm, need

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600  # for the job
QUIETLY = ["bash", "-c", 'exec "$@" 2>/dev/null', "", sys.executable]  # no messages

CONFIGURATION = """\
machine = "local"
[paths]
project_dir = "{folder}/project"
scratch_dir = "{folder}/scratch"
[container]
runtime = "apptainer"
image = "{image}"
[packages]
requirements = ""
"""

# Prints a line for each measured time: name and seconds.
JOB = """\
#!/usr/bin/env bash
#SBATCH --job-name=benchmark
#SBATCH --ntasks-per-node=1
begin=$EPOCHREALTIME
start_job local "$@"
awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {{ printf "start %f\\n", b - a }}'
unset SLURM_LABELIO
timed() {{
  local -r what=$1 begin=$EPOCHREALTIME
  srun "${{@:2}}"
  awk -v w="$what" -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {{ printf "%s %f\\n", w, b - a }}'
}}
for ((round = 0; round < {rounds} + 2; round++)); do
  timed bare apptainer exec {image} true
  timed launcher "$LAUNCHER" true
done
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path, help="a SIF file, at a path without spaces")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        given = arguments.image.resolve(), Path(name), arguments.rounds, arguments.nodes
        print(f"{machine()}\n\n{written(results(*given))}")


def results(image: Path, folder: Path, rounds: int, nodes: int = 2) -> list[Table]:
    """Measure submissions and job steps in an empty directory."""
    need("a job", ("apptainer", "sbatch"))
    if not has_slurm():
        raise MissingError("a job needs a Slurm that answers")
    configuration = folder / "configuration.toml"
    configuration.write_text(CONFIGURATION.format(folder=folder, image=image), "utf-8")
    environ = for_jobs({**os.environ, "LONGSHIP_CONFIGURATION": str(configuration)})
    job = folder / "benchmark.sbatch"
    job.write_text(JOB.format(image=image, rounds=rounds), "utf-8")
    submitted = submission(job, folder, environ, rounds)
    started, steps = in_a_job(job, environ, nodes)
    step = compare(steps, f"a step on {nodes} nodes", {"job step (`srun`)": 1})
    note = f"`start_job`, once for each job: {started * 1000:.0f} ms"
    return [compare(submitted, "submitting"), replace(step, note=note)]


def submission(job: Path, folder: Path, environ: dict[str, str], rounds: int) -> list[Result]:
    """Compare submit.py with sbatch; the jobs are held and then cancelled."""
    options = ["--hold", "--job-name=benchmark-held", f"--output={folder}/log"]
    commands = {
        "`sbatch JOB`": ["sbatch", "--quiet", *options, str(job)],
        "`python3 submit.py JOB`": [*QUIETLY, str(ROOT / "submit.py"), str(job), *options],
    }
    try:
        return measure(commands, rounds, environ)
    finally:
        subprocess.run(["scancel", "--me", "--name=benchmark-held"], check=True)


def in_a_job(job: Path, environ: dict[str, str], nodes: int) -> tuple[float, list[Result]]:
    """Return the time of a job's start, and the times of its steps."""
    command = [sys.executable, str(ROOT / "submit.py"), str(job), f"--nodes={nodes}"]
    number = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    runs = Path(environ["LONGSHIP_CONFIGURATION"]).parent / "scratch/runs"
    record = runs / f"{number.stdout.strip()}-benchmark/record.json"
    for _ in range(SECONDS):
        if record.is_file() and "exit_code" in json.loads(record.read_text()):
            break
        time.sleep(1)
    log = (runs / f"{number.stdout.strip()}-benchmark.log").read_text(encoding="utf-8")
    taken: dict[str, list[float]] = {}
    for line in log.splitlines():
        what, _, seconds = line.partition(" ")
        if what in ("start", "bare", "launcher"):
            taken.setdefault(what, []).append(float(seconds))
    names = {"bare": "`srun apptainer exec IMAGE true`", "launcher": "`srun LAUNCHER true`"}
    steps = [Result(text, tuple(taken[what][2:]), ()) for what, text in names.items()]
    return taken["start"][0], steps


if __name__ == "__main__":
    main()
