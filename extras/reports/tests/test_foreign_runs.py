"""Files of runs that other members have written, by mistake or not, stop no report and no page."""

import json
import sys

import pytest
from jobs import test_foreign_files as foreign

from extras.reports.report import report
from extras.reports.report_page import page_of, synced_runs, training_of
from lib.script.errors import LongshipError

ROOT = foreign.ROOT
paths, replace, _in_time = foreign.paths, foreign.replace, foreign._in_time


@pytest.fixture
def page(monkeypatch):
    """Give the program that writes the page; matplotlib draws nothing."""
    monkeypatch.syspath_prepend(ROOT / "extras/reports/inside")
    import report_page

    monkeypatch.setattr(report_page, "draw", lambda *_: None)
    return report_page


def test_record_of_any_kind_stops_no_report(paths, replace):
    run = paths.runs / "1-train"
    replace(run / "record.json")
    shown, problems = report(paths.runs, "", "csv")
    assert ",1,1," in shown.text
    if not (run / "record.json").is_symlink() or (run / "record.json").exists():
        found = [str(each) for each in problems if "1-train" in str(each)]
        assert found == [f"cannot read {run}/record.json: it is left out"]
    assert page_of(paths, ("2",), "")[0]
    assert training_of(ROOT, [run], lambda log: [])["gaps"]


def test_other_files_of_any_kind_stop_no_page(paths, replace, tmp_path, page):
    run = paths.runs / "1-train"
    foreign.replace_files(run, replace)
    replace(tmp_path / "metrics.jsonl")
    found = training_of(ROOT, [run], lambda log: [])
    assert page.page([page.Training(found, "")]).endswith("</html>\n")


def test_page_shows_no_file_behind_a_link(paths, tmp_path):
    """A page of a colleague's run is sent on: it has no file of who makes it."""
    run = paths.runs / "1-train"
    (tmp_path / "private").write_text("commit hidden\n")
    (run / "repositories").mkdir()
    for name in ("packages.txt", "options", "repositories/x.commit"):
        (run / name).symlink_to(tmp_path / "private")
    assert "hidden" not in json.dumps(training_of(ROOT, [run], lambda log: []))


@pytest.mark.parametrize(
    "value", ["1e308", "-1e308", "NaN", "Infinity", "1" + "0" * 400, "1" * 5000, '"1e999"']
)
@pytest.mark.parametrize("name", ["step", "time", "loss", "tokens_per_s"])
def test_extreme_metrics_are_left_out(name, value, paths, tmp_path, monkeypatch, page):
    lines = []
    for step in range(1, 90):
        line = {"step": step, "time": 1767322800 + step, "loss": 2, "tokens_per_s": 100}
        lines.append(json.dumps(line))
        if step % 2:
            lines.append(
                json.dumps({**line, name: 0}).replace(f'"{name}": 0', f'"{name}": {value}')
            )
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "[" * 99999, ""]))
    monkeypatch.setattr(page, "draw", draw_points)
    training = page.Training(training_of(ROOT, [paths.runs / "2-train"], lambda log: []), "")
    assert dict(training.figures())["loss"] == "2.000"
    assert page.page([training]).endswith("</html>\n")


def draw_points(trainings, name, axis, unit):
    """Do what a chart does before matplotlib draws."""
    from report_page import smoothed, thinned

    for training in trainings:
        for points in training.lines(name, axis):
            smoothed(thinned(points, 1)[1])


def test_runs_of_others_are_not_uploaded(paths):
    run = paths.runs / "1-train"
    run.chmod(0o777)
    with pytest.raises(LongshipError, match="sync uploads only your own runs"):
        synced_runs(paths, ("1",))
    assert synced_runs(paths, ()) == synced_runs(paths, ("2",)) == [paths.runs / "2-train"]


def test_runs_option_belongs_to_the_sums(run, root, tmp_path):
    for words, said in (
        (("status", "--runs", tmp_path), "no such option: --runs"),
        (("report", "3", "--runs", tmp_path), "--runs and --since cannot be combined with RUN"),
    ):
        done = run([sys.executable, root / "submit.py", *words], check=False)
        assert done.returncode == 2 and said in done.stderr


def test_runs_of_a_colleague_are_summed(paths, repository, run, root, clean_environment, tmp_path):
    command = [sys.executable, root / "submit.py", "report", "--csv", "--runs", paths.runs]
    environment = {**clean_environment, "LONGSHIP_SCRATCH_DIR": str(tmp_path / "own")}
    done = run([*command, "--runs", tmp_path / "none"], env=environment)
    assert done.stdout.splitlines()[1].split(",")[4:6] == ["1", "1"]
    assert f"warning: no runs found in {tmp_path}/none" in done.stderr
