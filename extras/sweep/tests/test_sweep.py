"""Arguments of a job array that are lines of files: at submission, and in each of its tasks."""

import json
import os
import shlex

import pytest
from support.requests import cost_of, facts

from extras.sweep.sweep import Sweep, kept_sweep, read_sweep
from lib.script.errors import LongshipError

LINES = [
    b"1e-4",
    b"it's  2 'x' \"y\"",
    b"$HOME `id` \\n *",
    b"",
    b"@{rate.txt} @@{",
    b"\xff\r",
    b"a&\\&",
]
ARGUMENTS = [
    "--rate",
    "@{rate.txt}",
    "--name=r-@{rate.txt}/@{my file}",
    "@@{rate.txt}",
    "@@@{",
    "@{}",
    "x@y",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give the working directory, with two files of values."""
    (tmp_path / "rate.txt").write_bytes(b"\n".join(LINES))
    (tmp_path / "my file").write_text("".join(f"{number}\n" for number in range(9)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_task(folder, sweep, task):
    """Give the arguments of a task, and its values, as a job has them."""
    (folder / "kept.json").write_text(sweep.kept)
    found = kept_sweep(sweep.arguments, str(folder / "kept.json"))
    return tuple([*map(os.fsencode, each)] for each in (found.of_task(task), found.values(task)))


@pytest.mark.parametrize("task", range(len(LINES)))
def test_line_is_an_argument_byte_for_byte(task, folder):
    sweep = read_sweep(ARGUMENTS, f"0-{len(LINES) - 1}")
    line, number = LINES[task], str(task).encode()
    name = b"--name=r-" + line + b"/" + number
    expected = [b"--rate", line, name, b"@{rate.txt}", b"@@{", b"@{}", b"x@y"]
    (folder / "rate.txt").unlink()  # its content at submission counts
    assert in_task(folder, sweep, task) == (expected, [b"--rate", line, name])
    assert [os.fsencode(each) for each in sweep.of_task(task)] == expected


@pytest.mark.parametrize("argument", ["@{rate.txt}", "@@{", "{@{}}", "@@@{x"])
def test_escaped_argument_is_passed_as_it_was(argument, folder):
    sweep = read_sweep([argument.replace("@{", "@@{")], "3")
    assert in_task(folder, sweep, 3)[0] == [argument.encode()]
    assert sweep.words == [argument]


def test_argument_without_an_array_is_left_alone(folder):
    sweep = read_sweep(["HEAD@{1}", "@@{rate.txt}"], "")
    assert (sweep.first, sweep.kept) == (["HEAD@{1}", "@@{rate.txt}"], "")
    assert read_sweep(["--rate", "1"], "0-3").kept == ""


@pytest.mark.parametrize(
    ("argument", "array", "message", "hint"),
    [
        ("@{rate.txt}", "", "@{rate.txt} requires a job array", "add --array=0-7"),
        (
            "@{rat.txt}",
            "0-1",
            "cannot read rat.txt: No such file or directory",
            "to pass @{rat.txt}: @@{rat.txt}",
        ),
        ("@{.}", "0-1", "cannot read .: it is not a regular file", "write a value for each task"),
        ("@{my file}", "1-9", "my file has 9 lines, but task 9 takes line 10", "use --array=0-8"),
        (
            "@{my file}",
            "0-10:5%2",
            "my file has 9 lines, but task 10 takes line 11",
            "use --array=0-8",
        ),
        ("@{empty}", "0", "empty has 0 lines, but task 0 takes line 1", "write a value"),
        ("@{wide}", "0-1", "wide contains a zero byte", "iconv -f UTF-16"),
    ],
)
def test_values_that_are_missing_are_told(argument, array, message, hint, folder):
    (folder / "empty").touch()
    (folder / "wide").write_bytes("1\n2\n".encode("utf-16"))
    with pytest.raises(LongshipError) as error:
        read_sweep(["--x", argument], array)
    assert str(error.value).startswith(message)
    assert hint in error.value.hint


@pytest.mark.parametrize(("file", "shown"), [("", "LONGSHIP_JOB_VALUES is not set"), ("/x", "/x")])
def test_task_whose_values_nobody_kept_is_told(file, shown):
    with pytest.raises(LongshipError) as error:
        kept_sweep(["--rate", "@{rate.txt}"], file)
    assert str(error.value) == f"cannot read the values of this task: {shown}"
    assert error.value.hint == "submit the array with submit.py, which keeps the values"
    assert kept_sweep(["--rate", "1"], file) is None


def test_tasks_of_a_step_and_of_a_limit_take_their_own_lines(folder):
    sweep = read_sweep(["--n", "@{my file}"], "0-8:4,1%2")
    assert sweep.tasks == (0, 1, 4, 8)
    assert sweep.about == "task 0: --n 0; task 8: --n 8"
    assert sweep.words == ["--n", "0", "1", "4", "8"]


def test_values_of_an_array_are_kept_and_shown(submit, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = ["1e-4", "it's  2", "3\udcff"]
    (tmp_path / "my rates").write_bytes(os.fsencode("\n".join([*values, "later"])))
    words = ["--array=0-2%1", "--time=20", "--", "--rate", "@{my rates}", "r=@@{x}"]
    assert cost_of(submit(*words))[0] == "task 0: --rate 1e-4; task 2: --rate 3\udcff"
    assert "3 jobs; at most 48.0 core-hours" in cost_of(submit(*words))[1]
    called = calls(*words)
    (kept,) = (submit.site.scratch / "runs/values").iterdir()
    assert json.loads(kept.read_text())["lines"] == {"my rates": values}
    assert called[-1][-3:] == ["--rate", "@{my rates}", "r=@@{x}"]
    with pytest.raises(LongshipError, match="my rates has 4 lines, but task 4 takes line 5"):
        submit("--array=0-4", *words[1:])


def test_no_value_of_an_array_is_a_secret(submit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens").write_text("a\nhf_secret\n")
    with pytest.raises(LongshipError, match="contains the value of HF_TOKEN"):
        submit("--array=0-1", "--", "@{tokens}", environ={"HF_TOKEN": "hf_secret"})


def test_task_of_an_array_has_its_line(start, tmp_path):
    kept = Sweep(("--rate", "@{r}"), (0, 1), {"r": ["1", "it's 2"]}).kept
    (tmp_path / "kept.json").write_text(kept)
    environ = {"SLURM_ARRAY_TASK_ID": "1", "LONGSHIP_JOB_VALUES": str(tmp_path / "kept.json")}
    found = start(facts(), env=environ, arguments=("--rate", "@{r}"))
    assert shlex.split(found["values"]) == ["--rate", "it's 2"]
    assert "values" not in start(facts(), arguments=("--rate", "@{r}"))
