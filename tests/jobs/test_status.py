"""What submit.py status says of jobs, with a squeue that answers as Slurm does."""

import json

import pytest

from lib.script.command import call
from lib.script.render import render

RECORD = {
    "job": "7",
    "started": "2026-01-02T03:00:00Z",
    "cost_per_hour": "4",
    "cost_unit": "GPU-hours",
}


@pytest.fixture
def status(clean_environment, run, tmp_path):
    """Give a function that shows the jobs of squeue's lines, with a record of job 7."""

    def show(queued, record, function="show_jobs", *, of_others=False):
        (tmp_path / "squeue").write_text(f"#!/bin/bash\necho '{queued}'\n")
        (tmp_path / "squeue").chmod(0o755)
        folder = tmp_path / "runs/7-train"
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f'  "{name}": "{value}"' for name, value in record.items())
        (folder / "record.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        (folder / "slurm.txt").write_text("JobId=7 SubmitTime=2026-01-02T04:30:00 EligibleTime=\n")
        env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}", "TZ": "UTC"}
        script = render("a test", [call(function, tmp_path / "runs")])
        if of_others:  # only root could make such a file: look at it as somebody else
            script = script.replace('"$UID"', '"$((UID + 1))"')
        return run(["bash", "-c", script], env=env).stdout

    return show


def test_cost_is_shown_where_a_price_is_known(status):
    queued = "7|RUNNING|30:00|1:00:00|1|None|train"
    assert "2.00 GPU-hours so far" in status(queued, RECORD)
    free = status(queued, {**RECORD, "cost_per_hour": ""})
    assert "so far" not in free and free.splitlines()[0].split()[-1] == "nodes"


@pytest.mark.parametrize(
    ("queued", "more", "cost"),
    [
        ("7|RUNNING|30:00|1:00:00|1|None|train", {"earlier_seconds": "3600"}, "6.00"),
        ("7|PENDING|0:00|1:00:00|1|BeginTime|train", {"ended": "2026-01-02T04:00:00Z"}, "4.00"),
        ("7|PENDING|0:00|1:00:00|1|BeginTime|train", {}, "6.00"),  # its node was lost
    ],
)
def test_cost_of_a_requeued_job_goes_on(queued, more, cost, status):
    assert f"{cost} GPU-hours so far" in status(queued, {**RECORD, **more})


def test_cost_of_a_requeued_job_that_has_ended_is_that_of_all_attempts(status):
    more = {"ended": "2026-01-02T04:00:00Z", "exit_code": "0", "earlier_seconds": "1800"}
    (job,) = json.loads(status("", {**RECORD, **more}, "jobs_as_json"))
    assert job["cost"] == 6


@pytest.mark.parametrize("function", ["show_jobs", "jobs_as_json"])
def test_runs_of_others_are_not_shown(function, status):
    ended = {**RECORD, "ended": "2026-01-02T04:00:00Z", "exit_code": "0", "name": "mine"}
    assert "mine" in status("", ended, function)
    assert "mine" not in status("", ended, function, of_others=True)
    waits = "7|RUNNING|30:00|1:00:00|1|None|train"
    assert "GPU-hours" in status(waits, ended, function)
    assert "GPU-hours" not in status(waits, ended, function, of_others=True)


def test_start_of_a_requeued_job_records_how_long_it_has_run(clean_environment, run, tmp_path):
    (tmp_path / "record.json").write_text(
        '{\n  "started": "2026-01-02T03:00:00Z",\n  "ended": "2026-01-02T03:10:00Z",\n'
        '  "earlier_seconds": "60"\n}\n'
    )
    lines = [
        f"RUN_DIR={tmp_path} JOB_ARGUMENTS=() SLURM_JOB_NODELIST=n",
        "longship_facts=(job 7) longship_log=",
        "begin_record",
        "trap - EXIT",
    ]
    run(["bash", "-c", render("a test", lines)], env=clean_environment)
    assert json.loads((tmp_path / "record.json").read_text())["earlier_seconds"] == "660"


@pytest.mark.parametrize(
    "said", ["\x1b]0;x\x07\x1b[31mred", 'a"b', "\\x", "\x9b2J", "a\\", "\\u12"]
)
def test_what_a_record_holds_moves_no_cursor_and_breaks_no_json(said, status, tmp_path):
    (tmp_path / "log").write_text(f"{said}\n")
    record = {name: said for name in ("name", "failed", "cost_unit", "cost_per_hour", "nodes")}
    record |= {"job": "6", "ended": said, "started": said, "earlier_seconds": said}
    record |= {"exit_code": "1", "log": str(tmp_path / "log")}
    for queued in ("", f"7|PENDING|0:00|1:00:00|1|{said}|{said}".replace("\\", "")):
        jobs = json.loads(status(queued, record, "jobs_as_json"))
        assert len(jobs) == 1 + bool(queued)
        shown = status(queued, record)
        assert all(each.isprintable() for each in shown.splitlines()), shown


def test_what_a_record_holds_is_never_evaluated(status, tmp_path):
    canary = tmp_path / "was run"
    text = f"a[$(touch '{canary}')]"
    for name in ("earlier_seconds", "ended", "started", "cost_per_hour", "exit_code"):
        for queued in ("", "7|PENDING|0:00|1:00:00|1|None|train"):
            status(queued, {**RECORD, name: text})
            json.loads(
                status(queued, {**RECORD, "ended": RECORD["started"], name: text}, "jobs_as_json")
            )
    assert not canary.exists()
