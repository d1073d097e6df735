"""`metrics.jsonl`: the lines that all stacks write, and what a resumed run keeps of them."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training_run.metrics import MetricsFile, peak_flops


def lines(directory):
    """Give the lines, without the time of those that were just written."""
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert all(abs(line.pop("time", time.time()) - time.time()) < 600 for line in found)
    return found


def test_job_links_the_results_of_its_training(tmp_path, monkeypatch):
    job, results = tmp_path / "job", tmp_path / "results"
    job.mkdir()
    (job / "outputs").symlink_to("of an earlier start")
    monkeypatch.setenv("RUN_DIR", str(job))
    file = MetricsFile(results)
    file.write(1, {"loss": 2.5})
    file.close()
    assert (job / "outputs/metrics.jsonl").samefile(results / "metrics.jsonl")


ROOT = Path(__file__).resolve().parents[2]
HOLD = "import pathlib, sys; from training_run.metrics import MetricsFile; "
HOLD += "MetricsFile(pathlib.Path(sys.argv[1])); print(flush=True); sys.stdin.read()"


def test_results_that_another_process_writes_are_refused(tmp_path, capsys):
    """A job of the same run, which would write the same checkpoints."""
    results = tmp_path / "it's a run"
    command = [sys.executable, "-c", HOLD, results]
    with subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1) as other:
        other.stdout.readline()
        with pytest.raises(SystemExit, match="1"):
            MetricsFile(results)
        error, hint = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: another process already trains the run in {results}: ")
        assert f"process {other.pid} on " in error and "choose another run name" in hint
        other.kill()
    MetricsFile(results)  # a dead one blocks nobody


def test_results_that_another_process_has_taken_over_are_left_to_it(tmp_path, capsys):
    file = MetricsFile(tmp_path)
    file.write(1, {"loss": 2.5})
    shutil.rmtree(tmp_path / "run.lock")
    assert not file._lock.is_held()
    with pytest.raises(SystemExit, match="1"):
        file.write(2, {"loss": 2.5})
    file.close()
    assert "another process has taken over the run in" in capsys.readouterr().err


def test_metric_that_is_not_known_is_left_out(tmp_path):
    file = MetricsFile(tmp_path / "a run")
    file.write(1, {"loss": 2.5, "grad_norm": None, "mfu": 0.4})
    assert lines(tmp_path / "a run") == [{"step": 1, "loss": 2.5, "mfu": 0.4}]  # while it is open
    file.close()


def test_loss_that_is_not_a_number_leaves_a_line_of_json(tmp_path, capsys):
    file = MetricsFile(tmp_path)
    file.write(1, {"loss": float("nan"), "grad_norm": float("inf"), "learning_rate": 0.1})
    file.close()
    resumed = MetricsFile(tmp_path)
    resumed.write(2, {"loss": 1.5})
    resumed.close()
    assert lines(tmp_path) == [{"step": 1, "learning_rate": 0.1}, {"step": 2, "loss": 1.5}]
    assert not capsys.readouterr().err


def test_resumed_run_takes_the_lines_before_its_first_step(tmp_path, capsys):
    first = MetricsFile(tmp_path)
    for step in (10, 20, 30):
        first.write(step, {"loss": float(step)})
    first.close()
    second = MetricsFile(tmp_path)
    assert len(lines(tmp_path)) == 3  # nothing is lost before there is something new
    second.write(20, {"loss": 0.5})
    second.close()
    assert lines(tmp_path) == [{"step": 10, "loss": 10.0}, {"step": 20, "loss": 0.5}]
    assert not list(tmp_path.glob("*.partial")) and not capsys.readouterr().err


def test_line_that_cannot_be_read_is_told_and_kept(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    before = '{"step": 1, "loss": 3.0}\n\0\0\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo'
    path.write_text(before)
    file = MetricsFile(tmp_path)
    file.write(3, {"loss": 1.0})
    file.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    assert (tmp_path / "metrics.damaged").read_text() == before
    assert f"warning: cannot read 1 lines of {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "peak"),
    [  # as torch.cuda.get_device_name() writes them
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA GH200 120GB", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("AMD Instinct MI250X", 191.5e12),
        ("NVIDIA GeForce RTX 3060", None),
        ("", None),
    ],
)
def test_peak_is_that_of_the_device(device, peak):
    assert peak_flops(device) == peak
