"""A scaling study on a real cluster: its jobs, the table, and the page."""

import json
from pathlib import Path

import pytest
from support.jobs import TRAINING

LOCAL = "local/run_training_local.sbatch"


@pytest.fixture
def clone(make_job_clone, jobs_made, slurm, tmp_path):
    """Give a clone with training data."""
    clone = make_job_clone(tmp_path)
    (clone.scratch / "data").symlink_to(jobs_made.scratch / "data")
    return clone


def test_study_on_one_and_two_nodes(clone):
    words = ["--nodes=1,2", "--steps=10", "--batch=8", "--name=study", "--json", "--"]
    place = TRAINING.index("--batch-size")  # which the study sets
    words += [*TRAINING[:place], *TRAINING[place + 2 :]]
    done = clone.submit("scale", LOCAL, *words)
    submitted = json.loads(done.stdout)
    jobs = [each["id"] for each in submitted]
    named = [f"{job}-study-n{nodes}-t1.log" for job, nodes in zip(jobs, "12")]
    assert [Path(each["log"]).name for each in submitted] == named
    assert len(jobs) == 2 and "study: 2 jobs on 1, 2 nodes, 10 steps each" in done.stderr
    assert done.stderr.endswith("next: python3 submit.py scale report study\n")
    for job in jobs:
        assert clone.slurm.wait(job) == "COMPLETED", clone.slurm.log(job)
    again = clone.submit("scale", LOCAL, *words, check=False)
    assert again.returncode == 1 and "results of another study" in again.stderr

    rows = json.loads(clone.submit("scale", "report", "study", "--json").stdout)
    assert [(each["nodes"], each["trials"]) for each in rows] == [(1, "1 of 1"), (2, "1 of 1")]
    assert all(each["tokens_per_s"] > 0 for each in rows)
    assert rows[0]["efficiency_percent"] == 100 and rows[0]["energy_kwh"] is None
    for job, nodes in zip(jobs, "12"):  # each has run with what it was to run with
        run = clone.run(job)
        assert run.record["nodes"] == nodes and "--batch-size=8" in run.record["arguments"]
        steps = (run.folder / "outputs/metrics.jsonl").read_text().splitlines()
        assert len(steps) == 10

    page = clone.submit("scale", "report", "study", "--page").stdout.strip()
    text = Path(page).read_text(encoding="utf-8")
    assert "<h1>study</h1>" in text and "<svg" in text and "#SBATCH" in text
    assert "<script" not in text and "not measured" in text
