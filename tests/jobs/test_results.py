"""What the results of a run have of each step."""

import os

import pytest

from lib.jobs.runs import steps_of


@pytest.fixture
def outputs(tmp_path):
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def test_numbers_of_each_step_are_read_and_nothing_else(outputs):
    lines = ['{"step": 1, "loss": 2.5, "name": "x", "more": [1]}', "[1]", "3", "", '"x"', "{"]
    lines += [f'{{"step": 2, "loss": NaN, "speed": Infinity, "mfu": {10**400}}}', "[" * 100_000]
    (outputs / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "lo']))
    (outputs / "events.out.tfevents.1").write_text('{"step": 9}\n')
    found = list(steps_of(outputs.parent, ["*.jsonl", "events.*"]))
    assert found == [{"step": 1, "loss": 2.5}, {"step": 2}]


def test_end_of_a_long_file_is_read_and_no_fifo(outputs):
    text = "".join(f'{{"step": {step}}}\n' for step in range(100, 200))
    (outputs / "a.jsonl").write_text(text)
    os.mkfifo(outputs / "b.jsonl")
    last = [each["step"] for each in steps_of(outputs.parent, ["*.jsonl"], 50)]
    assert last == [197, 198, 199]
