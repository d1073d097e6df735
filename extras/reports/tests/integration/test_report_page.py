"""The report page of real jobs: a chain on two nodes, written inside the environment."""

import re

import pytest
from integration.test_jobs import write_job
from support.jobs import TRAINING

LOCAL = "local/run_training_local.sbatch"


@pytest.fixture
def measured(make_job_clone, jobs_made, slurm, tmp_path):
    """Give a clone with training data, whose jobs are measured each second."""
    clone = make_job_clone(tmp_path, "[jobs]\nusage = 1\n")
    (clone.scratch / "data").symlink_to(jobs_made.scratch / "data")
    return clone


def test_page_of_a_chain_on_two_nodes(measured, tmp_path):
    arguments = [*TRAINING, "--steps", "100000", "--run-name", "<b>mine"]
    said = measured.submit(LOCAL, "--nodes=2", "--chain=2", "--", *arguments)
    first, second = said.stdout.split()
    for job, steps in ((first, 30), (second, 60)):
        measured.wait_for_step(job, "<b>mine", steps)
        measured.slurm.run(["scancel", "--signal=USR1", job])
        assert measured.slurm.wait(job) == "COMPLETED", measured.slurm.log(job)
    done = measured.submit("report", first)
    folder = measured.run(first).folder
    page = folder / f"report-{folder.name}.html"
    assert done.stdout == f"{page}\n" and done.stderr == ""
    text = page.read_text()
    assert f"<h1>&lt;b&gt;mine ({first}, {second})</h1>" in text
    assert "<b>mine" not in text and "<script" not in text
    assert not re.search(r"https?://|url\(|@import|src=", text)
    for expected in ("CPU load", "tokens/s", "node1", "node2", "Python packages", "Findings in"):
        assert expected in text  # torchrun of the second node can say that the first has ended
    assert text.count("<svg") == 6  # power is not measured without GPUs
    assert text.count("stroke-dasharray") == 6  # the restart, in each
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", text))
    assert int(figures["steps"]) == len(measured.losses("<b>mine"))

    other = tmp_path / "a page.html"
    plain = measured.finish(write_job(measured, "plain", 'srun "$LAUNCHER" true')).folder.name
    done = measured.submit("report", second, plain, "--output", str(other))
    assert done.stdout == f"{other}\n"
    assert "warning: no metrics: the directory of the results is unknown\nhint: " in done.stderr
    assert f"<h2>{plain}</h2>" in other.read_text()
