"""The report on all runs: sums for a proposal, and what they lack."""

import csv
import io
import json
import os
import pwd
import shutil

import pytest

from extras.reports.report import report

RECORD = {
    **{"project": "p", "stack": "s", "gpus": "4", "nodes": "1"},
    **{"started": "2026-01-02T03:00:00Z", "ended": "2026-01-02T04:00:00Z"},
    **{"cost_per_hour": "8", "cost_unit": "core-hours"},
}
MEASURED = {
    **{"gpu_hours": "4", "gpu_utilisation_percent": "80", "measured_percent": "100"},
    **{"energy_kwh": "1.5", "cost": "8", "gpu_peak_memory_mib": "100"},
}
USER = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def runs(tmp_path):
    """Give a function that writes records, and returns their folder."""

    def write(*records):
        for number, record in enumerate(records, 1):
            folder = tmp_path / f"runs/{number}-train"
            folder.mkdir(parents=True)
            (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
        return tmp_path / "runs"

    return write


def rows_of(folder, since=""):
    shown, problems = report(folder, since, "csv")
    return list(csv.DictReader(io.StringIO(shown.text))), problems


def test_runs_are_summed_by_user_project_month_and_stack(runs):
    other = {**MEASURED, "gpu_utilisation_percent": "20", "gpu_hours": "12", "cost": "24"}
    folder = runs(
        {**RECORD, **MEASURED},
        {**RECORD, **other},
        {**RECORD, **MEASURED, "started": "2026-02-02T03:00:00Z"},
        {**RECORD, **MEASURED, "stack": "t"},
        {**RECORD, **MEASURED, "project": "q"},
    )
    rows, problems = rows_of(folder)
    assert problems == []
    groups = [(row["user"], row["project"], row["month"], row["stack"]) for row in rows]
    assert groups == [
        (USER, "p", "2026-01", "s"),
        (USER, "p", "2026-01", "t"),
        (USER, "p", "2026-02", "s"),
        (USER, "q", "2026-01", "s"),
    ]
    first = rows[0]
    assert (first["runs"], first["gpu_hours"], first["energy_kwh"]) == ("2", "16", "3.0")
    assert (first["gpu_utilisation_percent"], first["measured_percent"]) == ("35.0", "100.0")
    assert (first["cost"], first["cost_unit"]) == ("32", "core-hours")
    assert [row["month"] for row in rows_of(folder, "2026-02")[0]] == ["2026-02"]


def test_table_and_json_have_the_same_rows(runs):
    folder = runs({**RECORD, **MEASURED})
    table, _ = report(folder, "", "table")
    heading, line = table.text.splitlines()
    assert heading.split()[:4] == ["user", "project", "month", "stack"]
    assert line.split() == f"{USER} p 2026-01 s 1 4.0 100 % 80 % 1.5 8.0 core-hours".split()
    (row,) = json.loads(report(folder, "", "json")[0].text)
    assert (row["gpu_hours"], row["energy_kwh"], row["cost_unit"]) == (4, 1.5, "core-hours")


def test_what_is_not_measured_is_never_zero(runs):
    folder = runs(RECORD)
    (row,), (problem,) = rows_of(folder)
    assert (row["gpu_hours"], row["cost"]) == ("4", "8")
    assert row["gpu_utilisation_percent"] == row["energy_kwh"] == "not measured"
    assert str(problem) == "not measured: 1-train" and "jobs.usage" not in problem.hint
    (folder / "1-train/configuration.json").write_text('{"jobs": {\n  "usage": 0\n}}\n')
    assert "set jobs.usage = 30" in rows_of(folder)[1][0].hint
    assert report(folder, "", "table")[0].text.count("not measured") == 2
    assert '"energy_kwh": null' in report(folder, "", "json")[0].text


def test_run_without_measurements_lowers_no_mean(runs):
    (row,), (problem,) = rows_of(runs({**RECORD, **MEASURED}, *[RECORD] * 7))
    assert (row["gpu_hours"], row["measured_percent"]) == ("32", "12.5")
    assert (row["gpu_utilisation_percent"], row["energy_kwh"]) == ("80.0", "1.5")
    assert str(problem).endswith("2-train, 3-train, 4-train, 5-train, 6-train and 2 more")


def test_tasks_of_an_array_are_one_run(tmp_path):
    for name in ("7_0-train", "7_10-train", "71-train", "8_0-train"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps(RECORD, indent=2) + "\n")
    (row,), (problem,) = rows_of(tmp_path)
    assert (row["runs"], row["gpu_hours"]) == ("3", "16")
    assert str(problem) == "not measured: 71-train, 7-train, 8-train"


def test_run_without_gpus_has_no_gpu_hours_and_is_no_gap(runs, tmp_path):
    measured = {"gpu_hours": "0", "measured_percent": "90", "cpu_load": "40", "cost": "8"}
    (row,), problems = rows_of(runs({**RECORD, "gpus": "0", **measured}))
    assert (row["gpu_hours"], row["cost"], problems) == ("0", "8", [])
    assert (row["measured_percent"], row["energy_kwh"]) == ("90.0", "")
    assert "not measured" not in report(tmp_path / "runs", "", "table")[0].text


def test_record_of_an_older_version_is_summed_or_named(runs):
    old = {name: value for name, value in RECORD.items() if name not in ("project", "cost_unit")}
    old |= {"account": "acc", "cost_per_hour": ""}
    rows, problems = rows_of(runs(old, {"job": "3", "started": RECORD["started"]}))
    assert [(row["project"], row["cost"]) for row in rows] == [("acc", "")]
    assert "2-train/record.json is left out: it has no gpus and no nodes" in str(problems[0])
    assert "rm -r " in problems[0].hint


def test_run_whose_end_is_unknown_is_left_out(runs):
    rows, (problem,) = rows_of(runs({**RECORD, "ended": ""}))
    assert rows == [] and "1-train" in str(problem)
    assert problem.hint.endswith("python3 submit.py status")


def test_what_a_record_holds_moves_no_cursor(runs):
    folder = runs({**RECORD, **MEASURED, "project": "\x1b[31mred\n", "stack": "=cmd"})
    text = report(folder, "", "table")[0].text
    assert all(line.isprintable() for line in text.splitlines())
    assert rows_of(folder)[0][0]["project"] == "?[31mred?"


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_csv_is_a_formula(text, runs):
    """A spreadsheet shows what follows an apostrophe as text."""
    folder = runs({**RECORD, **MEASURED, "project": text, "cost_unit": "-3.5"})
    (row,), _ = rows_of(folder)
    assert row["project"] == "'" + text.replace("\t", "?").replace("\r", "?")
    assert row["cost_unit"] == "-3.5"


def test_runs_of_colleagues_are_read_too(runs, tmp_path):
    folder = runs({**RECORD, **MEASURED})
    other = tmp_path / "theirs"
    shutil.copytree(folder, other)
    shutil.copytree(folder / "1-train", other / "2-train")
    (tmp_path / "link").symlink_to(folder)
    shown, problems = report(folder, "", "csv", [tmp_path / "link", other])
    assert next(csv.DictReader(io.StringIO(shown.text)))["runs"] == "3" and problems == []
    (tmp_path / "none").mkdir()
    _, (problem,) = report(folder, "", "csv", [tmp_path / "none"])
    assert str(problem) == f"no runs found in {tmp_path}/none" and "chmod g+rx" in problem.hint


@pytest.mark.skipif(not os.geteuid(), reason="root reads all")
def test_closed_runs_are_told(runs):
    folder = runs({**RECORD, **MEASURED}, {**RECORD, **MEASURED})
    (folder / "2-train").chmod(0)
    (row,), (problem,) = rows_of(folder)
    (folder / "2-train").chmod(0o700)
    assert row["runs"] == "1"
    assert str(problem) == f"cannot read these runs in {folder}: 2-train"
    assert problem.hint.endswith(f"chmod g+rx {folder} {folder}/[0-9]*/")


def test_huge_numbers_of_a_record_are_not_measured(runs):
    folder = runs({**RECORD, **MEASURED, "energy_kwh": "9" * 400, "cost": "1" * 9999})
    (row,), _ = rows_of(folder)
    assert (row["energy_kwh"], row["cost"]) == ("not measured", "")


def test_no_runs_are_told(tmp_path):
    assert report(tmp_path, "", "table")[0].text == "no runs found\n"
