"""What submit.py status says of jobs, with a squeue that answers as Slurm does."""

import json
import os
import time

import pytest

from lib.jobs import status
from lib.script.errors import LongshipError
from lib.script.records import readable_values, seconds_before

RECORD = {
    "job": "7",
    "started": "2026-01-02T03:00:00Z",
    "cost_per_hour": "4",
    "cost_unit": "GPU-hours",
}


@pytest.fixture
def show(tmp_path, monkeypatch):
    """Give a function that shows the jobs of squeue's lines, with a record of job 7."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def report(queued, record, form=status.status, *, of_others=False):
        (tmp_path / "squeue").write_text(f"#!/bin/bash\necho '{queued}'\n")
        said = f"ClusterName             = {report.cluster}" if report.cluster else ""
        (tmp_path / "scontrol").write_text(f"#!/bin/bash\necho '{said}'\n[[ '{said}' ]]\n")
        for each in ("squeue", "scontrol"):
            (tmp_path / each).chmod(0o755)
        folder = tmp_path / "runs/7-train"
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f'  "{name}": "{value}"' for name, value in record.items())
        (folder / "record.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        (folder / "slurm.txt").write_text("JobId=7 SubmitTime=2026-01-02T04:30:00 EligibleTime=\n")
        user = os.geteuid()
        with monkeypatch.context() as patched:
            # only root could make such a file: look at it as somebody else
            patched.setattr("os.geteuid", lambda: user + 1 if of_others else user)
            return form(tmp_path / "runs").text

    report.cluster = "one"
    yield report
    monkeypatch.undo()
    time.tzset()


def jobs(show, queued, record):
    return json.loads(show(queued, record, status.status_as_json))


def test_cost_is_shown_where_a_price_is_known(show):
    queued = "7|RUNNING|30:00|1:00:00|1|None|train"
    assert "2.00 GPU-hours so far" in show(queued, RECORD)
    free = show(queued, {**RECORD, "cost_per_hour": ""})
    assert "so far" not in free and free.splitlines()[0].split()[-1] == "nodes"


@pytest.mark.parametrize(
    ("queued", "more", "cost"),
    [
        ("7|RUNNING|30:00|1:00:00|1|None|train", {"earlier_seconds": "3600"}, "6.00"),
        ("7|PENDING|0:00|1:00:00|1|BeginTime|train", {"ended": "2026-01-02T04:00:00Z"}, "4.00"),
    ],
)
def test_cost_of_a_requeued_job_goes_on(queued, more, cost, show):
    assert f"{cost} GPU-hours so far" in show(queued, {**RECORD, **more})


def test_cost_of_a_job_that_waits_after_its_node_was_lost_is_unknown(show):
    assert "so far" not in show("7|PENDING|0:00|1:00:00|1|BeginTime|train", RECORD)


def test_cost_of_a_requeued_job_that_has_ended_is_that_of_all_attempts(show):
    more = {"ended": "2026-01-02T04:00:00Z", "exit_code": "0", "earlier_seconds": "1800"}
    (job,) = jobs(show, "", {**RECORD, **more})
    assert job["cost"] == 6


def test_run_of_a_cluster_that_shares_the_files_is_not_that_of_the_job(show):
    queued = "7|RUNNING|30:00|1:00:00|1|None|train"
    assert "GPU-hours" in show(queued, {**RECORD, "cluster": "one"})
    assert "GPU-hours" not in show(queued, {**RECORD, "cluster": "other"})


def test_run_is_shown_where_slurm_does_not_name_its_cluster(show, tmp_path):
    queued = "7|RUNNING|30:00|1:00:00|1|None|train"
    show.cluster = ""
    assert "GPU-hours" in show(queued, {**RECORD, "cluster": "one"})


def test_jobs_of_one_name_are_told_apart_by_their_arguments(show):
    record = {**RECORD, "arguments": "'--steps' '5 000'"}
    assert "\n    --steps '5 000'\n" in show("7|RUNNING|30:00|1:00:00|1|None|train", record)
    assert "\n    --steps '5 000'\n" in show("", {**record, "ended": "2026-01-02T04:00:00Z"})


def test_reason_that_slurm_does_not_give_is_not_shown(show):
    assert "pending" not in show("7|PENDING|0:00|1:00:00|1|None|train", RECORD)


@pytest.mark.parametrize("form", [status.status, status.status_as_json])
def test_runs_of_others_are_not_shown(form, show):
    ended = {**RECORD, "ended": "2026-01-02T04:00:00Z", "exit_code": "0", "name": "mine"}
    assert "mine" in show("", ended, form)
    assert "mine" not in show("", ended, form, of_others=True)
    waits = "7|RUNNING|30:00|1:00:00|1|None|train"
    assert "GPU-hours" in show(waits, ended, form)
    assert "GPU-hours" not in show(waits, ended, form, of_others=True)


def test_requeued_job_has_run_in_all_attempts(tmp_path):
    (tmp_path / "record.json").write_text(
        '{\n  "started": "2026-01-02T03:00:00Z",\n  "ended": "2026-01-02T03:10:00Z",\n'
        '  "earlier_seconds": "60"\n}\n'
    )
    assert seconds_before(tmp_path, readable_values(tmp_path / "record.json")) == 660


SAID = [
    "\x1b]0;x\x07\x1b[31mred",
    'a"b',
    "\\x",
    "\x9b2J",
    "a\\",
    "\\u12",
    "\\ud800",
    "nan",
    "1e999",
]


@pytest.mark.parametrize("said", SAID)
def test_what_a_record_holds_moves_no_cursor_and_breaks_no_json(said, show, tmp_path):
    (tmp_path / "log").write_text(f"{said}\n")
    record = {name: said for name in ("name", "failed", "cost_unit", "cost_per_hour", "nodes")}
    record |= {"job": "6", "ended": said, "started": said, "earlier_seconds": said}
    record |= {"exit_code": "1", "log": str(tmp_path / "log")}
    for queued in ("", f"7|PENDING|0:00|1:00:00|1|{said}|{said}".replace("\\", "")):
        shown = show(queued, record)
        assert all(each.isprintable() for each in shown.splitlines()), shown
        text = show(queued, record, status.status_as_json)
        assert text.encode() and "NaN" not in text and "Infinity" not in text
        assert len(json.loads(text)) == 1 + bool(queued)


@pytest.mark.parametrize(
    "record", ["", "{", '{\n  "job": "7",\n  "exit_code": "3"', "\0\xff", "[1]"]
)
def test_damaged_record_is_shown_as_far_as_it_can_be_read(record, show, tmp_path):
    show("", RECORD)
    (tmp_path / "runs/7-train/record.json").write_text(record, encoding="latin-1")
    found = status.status(tmp_path / "runs")
    assert "  end time unknown  exit code " in found.text
    assert found.following.startswith("python3 doctor.py explain")
    assert ("7            " in found.text and "exit code 3" in found.text) == (
        "exit_code" in record
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'squeue: error: x: no route'; exit 1", "squeue failed: x: no route"),
        ("exit 1", "squeue failed: no reason given"),
    ],
)
def test_slurm_that_fails_is_told(script, message, show, tmp_path):
    (tmp_path / "squeue").write_text(f"#!/bin/bash\n{script}\n")
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(LongshipError, match=message):
        status.status(tmp_path / "runs")


@pytest.fixture
def array(show, tmp_path):
    """Give a function that writes the record of a task of array 9."""

    def write(task, **values):
        folder = tmp_path / f"runs/9_{task}-sweep"
        folder.mkdir(parents=True, exist_ok=True)
        record = {"job": f"9_{task}", "name": "sweep", "values": f"'--rate' '{task} x'", **values}
        lines = (f'  "{name}": "{value}"' for name, value in record.items())
        (folder / "record.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

    return write


def test_array_is_one_line_and_its_tasks(array, show):
    ended = {"ended": "2026-01-02T04:00:00Z", "exit_code": "0"}
    for task in range(9):
        array(task, **ended)
    array(9)
    array(10, **{**ended, "exit_code": "143", "stopped": "cancelled"})
    array(11, **{**ended, "exit_code": "0", "stopped": "requeued"})
    array(12, **{**ended, "exit_code": "1", "failed": "task 3"})
    queued = (
        "9_9|RUNNING|30:00|1:00:00|1|None|sweep\n7|RUNNING|30:00|1:00:00|1|None|train\n9_11|PENDING|0:00|1:00:00|1|None|sweep\n"
        "9_[13-20:2,30%2]|PENDING|0:00|1:00:00|1|Resources|sweep"
    )
    lines = show(queued, RECORD).splitlines()
    head = "9            sweep            1 running, 6 pending, 9 completed, 1 cancelled, 1 failed"
    assert lines[1] == head and lines.count(head) == 2
    assert lines[2].split()[:3] == ["9_9", "sweep", "RUNNING"]
    assert lines[3] == "    --rate '9 x'"
    shown = lines[lines.index(head, 2) :]
    assert sum(line.startswith("9_") for line in shown) == 8  # the newest
    assert any("  cancelled, exit code 143  " in each for each in shown)
    assert "    --rate '12 x'" in shown and any("exit code 1  task 3" in each for each in shown)
    rows = jobs(show, queued, RECORD)
    assert [each["id"] for each in rows[:3]] == ["9_9", "9_11", "9_[13-20:2,30%2]"]
    assert rows[0]["values"] == "--rate '9 x'" and len(rows) == 4 + 11


def test_single_task_of_an_array_needs_no_line_of_its_own(array, show):
    array(3, ended="2026-01-02T04:00:00Z", exit_code="0")
    assert not any(line.startswith("9 ") for line in show("", RECORD).splitlines())
