"""Files of runs that other members have written, by mistake or not, stop no command."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.git import make_upstream

from lib.commands.submit_report import findings_of
from lib.jobs import status, working_tree
from lib.jobs.report import report
from lib.jobs.report_page import page_of, synced_runs, training_of
from lib.jobs.runs import check_still_there, recorded_run, values_of
from lib.script.errors import LongshipError
from lib.script.records import content_of, read_record, readable_values

ROOT = Path(__file__).resolve().parents[2]


def make_sparse(file):
    with open(file, "wb") as stream:
        stream.truncate(3 << 30)


KINDS = {
    "FIFO": os.mkfifo,
    "directory": os.mkdir,
    "/dev/zero": lambda file: os.symlink("/dev/zero", file),
    "3 GB": make_sparse,
    "dangling link": lambda file: os.symlink("/no/such/file", file),
    "no object": lambda file: Path(file).write_text('["log"]\n'),
    "deep": lambda file: Path(file).write_text("[" * 99999),
}


@pytest.fixture(params=KINDS)
def replace(request):
    """Give a function that replaces a file."""

    def replace(file):
        with suppress(FileNotFoundError):
            file.unlink()
        KINDS[request.param](file)
        return request.param

    return replace


@pytest.fixture(autouse=True)
def _in_time():
    """Each command ends within a few seconds, of which most are the machine's."""

    def fail(*_):
        raise AssertionError("it takes too long")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(8)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def paths(repository, tmp_path):
    """Give the paths of a repository with two runs, of which the second is complete."""
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/scratch"\n')
    _, paths = repository.settings_and_paths()
    for job in (1, 2):
        run = paths.runs / f"{job}-train"
        run.mkdir(parents=True)
        values = {"job": str(job), "started": "2026-01-02T03:00:00Z", "nodes": "1", "gpus": "1"}
        values.update(stack="pytorch", name="train", log=str(run / "log"))
        if job == 2:
            values.update(ended="2026-01-02T04:00:00Z", exit_code="0")
        (run / "record.json").write_text(json.dumps(values, indent=2))
        (run / "log").write_text("done\n")
        (run / "outputs").symlink_to(tmp_path)
    return paths


def test_record_of_any_kind_stops_no_report(paths, replace):
    run = paths.runs / "1-train"
    replace(run / "record.json")
    assert readable_values(run / "record.json") == {}
    shown, problems = report(paths.runs, "", "csv")
    assert ",1,1.0," in shown.text
    if not (run / "record.json").is_symlink() or (run / "record.json").exists():
        found = [str(each) for each in problems if "1-train" in str(each)]
        assert found == [f"cannot read {run}/record.json: it is left out"]
    assert len(list(status._ended(paths.runs, set()))) == 2
    assert page_of(paths, ("2",), "")[0]
    assert training_of(ROOT, [run], lambda log: [])["gaps"]


def test_record_of_any_kind_cannot_be_rerun(paths, replace):
    run = paths.runs / "1-train"
    replace(run / "record.json")
    with pytest.raises(LongshipError, match='no run "7" in'):
        recorded_run(paths, "7")
    with pytest.raises(LongshipError):
        check_still_there(recorded_run(paths, "1-train"))


def test_other_files_of_any_kind_stop_no_page(paths, replace, tmp_path, monkeypatch):
    run = paths.runs / "1-train"
    (run / "repositories").mkdir()
    (run / "usage").mkdir()
    names = ("packages.txt", "options", "slurm.txt", "repositories/x.commit", "usage/n1.csv")
    for name in (*names, "repositories/x.patch", "log"):
        replace(run / name)
    replace(tmp_path / "metrics.jsonl")
    values_of(run, readable_values(run / "record.json"))
    list(status._ended(paths.runs, set()))
    monkeypatch.syspath_prepend(ROOT / "lib/jobs/inside")
    import report_page

    monkeypatch.setattr(report_page, "draw", lambda *_: None)
    found = training_of(ROOT, [run], lambda log: [])
    assert report_page.page([report_page.Training(found, "")]).endswith("</html>\n")


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
def test_extreme_metrics_are_left_out(name, value, paths, tmp_path, monkeypatch):
    lines = []
    for step in range(1, 90):
        line = {"step": step, "time": 1767322800 + step, "loss": 2, "tokens_per_s": 100}
        lines.append(json.dumps(line))
        if step % 2:
            lines.append(
                json.dumps({**line, name: 0}).replace(f'"{name}": 0', f'"{name}": {value}')
            )
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "[" * 99999, ""]))
    monkeypatch.syspath_prepend(ROOT / "lib/jobs/inside")
    import report_page

    monkeypatch.setattr(report_page, "draw", draw_points)
    training = report_page.Training(training_of(ROOT, [paths.runs / "2-train"], findings_of), "")
    assert dict(training.figures())["loss"] == "2.000"
    assert report_page.page([training]).endswith("</html>\n")


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


def test_content_of_a_file_without_a_size_is_read():
    assert b"processor" in content_of(Path("/proc/cpuinfo"))
    assert content_of(Path("/proc/cpuinfo"), 9) == b""


def test_record_with_other_values_than_strings_has_none(tmp_path):
    (tmp_path / "record.json").write_text('{"log": 5, "job": "1"}')
    assert read_record(tmp_path / "record.json") == {"job": "1"}


@pytest.mark.parametrize("name", ["new", ".git/index", ".git/info/exclude"])
@pytest.mark.parametrize("kind", ["FIFO", "/dev/zero"])
def test_other_strange_files_do_not_stop_the_freezing(name, kind, tmp_path, clean_environment):
    repository = make_upstream(tmp_path / "code", clean_environment)
    (repository.folder / name).unlink(missing_ok=True)
    KINDS[kind](repository.folder / name)
    code = working_tree.WorkingTree(repository.folder)
    assert "data.py" in code.files
    code.describe(tmp_path / "record")


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
    assert done.stdout.splitlines()[1].split(",")[4:6] == ["1", "1.0"]
    assert f"warning: no runs found in {tmp_path}/none" in done.stderr
