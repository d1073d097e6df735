"""Arguments of a job array that are lines of files: at submission, and in each of its tasks."""

import json
import shlex

import pytest
from support.requests import cost_of, facts

from lib.script.errors import LongshipError

LINES = ["1e-4", "it's  2 'x' \"y\"", "$HOME `id` \\n *", "", "@{rates}", "a&\\&"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give the working directory, with two files of values."""
    (tmp_path / "rates").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "my file").write_text("".join(f"{number}\r\n" for number in range(9)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept(submit):
    """Give what the submission has kept for its tasks."""
    (file,) = (submit.site.scratch / "runs/values").iterdir()
    return file, json.loads(file.read_text())


def test_line_is_an_argument_as_it_is(submit, calls, start, folder):
    words = ["--rate", "@{rates}", "--name=r-@{rates}/@{my file}", "@{}", "x@y"]
    called = calls(f"--array=0-{len(LINES) - 1}", "--time=20", "--", *words)
    assert called[-1][-5:] == words
    file, of_tasks = kept(submit)
    assert list(of_tasks) == [*map(str, range(len(LINES)))]
    for task, line in enumerate(LINES):
        name = f"--name=r-{line}/{task}"
        assert of_tasks[str(task)] == ["--rate", line, name, "@{}", "x@y"]
        environ = {"SLURM_ARRAY_TASK_ID": str(task), "LONGSHIP_JOB_VALUES": str(file)}
        found = start(facts(), env=environ, arguments=words)
        assert shlex.split(found["values"]) == ["--rate", *([line] if line else []), name]


def test_values_and_price_of_all_tasks_are_shown(submit, folder):
    words = ["--array=0-8:4,1%2", "--time=20", "--", "--rate", "@{my file}"]
    values, price = cost_of(submit(*words))[:2]
    assert values == "task 0: --rate 0; task 8: --rate 8"
    assert "4 jobs; at most 64.0 core-hours" in price


def test_argument_that_names_no_file_is_left_alone(calls, folder):
    assert calls("--", "HEAD@{1}")[-1][-1] == "HEAD@{1}"


@pytest.mark.parametrize(
    ("argument", "array", "message", "hint"),
    [
        ("@{rates}", "", "@{rates} requires a job array", "add --array=0-7"),
        ("@{rat}", "--array=0-1", "cannot read rat as text: ", "write a line for each task"),
        ("@{.}", "--array=0-1", "cannot read . as text: ", "write a line for each task"),
        ("@{bytes}", "--array=0-1", "cannot read bytes as text: ", "as UTF-8"),
        ("@{my file}", "--array=1-9", "my file has 9 lines of text, but task 9 takes line 10", ""),
        ("@{empty}", "--array=0", "empty has 0 lines of text, but task 0 takes line 1", ""),
        ("@{zero}", "--array=0-1", "zero has 2 lines of text, but", ""),
        (
            "--seed",
            "--array=0-3",
            "--array=0-3: 4 tasks would run the same command",
            "'@{seeds.txt}'",
        ),
        (
            "--seed",
            "--array=0-3%2",
            "--array=0-3%2: 4 tasks would run the same command",
            "add --yes",
        ),
    ],
)
def test_values_that_are_missing_are_told(argument, array, message, hint, folder, submit):
    (folder / "empty").touch()
    (folder / "bytes").write_bytes(b"1\xff\n2\n")
    (folder / "zero").write_text("1\n2\0\n")
    with pytest.raises(LongshipError) as error:
        submit(*filter(None, [array]), "--time=20", "--", argument)
    assert str(error.value).startswith(message)
    assert hint in error.value.hint


def test_rerun_takes_no_values_from_a_file(submit, folder):
    (folder / "rates").write_text("1\n2\n")
    with pytest.raises(LongshipError, match="a re-run has the values of its task already"):
        submit("--array=0-1", "--", "--rate", "@{rates}", again="/runs/7-train")


@pytest.mark.parametrize(("array", "agreed"), [("0-3%1", False), ("3", False), ("0-3", True)])
def test_tasks_may_run_the_same_one_after_another_or_if_the_user_agrees(array, agreed, submit):
    assert submit(f"--array={array}", "--time=20", agreed=agreed)


@pytest.mark.parametrize(("file", "shown"), [("", "LONGSHIP_JOB_VALUES is not set"), ("/x", "/x")])
def test_task_whose_values_nobody_kept_is_told(file, shown, start):
    environ = {"SLURM_ARRAY_TASK_ID": "1", "LONGSHIP_JOB_VALUES": file}
    with pytest.raises(LongshipError) as error:
        start(facts(), env=environ, arguments=("--rate", "@{rates}"))
    assert str(error.value) == f"cannot read the values of this task: {shown}"
    assert error.value.hint == "submit the array with submit.py, which keeps the values"
    assert "values" not in start(facts(), env=environ, arguments=("--rate", "1"))


def test_no_value_of_an_array_is_a_secret(submit, folder):
    (folder / "tokens").write_text("a\nhf_secret\n")
    with pytest.raises(LongshipError, match="contains the value of HF_TOKEN"):
        submit("--array=0-1", "--", "@{tokens}", environ={"HF_TOKEN": "hf_secret"})
