import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

MODEL = ("--layers", "1", "--heads", "2", "--width", "32", "--sequence-length", "32")
SMALL = (*MODEL, "--batch-size", "4", "--warmup-steps", "5", "--learning-rate", "1e-2")
# Bitwise results need the CPU; dropout, that random numbers are also those of the same step.
EXACT = (*SMALL, "--device", "cpu", "--no-compile", "--dropout", "0.1")
FINITE = (*EXACT, "--steps", "60", "--checkpoint-every", "20")
ENDLESS = (*EXACT, "--steps", "1000000", "--checkpoint-every", "1000000")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PATIENCE = 240  # seconds


@pytest.fixture(scope="module")
def data(inside, root, tmp_path_factory):
    """Give the prefix of a small dataset."""
    folder = tmp_path_factory.mktemp("data")
    options = ("--data-dir", folder, "--max-megabytes", "0.3", "--vocab-size", "500")
    inside("python", root / "preprocess_data.py", *options)
    return folder / "corpus_text_document"


@pytest.fixture(scope="module")
def command(root, data):
    def make(folder, *options):
        where = ("--data", data, "--checkpoint-dir", folder, "--run-name", "run")
        return ["python", root / "train.py", *where, *options]

    return make


@pytest.fixture(scope="module")
def train(inside, command):
    def run(*arguments, **options):
        return inside(*command(*arguments), env=ONE_THREAD, **options)

    return run


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    """Give the folder and the output of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, train(folder, *FINITE).stdout


def read_metrics(folder):
    """Return the complete lines of a run's metrics, also while it is written."""
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(folder):
    metrics = read_metrics(folder)
    assert [line["step"] for line in metrics] == list(range(1, len(metrics) + 1))
    return [line["loss"] for line in metrics]


def checkpoints(folder):
    return [int(file.stem[5:]) for file in sorted((folder / "run").glob("step-*.pt"))]


def wait_for_step(process, folder, step):
    deadline = time.monotonic() + PATIENCE
    while len(read_metrics(folder)) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stop_at(process, folder, step, number=signal.SIGTERM, receivers=()):
    """Send a signal when a step is done; return what the program wrote to standard output."""
    wait_for_step(process, folder, step)
    for pid in [training_process(folder, is_wanted) for is_wanted in receivers] or [process.pid]:
        os.kill(pid, number)
    return process.communicate(timeout=PATIENCE)[0]


