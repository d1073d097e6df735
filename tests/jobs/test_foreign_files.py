"""Files of runs that other members have written, by mistake or not, stop no command."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.git import make_upstream

from lib.jobs import status, working_tree
from lib.jobs.runs import check_still_there, recorded_run, values_of
from lib.repositories.git import GitError
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.records import content_of, read_record, readable_values
from lib.script.render import render

ROOT = Path(__file__).resolve().parents[2]


def make_sparse(file):
    with open(file, "wb") as stream:
        stream.truncate(1 << 40)


KINDS = {
    "FIFO": os.mkfifo,
    "directory": os.mkdir,
    "/dev/zero": lambda file: os.symlink("/dev/zero", file),
    "1 TB": make_sparse,
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


def test_record_of_any_kind_stops_no_status(paths, replace):
    run = paths.runs / "1-train"
    replace(run / "record.json")
    assert readable_values(run / "record.json") == {}
    assert len(list(status._ended(paths.runs, set()))) == 2


def test_record_of_any_kind_cannot_be_rerun(paths, replace):
    run = paths.runs / "1-train"
    replace(run / "record.json")
    with pytest.raises(LongshipError, match='no run "7" in'):
        recorded_run(paths, "7")
    with pytest.raises(LongshipError):
        check_still_there(recorded_run(paths, "1-train"))


def test_other_files_of_any_kind_stop_no_status(paths, replace):
    run = paths.runs / "1-train"
    replace_files(run, replace)
    values_of(run, readable_values(run / "record.json"))
    list(status._ended(paths.runs, set()))


def replace_files(run, replace):
    (run / "repositories").mkdir()
    (run / "usage").mkdir()
    names = ("packages.txt", "options", "slurm.txt", "repositories/x.commit", "usage/n1.csv")
    for name in (*names, "repositories/x.patch", "log"):
        replace(run / name)


@pytest.mark.parametrize(
    "words",
    [
        ("file_read", "FILE"),
        ("record_is_complete", "FILE"),
        ("record_change", "FILE", "base", "x"),
        ("asset_has_files", "FILE", "/"),
        ("checksums_verify", "FILE", "/", "copy it again"),
        ("store_activate", "a/x.sif", "a/versions/new.sif", "use"),
    ],
)
def test_file_of_any_kind_stops_no_bash(words, replace, run, tmp_path):
    file = tmp_path / "a/versions/x.sif.history"
    file.parent.mkdir(parents=True)
    kind = replace(file)
    if kind in ("no object", "deep"):
        return  # text like any other
    lines = [call(*(str(file) if each == "FILE" else each for each in words)), "echo done"]
    done = run(["bash", "-c", render("a test", lines)], cwd=tmp_path, check=False, timeout=6)
    is_missing = words[0] == "store_activate" and kind == "dangling link"
    assert (done.returncode == 0) == is_missing, done.stderr


def test_value_of_a_record_of_any_kind_is_none(replace, run, tmp_path):
    replace(tmp_path / "record.json")
    lines = [call("record_value", tmp_path / "record.json", "job"), 'echo "$REPLY"']
    assert run(["bash", "-c", render("a test", lines)], timeout=6).stdout == "\n"


def test_content_of_a_file_without_a_size_is_read():
    assert b"processor" in content_of(Path("/proc/cpuinfo"))
    assert content_of(Path("/proc/cpuinfo"), 9) == b""


def test_record_with_other_values_than_strings_has_none(tmp_path):
    (tmp_path / "record.json").write_text('{"log": 5, "job": "1"}')
    assert read_record(tmp_path / "record.json") == {"job": "1"}


@pytest.mark.parametrize("name", [".git/config", ".git/HEAD", ".gitattributes", ".gitignore"])
@pytest.mark.parametrize("kind", ["FIFO", "1 TB"])
def test_file_that_git_would_wait_for_is_named(name, kind, tmp_path, clean_environment):
    repository = make_upstream(tmp_path / "code", clean_environment)
    (repository.folder / name).unlink(missing_ok=True)
    KINDS[kind](repository.folder / name)
    with pytest.raises(GitError, match=f"{name}: it is "):
        working_tree.WorkingTree(repository.folder).describe(tmp_path / "record")


@pytest.mark.parametrize("name", ["new", ".git/index", ".git/info/exclude"])
@pytest.mark.parametrize("kind", ["FIFO", "/dev/zero"])
def test_other_strange_files_do_not_stop_the_freezing(name, kind, tmp_path, clean_environment):
    repository = make_upstream(tmp_path / "code", clean_environment)
    (repository.folder / name).unlink(missing_ok=True)
    KINDS[kind](repository.folder / name)
    code = working_tree.WorkingTree(repository.folder)
    assert "data.py" in code.names("ls-files -z --cached --others")
    code.describe(tmp_path / "record")
    assert (tmp_path / "record.commit").read_text().startswith(f"commit {repository.head()}")
