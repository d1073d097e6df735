"""Scaling studies: what is submitted, and what is made of the measurements."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from extras.scale.scale_report import _csv, _table
from extras.scale.study import Study, Trial, read_study, rows_of, study_file, trials_of
from lib import ROOT
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

STUDY = Study(
    "s", "local/run_training_local.sbatch", "local", "pytorch", (1, 2, 4), 2, 10, 8, False
)


def write_run(runs, job, label, speeds, first=1, **values):
    """Write what a job of a study leaves: its record, and the metrics of its steps."""
    run = runs / f"{job}-{label}"
    (run / "results").mkdir(parents=True)
    record = {
        **{"job": str(job), "name": label, "nodes": "1", "gpus": "4"},
        **{"started": "2026-01-02T03:00:00Z", "ended": "2026-01-02T04:00:00Z"},
        **{"exit_code": "0", "cost_per_hour": "36", **values},
    }
    (run / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    lines = [{"step": n, "tokens_per_s": x, "mfu": 0.4} for n, x in enumerate(speeds, first)]
    text = "".join(f"{json.dumps(each)}\n" for each in lines)
    odd = 'nothing\n[1]\n{"step": Infinity}\n{"step": 9, "tokens_per_s": Infinity}\n{"step": '
    (run / "results/metrics.jsonl").write_text(text + odd)
    (run / "outputs").symlink_to(run / "results")
    return run


@pytest.fixture
def paths(repository, tmp_path):
    """Give paths with a new scratch directory."""
    return repository.settings_and_paths()[1]._replace(scratch_dir=tmp_path)


@pytest.fixture
def command(run, clean_environment, tmp_path):
    """Give a function that runs an entry script of this clone, in a new home directory."""

    def type_in(script, *words, check=True):
        env = {**clean_environment, "HOME": str(tmp_path), "LONGSHIP_MACHINE": "local"}
        return run([sys.executable, Path(ROOT, script), *words], env=env, cwd=ROOT, check=check)

    return type_in


def test_trials_are_found_by_name_and_none_is_left_out(paths):
    write_run(paths.runs, 1, "s-n1-t1", [1, 1, *[100] * 8])
    write_run(paths.runs, 2, "s-n1-t2", [5], exit_code="1", failed="task 0: no memory")
    write_run(paths.runs, 3, "s-n2-t1", [200] * 10, ended="")
    write_run(paths.runs, 4, "s-n2-t2", [0] * 10)
    write_run(paths.runs, 5, "other-s-n4-t1-x", [9] * 10)
    write_run(paths.runs, 6, "other-s-n1-t1", [9] * 10, started="2026-01-03T03:00:00Z")
    found = list(trials_of(paths, STUDY))
    assert [each.state for each in found] == [
        "completed",
        "failed: task 0: no memory",
        "no end recorded",
        f"no tokens_per_s in {paths.runs / '4-s-n2-t2/outputs'}",
        *["not started"] * 2,
    ]
    assert found[0].speeds == (100.0,) * 8  # the first fifth is warm-up
    rows = rows_of(found, STUDY.trials)
    assert [each["trials"] for each in rows] == ["1 of 2", "0 of 2", "0 of 2"]
    assert rows[0]["cost_per_million_tokens"] == pytest.approx(36 / 3600 / 100 * 1e6)


@pytest.mark.parametrize("code", ["0", "143"])
@pytest.mark.parametrize("steps", [1, 3, 9])
def test_trial_that_is_cut_at_its_time_limit_says_so(code, steps, paths):
    limit = {"time_limit": "01:00:00", "exit_code": code}
    run = write_run(paths.runs, 1, "s-n1-t1", [], **limit)
    lines = (f'{{"step": {each}, "tokens_per_s": 9}}\n' for each in range(1, steps + 1))
    (run / "results/metrics.jsonl").write_text("".join(lines))
    (found, *_) = trials_of(paths, STUDY)
    assert found.state == f"ended at step {steps} of 10, after 01:00:00 of 01:00:00"
    assert found.speeds == ()


def test_steps_that_a_resume_repeats_count_once(paths):
    run = write_run(paths.runs, 1, "s-n1-t1", [100, 100, 100, 9, 9])
    resumed = write_run(paths.runs, 2, "other", [100] * 7, first=4)
    first, second = (each / "results/metrics.jsonl" for each in (run, resumed))
    first.write_text(first.read_text() + "\n" + second.read_text())
    (found, *_) = trials_of(paths, STUDY)
    assert (found.state, found.speeds) == ("completed", (100.0,) * 8)


def test_efficiency_is_that_of_the_gpus_relative_to_the_fewest_nodes():
    def trial(nodes, *speeds):
        return Trial(nodes, "completed", None, {"gpus": str(4 * nodes)}, speeds)

    trials = [trial(1, 99, 100, 101), trial(2, 150, 160), trial(2, 160, 170), Trial(4, "failed: x")]
    first, second, third = rows_of(trials, 2)
    assert (first["speed_up"], first["efficiency_percent"]) == (1, 100)
    assert (second["tokens_per_s"], second["speed_up"], second["efficiency_percent"]) == (
        160,
        1.6,
        80,
    )
    assert "speed_up" not in third
    assert "80 %" in _table([first, second, third]).splitlines()[2]
    rows = list(csv.DictReader(io.StringIO(_csv([first, second, third]))))
    assert (rows[1]["tokens_per_s"], rows[1]["lower_quartile"]) == ("160.0", "152.5")
    assert rows[2]["tokens_per_s"] == ""


def test_weak_study_has_the_same_sequences_per_node():
    weak = STUDY._replace(weak=True)
    assert [weak.batch_on(each) for each in weak.nodes] == [8, 16, 32]
    assert [STUDY.batch_on(each) for each in weak.nodes] == [8, 8, 8]


def test_study_is_read_as_it_was_written(paths):
    with pytest.raises(LongshipError, match='no study "s"') as error:
        read_study(paths, "s")
    assert error.value.hint == "submit one: python3 submit.py scale --help"
    file = study_file(paths, "s")
    assert file.parent == paths.runs / "scaling/s"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(STUDY._asdict()))
    assert read_study(paths, "s") == STUDY
    with pytest.raises(LongshipError) as error:
        read_study(paths, "t")
    assert error.value.hint == "studies: s"
    file.write_text('{"name": "s"')
    with pytest.raises(LongshipError, match="cannot read"):
        read_study(paths, "s")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--nodes=2"], "at least two numbers of nodes", "--nodes 1,2,4"),
        (["--nodes=2,two"], "not numbers of nodes", ""),
        (["--nodes=1,2"], "the sequences of a step are not set", "--batch N"),
        (["--nodes=2,3", "--batch=3", "--weak"], "3 sequences on 2 nodes", "a multiple of 2"),
        (["--nodes=1,2", "--batch=8", "--chain=2"], "--chain and --after cannot", "leave them out"),
        (["--nodes=1,2", "--batch=8", "--array=0-1%1"], "--array cannot be used", "leave them"),
        (["--nodes=1,2", "--batch=7"], "7 sequences on 2 nodes cannot", "a multiple of 2"),
        (["--nodes=2,3", "--batch=4"], "4 sequences on 3 nodes cannot", "a multiple of 6"),
        (
            ["--nodes=1,2", "--batch=8", "--weak", "--gpus-per-node=16"],
            "8 sequences on 1 node cannot be divided among 16 ranks",
            "a multiple of 32",
        ),
        (["--nodes=1,2", "--batch=8", "-N5"], "--nodes=5 cannot be used in", "--nodes N,N..."),
        (["--nodes=1,2", "--batch=8", "-Jx"], "--job-name=x cannot be used in", "--name NAME"),
        (
            ["--nodes=1,2", "--batch=8", "--", "--batch-size=4"],
            "--batch-size=4 cannot",
            "--batch N",
        ),
        (["--nodes=2,4", "--batch=8", "--restarts=1", "--spare-nodes=1"], "spare nodes", "=0"),
        (["--nodes=1,2", "--batch=8", "--stack=trl"], "has no settings for steps", "scaling_study"),
    ],
)
def test_study_that_measures_nothing_is_refused(words, message, hint, command):
    done = command("submit.py", "scale", STUDY.job, "--dry-run", *words, check=False)
    assert done.returncode and message in done.stderr and hint in done.stderr, done.stderr


def test_settings_of_a_stack_are_those_of_each_job(command):
    words = ["--stack=megatron-lm", "--nodes=1,2", "--weak", "--name=s", "--steps=20"]
    plan = command("submit.py", "scale", STUDY.job, *words, "--dry-run").stdout
    for nodes, batch in ((1, 128), (2, 256)):  # the stack's own for the fewest nodes
        settings = f'"steps": 20,\n    "run_name": "s-n{nodes}-t1",\n    "global_batch": {batch}'
        assert settings in plan
    assert plan.index("\n  submission_test ") < plan.index("\n  scale_begin ")
    assert plan.index("\n  scale_begin ") < plan.index("\n  submission_send ")


def test_results_of_another_study_are_refused(command, tmp_path):
    (tmp_path / "longship-data/scratch/checkpoints/s-n2-t1").mkdir(parents=True)
    words = ["--nodes=1,2", "--batch=8", "--name=s", "--dry-run"]
    done = command("submit.py", "scale", STUDY.job, *words, check=False)
    assert "there are results of another study: " in done.stderr and "--name=NAME" in done.stderr


def test_study_of_a_name_is_begun_once(run, tmp_path):
    script = render("a test", [call("scale_begin", tmp_path / "scaling/s/study.json", "{}")])
    assert run(["bash", "-c", script]).stderr == ""
    done = run(["bash", "-c", script.replace("{}", "[]")], check=False)
    assert "there is a study of this name" in done.stderr
    assert (tmp_path / "scaling/s/study.json").read_text() == "{}\n"
    assert (tmp_path / "scaling/s").stat().st_mode & 0o777 == 0o700
