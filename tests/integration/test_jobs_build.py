"""What is built in a job, as on a site whose login nodes are of another architecture.

The checked-in jobs of Olivia, unchanged, on nodes without a network.
"""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from support.overlays import OWN, TINY
from support.repository import toml

SMALLER = ("--cpus-per-task=2", "--mem=2G")
# A job of the form of the checked-in ones.
USES = """#!/usr/bin/env bash
#SBATCH --job-name=uses
#SBATCH --partition=accel
#SBATCH --nodes=1
#SBATCH --mem=1G
#SBATCH --time=00:10:00
start_job olivia "$@"
srun "$LAUNCHER" "${JOB_ARGUMENTS[@]}"
"""


@pytest.fixture
def builder(make_job_clone, slurm, fetcher, wheels, tmp_path):
    """Give a clone that gets its packages from an overlay, and nothing built."""
    more = '[packages]\noverlay = "myenv"\nrequirements = "requirements/tiny.txt"\n'
    clone = make_job_clone(tmp_path, more)
    (clone.root / "requirements/tiny.txt").write_text(f"{TINY}\n")
    (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
    (clone.root / "olivia/uses.sbatch").write_text(USES)
    tools = clone.scratch / f"tools_{OWN}"
    tools.mkdir()
    (tools / "fetcher").symlink_to(fetcher)
    shutil.copy(fetcher / "bin/uv", tools / "uv")
    clone.environment.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    return clone


def built(clone, file, *words, state="COMPLETED"):
    """Submit a job that builds, and wait for its end; return its log."""
    number = clone.job(file, *SMALLER, *words)
    assert clone.slurm.wait(number, timeout=400) == state, clone.slurm.log(number)
    return clone.slurm.log(number)


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_overlay_is_built_in_a_job_and_used_by_the_next(builder):
    job = ["olivia/uses.sbatch", "--", "python3", "-c", "import longship_tiny as t; print(t)"]
    early = builder.submit(*job, check=False)
    assert "\nhint: run: python3 build_overlay.py --stack pytorch; or, if " in early.stderr
    log = built(builder, "olivia/build_overlay.sbatch")
    assert "[5/6]" in log
    run = builder.finish(*job)
    assert "from '/user-software/" in run.log
    record = run.record
    assert record["overlay"].startswith(f"{builder.scratch}/overlays/versions/myenv_")
    assert record["overlay_sha256"] == f"sha256:{sha256(record['overlay'])}"
    assert record.get("venv", "") == ""
    assert "longship_tiny==1.0" in run.written("packages.txt").replace("-", "_")
    assert "up to date" in built(builder, "olivia/build_overlay.sbatch")


def test_arguments_of_a_build_reach_it(builder):
    log = built(builder, "olivia/build_overlay.sbatch", "--", "--print-path")
    assert log.strip().endswith(f"_{OWN}.sqsh")
    assert not list(builder.scratch.glob("overlays/*.sqsh"))
    log = built(builder, "olivia/build_overlay.sbatch", "--", "--no-such", state="FAILED")
    assert "no such option: --no-such" in log


def test_build_that_fails_says_why_and_leaves_nothing(builder):
    (builder.root / "requirements/tiny.txt").write_text("longship_tiny==2.0\n")
    log = built(builder, "olivia/build_overlay.sbatch", state="FAILED")
    assert "\nerror: " in log and "\nhint: " in log
    assert not list(builder.scratch.glob("overlays/**/*.sqsh*"))


# test_build_container.py builds one here, and the first test an overlay in a job.
@pytest.mark.slow
def test_image_is_built_from_a_definition_file_in_a_job(builder, base_image):
    definition = builder.root / "my image.def"
    definition.write_text(
        f"Bootstrap: localimage\nFrom: {base_image}\n%files\n  README.md /etc/mark\n"
    )
    text = (builder.root / "configuration.toml").read_text()
    builder.configure(text.replace(toml(base_image), toml("my image.def")))
    built(builder, "olivia/build_container.sbatch")
    builder.move("--machine", "olivia")
    (active,) = [path for path in (builder.scratch / "containers").iterdir() if path.is_symlink()]
    built(builder, "olivia/build_overlay.sbatch")
    run = builder.finish("olivia/uses.sbatch", "--", "head", "-n", "1", "/etc/mark")
    assert "# Longship" in run.log
    assert run.record["image"] == os.path.realpath(active)
    assert run.record["image_sha256"] == f"sha256:{sha256(active)}"