def training_process(folder, is_wanted):
    """Return the process id of the only one of a run's processes that is wanted."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(folder) in arguments and is_wanted(process, arguments):
                found.append(int(process.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    (pid,) = found
    return pid


def is_rank_1(process, arguments):
    return b"RANK=1" in (process / "environ").read_bytes().split(b"\0")


def is_first(process, arguments):
    return arguments[:1] == [b"bash"] and b"run_training.sh" in b" ".join(arguments)


def is_torchrun(process, arguments):
    return arguments[1:3] == [b"-m", b"torch.distributed.run"]


def assert_error(result, *parts):
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    for part in parts:
        assert part in result.stderr


def test_loss_falls_and_everything_is_recorded(finished):
    folder, output = finished
    values = losses(folder)
    assert len(values) == 60
    assert sum(values[-10:]) < sum(values[:10]) - 10 * 0.5
    assert set(read_metrics(folder)[0]) == {
        "step",
        "loss",
        "learning_rate",
        "tokens_per_s",
        "seconds",
    }
    assert checkpoints(folder) == [40, 60]
    assert (folder / "run" / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list((folder / "run" / "tensorboard").glob("events.out.tfevents.*"))
    assert not list((folder / "run").glob("*.partial"))
    assert re.search(r"^step 60/60  loss \d+\.\d{4}  [\d,]+ tokens/s  0:00:00 left$", output, re.M)
    mean = sum(values[-20:]) / len(values[-20:])
    assert f"{values[0]:.4f} at first, {mean:.4f} over the last {len(values[-20:])}" in output
    for name in ("step-00000060.pt", "loss.png"):
        assert str(folder / "run" / name) in output


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip_a_bit])
def test_resumes_exactly_from_the_newest_whole_checkpoint(train, finished, tmp_path, damage):
    folder, _ = finished
    resumed = tmp_path / "resumed"
    shutil.copytree(folder, resumed)
    damage(resumed / "run" / "step-00000060.pt")
    result = train(resumed, *FINITE)
    assert "from " + str(resumed / "run" / "step-00000040.pt") in result.stdout
    assert "a checkpoint is damaged and not used" in result.stderr
    assert losses(resumed) == losses(folder)
    assert checkpoints(resumed) == [40, 60]


def test_finished_run_trains_no_more(train, finished):
    folder, first_output = finished
    files = [folder / "run" / "metrics.jsonl", *(folder / "run").glob("step-*")]
    made = {file: file.stat().st_mtime_ns for file in files}
    output = train(folder, *FINITE).stdout
    assert {file: file.stat().st_mtime_ns for file in files} == made
    assert output == first_output[first_output.index("finished ") :]


def test_options_that_contradict_the_checkpoint_are_an_error(train, finished):
    folder, _ = finished
    result = train(folder, *FINITE, "--width", "64", check=False)
    assert_error(result, "--width is 64, but 32 in the checkpoint", "--width 32", "--run-name")


def test_stopped_and_resumed_equals_uninterrupted(inside, command, tmp_path):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for number in (signal.SIGTERM, signal.SIGUSR1):
        done = len(read_metrics(stopped))
        process = inside.start(*command(stopped, *ENDLESS), env=ONE_THREAD)
        output = stop_at(process, stopped, done + 10, number)
        steps = len(read_metrics(stopped))
        assert process.returncode == 0
        assert f"stopped by a signal after step {steps} of 1000000" in output
        assert str(stopped / "run" / f"step-{steps:08d}.pt") in output
        assert checkpoints(stopped)[-1] == steps

    stop_at(inside.start(*command(whole, *ENDLESS), env=ONE_THREAD), whole, len(losses(stopped)))
    assert losses(stopped) == losses(whole)[: len(losses(stopped))]


def test_steps_after_the_checkpoint_are_done_again(inside, command, tmp_path):
    options = (*EXACT, "--steps", "1000000", "--checkpoint-every", "10")
    process = inside.start(*command(tmp_path, *options), env=ONE_THREAD)
    wait_for_step(process, tmp_path, 25)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    killed, first = losses(tmp_path), checkpoints(tmp_path)[-1]
    with (tmp_path / "run" / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 10')  # what a crash may leave

    process = inside.start(*command(tmp_path, *options), env=ONE_THREAD)
    # One line more than the first run has is only there when its last ones are written again.
    output = stop_at(process, tmp_path, len(killed) + 1)
    assert f"step-{first:08d}.pt to step" in output
    assert losses(tmp_path)[: len(killed)] == killed


def test_ctrl_c_ends_without_a_traceback(inside, command, tmp_path):
    process = inside.start(*command(tmp_path, *ENDLESS), env=ONE_THREAD)
    wait_for_step(process, tmp_path, 1)
    os.kill(process.pid, signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130


def test_divergence_stops_at_its_step(train, tmp_path):
    result = train(tmp_path, *FINITE, "--learning-rate", "1e38", check=False)
    step = len(losses(tmp_path)) + 1
    assert_error(result, f"training diverged at step {step}: loss ", "--learning-rate")
    assert checkpoints(tmp_path) == []


def test_missing_data_names_the_command_that_makes_it(inside, root, tmp_path):
    scratch = f"LONGSHIP_SCRATCH_DIR={tmp_path}"  # inside: outside it is the configuration's
    result = inside("env", scratch, "python", root / "train.py", check=False)
    missing = str(tmp_path / "data" / "corpus_text_document.idx")
    assert_error(result, missing, "python3 container_run.py python preprocess_data.py")
    assert not list(tmp_path.iterdir())


def test_half_a_dataset_is_an_error(inside, root, data, tmp_path):
    for ending in ("bin", "idx"):
        shutil.copy(f"{data}.{ending}", tmp_path / f"half.{ending}")
    cut(tmp_path / "half.bin")
    result = inside("python", root / "train.py", "--data", tmp_path / "half", check=False)
    assert_error(result, "not a whole dataset")


def test_torchrun_stops_resumes_and_agrees_with_one_process(inside, root, command, train, tmp_path):
    several, one = tmp_path / "several", tmp_path / "one"
    options = (*ENDLESS, "--dropout", "0")
    launch = ["bash", root / "stacks/pytorch/run_training.sh", *command(several, *options)[2:]]
    shape = {**ONE_THREAD, "NUM_NODES": "1", "GPUS_PER_NODE": "2", "LONGSHIP_ROOT": str(root)}

    process = inside.start(*launch, env=shape)
    # Slurm tells the first process of a task, or without cgroups all: torchrun must not die of it.
    output = stop_at(process, several, 10, signal.SIGUSR1, [is_first, is_torchrun, is_rank_1])
    steps = len(losses(several))
    assert process.returncode == 0
    assert f"[rank 0] stopped by a signal after step {steps} of" in output
    assert "[rank 1]" not in output
    assert checkpoints(several) == [steps]

    for number in (signal.SIGUSR1, signal.SIGTERM):
        process = inside.start(*launch, env=shape)
        stop_at(process, several, len(losses(several)) + 5, number)
        assert process.returncode == 0
        assert checkpoints(several) == [steps, len(losses(several))]
        steps = len(losses(several))

    process = inside.start(*launch, env=shape)
    stop_at(process, several, steps + 10, signal.SIGTERM, [is_torchrun])
    assert checkpoints(several) == [steps, len(losses(several))]

    stop_at(inside.start(*command(one, *options), env=ONE_THREAD), one, len(losses(several)))
    expected = losses(one)[: len(losses(several))]
    assert losses(several)[:50] == pytest.approx(expected[:50], rel=1e-3)


def test_batch_of_its_own_choice_divides_among_any_number_of_ranks(inside, root):
    code = """
import sys
from argparse import Namespace
import numpy as np
import train
for ranks in (1, 3, 8, 16, 512):
    args = Namespace(data="x", vocab_size=9, batch_size=0, width=8, heads=1, sequence_length=1)
    train.check_arguments(args, np.zeros(9), ranks)
    print(args.batch_size)
"""
    assert inside("python", "-c", code, cwd=root).stdout.split() == ["8", "9", "8", "16", "512"]


def test_width_that_does_not_divide_is_an_error(train, tmp_path):
    result = train(tmp_path, *EXACT, "--width", "30", check=False)
    assert_error(result, "a width of 30 is not 2 heads", "--width")
