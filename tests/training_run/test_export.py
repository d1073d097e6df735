"""The export of a model: complete or not at all, by one process at a time."""

import os
import re
import subprocess
import sys

import pytest
from support.processes import PATIENCE
from support.repository import ROOT

EXPORT = """
import sys, types
sys.modules["safetensors"] = types.SimpleNamespace(SafetensorError=ValueError)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from training_run.export import export
def write(directory):
    (directory / "model").write_text(sys.argv[3])
    print("writing", flush=True)
    sys.stdin.readline()
export(Path(sys.argv[2]), write, Path(f"{sys.argv[2]}.pt"))
"""


@pytest.fixture
def start(tmp_path):
    """Give a function that starts an export, whose writing ends after a line on its input."""

    def start(content, name="step-2-hf"):
        checkpoint = tmp_path / f"{name}.pt"
        if not checkpoint.exists():
            checkpoint.touch()
        command = [sys.executable, "-c", EXPORT, ROOT, tmp_path / name, content]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    started = []
    yield start
    for process in started:
        process.kill()
        process.communicate()


def names(directory):
    return sorted(each.name for each in directory.iterdir() if each.suffix != ".pt")


def test_export_removes_what_a_killed_one_has_left(start, tmp_path):
    killed = start("a half", "step-1-hf")
    assert killed.stdout.readline() == "writing\n"
    killed.kill()
    killed.wait(PATIENCE)
    assert any(each.endswith(".partial") for each in names(tmp_path))
    output, _ = start("whole").communicate("\n", timeout=PATIENCE)
    assert output == f"writing\n{tmp_path}/step-2-hf\n"
    assert names(tmp_path) == ["step-2-hf"]


def test_second_export_waits_for_the_first_and_uses_its_model(start, tmp_path):
    first = start("of the first")
    assert first.stdout.readline() == "writing\n"
    second = start("of the second")
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(2)
    assert any(each.endswith(".partial") for each in names(tmp_path))
    first.communicate("\n", timeout=PATIENCE)
    output, _ = second.communicate(timeout=PATIENCE)
    assert output == f"{tmp_path}/step-2-hf\n"
    assert (tmp_path / "step-2-hf/model").read_text() == "of the first"
    assert names(tmp_path) == ["step-2-hf"]


def test_step_that_was_taken_again_is_exported_again(start, tmp_path):
    """A run can go back to an earlier checkpoint, and go on with other options."""
    for content in ("first", "second"):
        start(content).communicate("\n", timeout=PATIENCE)
        assert (tmp_path / "step-2-hf/model").read_text() == content
        later = (tmp_path / "step-2-hf").stat().st_mtime + 9
        os.utime(tmp_path / "step-2-hf.pt", (later, later))
    second, first = names(tmp_path)
    assert second == "step-2-hf" and re.fullmatch(r"step-2-hf-\d{8}-\d{6}", first)
    assert (tmp_path / first / "model").read_text() == "first", "its evaluations are lost"


def test_damaged_model_is_exported_again(start, tmp_path):
    start("the whole model").communicate("\n", timeout=PATIENCE)
    (tmp_path / "step-2-hf/evaluation").touch()  # what is added later damages nothing
    assert "writing" not in start("another").communicate("\n", timeout=PATIENCE)[0]
    (tmp_path / "step-2-hf/model").write_text("cut off")
    assert "writing" in start("again").communicate("\n", timeout=PATIENCE)[0]
    assert (tmp_path / "step-2-hf/model").read_text() == "again"
    (damaged,) = tmp_path.glob("step-2-hf-*")
    assert (damaged / "model").read_text() == "cut off"
