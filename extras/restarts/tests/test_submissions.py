"""Restarts and spare nodes in a submission, and at the start of its job."""

import json

import pytest
from support.requests import JOB, cost_of, facts

from lib.script.errors import LongshipError


def test_watcher_needs_output_and_errors_in_one_file(submit):
    words = ("--output=a.log", "--error=e.log")
    submit(*words)
    with pytest.raises(LongshipError, match="--error=e.log cannot be combined with restarts"):
        submit(*words, restarts=1)
    submit("--output=a.log", "--error=a.log", restarts=1)


def test_restarts_reach_the_job_and_let_it_be_requeued(calls, site):
    """The header of the job has neither option."""
    (sent,) = calls(restarts=3)[1:]
    assert {"--requeue", "--open-mode=append"} <= set(sent)
    (kept,) = (site.scratch / "runs").glob("configurations/*.json")
    assert '"restarts": 3' in kept.read_text()


@pytest.mark.parametrize(
    ("words", "given", "error", "hint"),
    [
        (["-N3"], {}, "spare nodes require restarts", "add --restarts=3, or --spare-nodes=0"),
        (["-N1"], {"restarts": 1}, "no node to train on: 1 requested, 1 of them", "--nodes=2;"),
        (["-N3", "-n6"], {"restarts": 1}, "--ntasks and spare nodes cannot", "--ntasks-per-node"),
        (["-N3", "-G6"], {"restarts": 1}, "--gpus and spare nodes cannot", "--gpus-per-node"),
    ],
)
def test_spare_nodes_that_cannot_be(words, given, error, hint, submit):
    with pytest.raises(LongshipError, match=error) as told:
        submit(*words, spare_nodes=1, **given)
    assert hint in told.value.hint


def test_spare_nodes_reach_the_job_and_are_paid(calls, submit, site):
    (said,) = cost_of(submit("-N2", restarts=1, spare_nodes=1))
    assert said.endswith("at most 96.0 core-hours")
    calls("-N2", restarts=1, spare_nodes=1)
    (kept,) = (site.scratch / "runs").glob("configurations/*.json")
    assert '"spare_nodes": 1' in kept.read_text()


def test_spare_nodes_of_the_configuration_are_those_of_trainings(submit, site):
    site.write("site/evaluate.sbatch", f"{JOB}run_evaluation.sh\n")
    site.write("stacks/pytorch/run_evaluation.sh", "")
    text = (site.root / "configuration.toml").read_text()
    site.write("configuration.toml", f"{text}jobs.restarts = 1\njobs.spare_nodes = 1\n")
    assert cost_of(submit("-N1", job="site/evaluate.sbatch"))
    with pytest.raises(LongshipError, match="no node to train on"):
        submit("-N1")


@pytest.mark.parametrize(
    ("line", "silence", "kept"),
    [
        ('srun "$LAUNCHER" bash "$STACK_DIR/run_training.sh"', "", (3, "")),
        ('srun "$LAUNCHER" bash "$STACK_DIR/preprocess_data.sh" all', "", (3, "0")),
        ('srun "$LAUNCHER" bash "$STACK_DIR/preprocess_data.sh" all', "00:10:00", (3, "00:10:00")),
        ('serve_jupyter "${JOB_ARGUMENTS[@]}"', "00:10:00", (0, "0")),
        ("serve_ssh m", "00:10:00", (0, "0")),
    ],
)
def test_job_that_is_silent_while_it_is_well_is_not_ended_for_that(
    line, silence, kept, calls, site
):
    """An editor or notebook that nobody uses, and a data step, whose progress needs a terminal."""
    site.write("site/train.sbatch", JOB + line + "\n")
    for file in ("stack.toml", "run_training.sh", "preprocess_data.sh"):
        site.write(f"stacks/pytorch/{file}", "")
    keys = f'jobs.restarts = 3\njobs.silence = "{silence}"\n'
    site.write("configuration.toml", (site.root / "configuration.toml").read_text() + keys)
    (sent,) = calls()[1:]
    assert ("--requeue" in sent) == (kept[0] > 0)
    (file,) = (site.scratch / "runs").glob("configurations/*.json")
    jobs_of = json.loads(file.read_text())["jobs"]
    assert (jobs_of["restarts"], jobs_of["silence"]) == kept


def test_requeue_options_of_the_user_win(calls):
    (sent,) = calls("--no-requeue", "--open-mode=truncate", restarts=3)[1:]
    assert not {"--requeue", "--open-mode=append"} & set(sent)


def test_spare_nodes_are_recorded(start, repository):
    repository.write("configuration.toml", "jobs.restarts = 1\njobs.spare_nodes = 1\n")
    found = start(facts())
    assert (found["nodes"], found["spare_nodes"], found["trained_on"]) == ("2", "1", "1")
    assert "spare_nodes" not in start(facts(NumNodes="1"))
