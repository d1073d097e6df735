import hashlib
import json
import os
import random
import re
import shutil
import signal
import time
from array import array
from pathlib import Path

import pytest
from support.inside import CopiesInside
from support.processes import wait_until

MODEL = ("--layers", "1", "--heads", "2", "--width", "32", "--sequence-length", "32")
SMALL = (*MODEL, "--batch-size", "4", "--warmup-steps", "5", "--learning-rate", "1e-2")
# Bitwise results need the CPU; dropout, that random numbers are also those of the same step and
# micro-batch, of which a step of four sequences has two.
EXACT = (*SMALL, "--device", "cpu", "--no-compile", "--dropout", "0.1", "--micro-batch-size", "3")
FINITE = (*EXACT, "--steps", "60", "--checkpoint-every", "20", "--validate-every", "15")
ENDLESS = (*EXACT, "--steps", "1000000", "--checkpoint-every", "1000000")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TWO_RANKS = {**ONE_THREAD, "NUM_NODES": "1", "GPUS_PER_NODE": "2"}
PATIENCE = 600  # seconds


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
def train(inside, command, tmp_path_factory):
    """Give a function that runs train.py to its end; `inside.start` is for what gets signals."""
    modules = ("torch._dynamo", "torch.utils.tensorboard", "matplotlib.figure")
    copies = CopiesInside(inside, tmp_path_factory.mktemp("copies"), *modules, env=ONE_THREAD)
    yield lambda *arguments, **options: copies(*command(*arguments)[1:], **options)
    copies.close()


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


def validation_losses(folder):
    metrics = read_metrics(folder)
    return {line["step"]: line["validation_loss"] for line in metrics if "validation_loss" in line}


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


def wait_for_line(process, text):
    """Read what the program writes up to a line with this text."""
    while text not in (line := process.stdout.readline()):
        assert line, process.communicate()


def catches(process, number):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> number - 1 & 1


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
    validated = validation_losses(folder)
    assert list(validated) == [15, 30, 45, 60]
    assert validated[60] < validated[15] < values[0]
    assert f"validation  {validated[60]:.4f} after the last step" in output
    assert set(read_metrics(folder)[0]) == {
        "step",
        "time",
        "loss",
        "grad_norm",
        "learning_rate",
        "tokens_per_s",
        "seconds",
    }
    assert checkpoints(folder) == [40, 60]
    assert (folder / "run" / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list((folder / "run" / "tensorboard").glob("events.out.tfevents.*"))
    assert not list((folder / "run").glob("*.partial"))
    numbers = r"loss \d+\.\d{4}  validation \d+\.\d{4}  [\d,]+ tokens/s  0:00:00 left"
    assert re.search(rf"^step 60/60  {numbers}$", output, re.M)
    mean = sum(values[-20:]) / len(values[-20:])
    assert f"{values[0]:.4f} at the start, {mean:.4f} over the last {len(values[-20:])}" in output
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
    assert "skipping a damaged checkpoint" in result.stderr
    assert "other options" not in result.stderr
    assert losses(resumed) == losses(folder)
    assert validation_losses(resumed) == validation_losses(folder)
    assert checkpoints(resumed) == [40, 60]


def test_finished_run_trains_no_more(train, finished):
    folder, first_output = finished
    files = [folder / "run" / "metrics.jsonl", *(folder / "run").glob("step-*")]
    made = {file: file.stat().st_mtime_ns for file in files}
    output = train(folder, *FINITE).stdout
    assert {file: file.stat().st_mtime_ns for file in files} == made
    nothing, hint, output = output.split("\n", 2)
    assert nothing.startswith("nothing to train: ") and nothing.endswith(" has step 60 of 60")
    assert hint == "to train from the beginning, choose another --run-name"
    assert output == first_output[first_output.index("finished ") :]


def test_options_that_contradict_the_checkpoint_are_an_error(train, finished):
    folder, _ = finished
    result = train(folder, *FINITE, "--width", "64", check=False)
    assert_error(result, "--width is 64, but 32 in the checkpoint", "--width 32", "--run-name")


def test_data_of_another_tokenizer_are_an_error(train, finished, data, tmp_path):
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{data}{suffix}", tmp_path / f"other{suffix}")
    record = json.loads(Path(f"{data}.record.json").read_text())
    record["made_from"]["tokenizer_sha256"] = "0" * 64  # with a vocabulary of the same size
    (tmp_path / "other.record.json").write_text(json.dumps(record))
    folder, _ = finished
    result = train(folder, *FINITE, "--data", tmp_path / "other", check=False)
    assert_error(result, "other was made with another tokenizer than", "--data", "--run-name")


def test_other_options_than_those_of_the_checkpoint_are_told(inside, train, finished, tmp_path):
    resumed = tmp_path / "resumed"
    shutil.copytree(finished[0], resumed)
    others = ("--seed", "7", "--learning-rate", "0.02", "--batch-size", "8", "--clip-norm", "0")
    result = train(resumed, *FINITE, *others, "--weight-decay", "0.2", "--steps", "65")
    assert result.stderr.splitlines()[0] == (
        "warning: the run continues with other options: --batch-size 8 (was 4), --learning-rate "
        "0.02 (was 0.01), --weight-decay 0.2 (was 0.1), --clip-norm 0.0 (was 1.0), --seed 7 (was 1)"
    )
    read = "import sys, torch; print(torch.load(sys.argv[1])['optimizer']['param_groups'])"
    assert len(losses(resumed)) == 65
    groups = inside("python", "-c", read, resumed / "run" / "step-00000065.pt").stdout
    assert "'weight_decay': 0.2" in groups and "'weight_decay': 0.1" not in groups


def test_other_data_than_those_of_the_checkpoint_are_told(
    inside, command, finished, data, tmp_path
):
    resumed, other, run = tmp_path / "resumed", tmp_path / "other", tmp_path / "7-train"
    shutil.copytree(finished[0], resumed)
    run.mkdir()
    for suffix in (".bin", ".idx", ".record.json"):
        shutil.copy(f"{data}{suffix}", f"{other}{suffix}")
    begin = ("env", f"RUN_DIR={run}", "bash", "-c", 'umask 0; exec "$@"', "umask")
    result = inside(*begin, *command(resumed, *FINITE, "--data", other, "--steps", "61"))
    assert "warning" not in result.stderr  # the same, at another place
    assert (run / "data.json").stat().st_mode & 0o777 == 0o644  # a card trusts it
    tokens = array("H", Path(f"{other}.bin").read_bytes())
    tokens.reverse()  # the lengths of the documents are the same, and so is the .idx
    Path(f"{other}.bin").write_bytes(tokens.tobytes())
    result = inside(*command(resumed, *FINITE, "--data", other, "--steps", "62"))
    told = f"the run continues with other options: --data {other} has other data (was {other})"
    assert result.stderr.splitlines()[0] == f"warning: {told}"


def test_gradients_of_micro_batches_add_up_to_those_of_the_batch(train, finished, tmp_path):
    plain = ("--dropout", "0", "--steps", "20", "--validation-fraction", "0")
    for size in ("0", "1", "3"):
        train(tmp_path / size, *FINITE, *plain, "--micro-batch-size", size)
    whole = read_metrics(tmp_path / "0")
    for size in ("1", "3"):
        for name in ("loss", "grad_norm"):
            found = [line[name] for line in read_metrics(tmp_path / size)]
            assert found == pytest.approx([line[name] for line in whole], rel=1e-3)
    assert validation_losses(tmp_path / "0") == {}


def test_validation_needs_no_more_memory_than_training(inside, root):
    code = """
from types import SimpleNamespace as Given
import numpy
import torch
import train
args = Given(data="x", vocab_size=9, sequence_length=2, batch_size=4, micro_batch_size=0)
process = Given(rank=0, world_size=2, device=torch.device("cpu"))
ends = numpy.arange(3, 13)  # of more sequences than a step has
held_out = numpy.zeros(12, numpy.uint16)
for inputs, _ in train.Trainer.micro_batches(Given(args=args, process=process), held_out, ends):
    print(len(inputs))
"""
    assert inside("python", "-c", code, cwd=root).stdout.split() == ["2", "2", "1"]


def test_held_out_documents_are_the_last_ones_and_not_trained_on(inside, root, data):
    code = """
import sys
from pathlib import Path
from megatron.core.datasets.indexed_dataset import IndexedDataset
import train
prefix = Path(sys.argv[1])
documents = [each.tolist() for each in IndexedDataset(str(prefix))]
for share, held_out in ((0, 0), (1e-6, 1), (0.5, (len(documents) + 1) // 2)):
    first, last = train.open_tokens(prefix, share)
    cut = len(documents) - held_out
    assert first.tolist() == sum(documents[:cut], []), share
    assert last.tolist() == sum(documents[cut:], []), share
"""
    inside("python", "-W", "ignore", "-c", code, data, cwd=root)


def test_stopped_and_resumed_equals_uninterrupted(inside, command, tmp_path):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for number in (signal.SIGTERM, signal.SIGINT):  # USR1: with torchrun
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


def test_export_has_the_tokenizer_that_the_run_was_trained_with(
    inside, train, data, root, tmp_path
):
    """And not the one with which its dataset was made again since."""
    train(tmp_path, *FINITE)
    record, export = data.with_suffix(".record.json"), root / "stacks/pytorch/export.sh"
    tokenizer = data.with_name("corpus_tokenizer.json")
    before, text = record.read_text(), tokenizer.read_text()
    used = tmp_path / "used.json"
    used.write_text(text)
    try:
        tokenizer.write_text(f"{text} ")
        sums = (hashlib.sha256(each.read_bytes()).hexdigest() for each in (used, tokenizer))
        record.write_text(before.replace(*sums))
        refused = inside("bash", export, tmp_path / "run", check=False)
        assert_error(refused, f"{tokenizer} is not the tokenizer that made", "--tokenizer FILE")
        inside("bash", export, tmp_path / "run", "--tokenizer", used)
        assert (tmp_path / "run/step-00000060-hf/tokenizer.json").read_text() == text
    finally:
        record.write_text(before)
        tokenizer.write_text(text)


def test_run_is_trained_by_one_process(inside, command, train, tmp_path):
    process = inside.start(*command(tmp_path, *ENDLESS), env=ONE_THREAD)
    wait_for_step(process, tmp_path, 5)
    refused = train(tmp_path, *ENDLESS, check=False)
    lock = tmp_path / "run/run.lock"
    assert_error(
        refused, f"another process already trains the run in {tmp_path}/run: process", str(lock)
    )
    wait_for_step(process, tmp_path, len(read_metrics(tmp_path)) + 5)
    (tmp_path / "run" / "checkpoint.other-1.partial").touch()
    (tmp_path / "run" / "step-00000002-hf.other-1.partial").mkdir()  # of an export that runs
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert lock.exists()
    done = train(tmp_path, *FINITE)  # no minute of waiting: it was a process of this machine
    assert "waiting" not in done.stderr
    assert len(losses(tmp_path)) == 60
    left = [each.name for each in (tmp_path / "run").glob("*.partial")]
    assert left == ["step-00000002-hf.other-1.partial"] and not lock.exists()


def test_run_that_another_process_takes_over_ends(inside, command, tmp_path):
    process = inside.start(*command(tmp_path, *ENDLESS), env=ONE_THREAD)
    wait_for_step(process, tmp_path, 5)
    shutil.rmtree(tmp_path / "run/run.lock")  # as another process does with a silent owner's
    errors = process.communicate(timeout=PATIENCE)[1].splitlines()
    assert process.returncode == 1
    assert errors == [
        f"error: another process has taken over the run in {tmp_path}/run",
        "hint: do nothing: that process resumes from the newest checkpoint",
    ]
    assert checkpoints(tmp_path) == []


def test_unreadable_metrics_are_told_and_kept(train, finished, tmp_path):
    folder, _ = finished
    resumed = tmp_path / "resumed"
    shutil.copytree(folder, resumed)
    (resumed / "run" / "step-00000060.pt").unlink()
    metrics = resumed / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    lines[9], lines[19] = "\0\0\n", '{"step": "?"}\n'
    metrics.write_text("".join(lines))
    result = train(resumed, *FINITE)
    assert f"warning: cannot read 2 lines of {metrics}" in result.stderr
    assert (resumed / "run" / "metrics.damaged").read_text() == "".join(lines)
    steps = [line["step"] for line in read_metrics(resumed)]
    assert steps == [step for step in range(1, 61) if step not in (10, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_processes_of_one_run_write_no_mixed_checkpoint(seed, inside, command, finished, tmp_path):
    """Several begin and are killed at any moment: each checkpoint is the one of its step."""
    draw = random.Random(seed)
    options = (*EXACT, "--steps", "60", "--checkpoint-every", "1", "--validate-every", "15")
    for _ in range(4):
        processes = []
        for _ in range(3):
            processes.append(inside.start(*command(tmp_path, *options), env=ONE_THREAD))
            time.sleep(draw.uniform(0, 2))
        time.sleep(draw.uniform(3, 8))
        for process in processes:
            process.kill()
            process.communicate()
    process = inside.start(*command(tmp_path, *options), env=ONE_THREAD)
    assert process.communicate(timeout=PATIENCE) and process.returncode == 0
    assert losses(tmp_path) == losses(finished[0])
    assert checkpoints(tmp_path) == [59, 60]


def test_second_ctrl_c_ends_at_once(inside, command, tmp_path):
    # One step of this takes minutes.
    large = ("--layers", "8", "--width", "256", "--sequence-length", "512", "--batch-size", "512")
    options = (*ENDLESS, *large, "--micro-batch-size", "1")
    process = inside.start(*command(tmp_path, *options), env=ONE_THREAD)
    wait_for_line(process, "to step 1000000")
    wait_until(lambda: catches(process, signal.SIGINT))
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)  # the same one, passed on by a runtime
    again = "Ctrl-C again ends without one\n"
    while again not in (line := process.stderr.readline()):
        assert line, process.communicate()
    time.sleep(1.5)  # what comes within a second is the same one
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == -signal.SIGINT
    assert again not in errors and "Traceback" not in errors
    assert checkpoints(tmp_path) == []


def test_ctrl_c_before_the_first_step_ends_without_a_traceback(inside, command, tmp_path):
    process = inside.start(*command(tmp_path, *ENDLESS), env=ONE_THREAD)
    wait_until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())
    os.kill(process.pid, signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode in (-signal.SIGINT, 0)


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
    assert_error(result, "not a complete dataset")


def test_place_that_cannot_be_written_to_is_an_error(train, tmp_path):
    (tmp_path / "file").touch()
    result = train(tmp_path / "file", *EXACT, check=False)
    expected = f"cannot write to {tmp_path}/file/run: Not a directory"
    assert_error(result, expected, "--checkpoint-dir")


def test_vocabulary_that_is_too_small_is_an_error(train, data, tmp_path):
    result = train(tmp_path, *EXACT, "--vocab-size", "100", check=False)
    assert_error(result, f"--vocab-size is 100, but {data} has 500 tokens", "--vocab-size 500")
    for ending in ("bin", "idx"):  # as another program makes it, without a record
        (tmp_path / f"bare.{ending}").symlink_to(f"{data}.{ending}")
    bare = ("--data", tmp_path / "bare", "--vocab-size", "100")
    result = train(tmp_path, *EXACT, *bare, check=False)
    assert_error(result, "--vocab-size is 100, but", "has token", "of the tokenizer")


def test_too_few_tokens_are_an_error(train, tmp_path):
    result = train(tmp_path, *EXACT, "--validation-fraction", "0.999", check=False)
    assert_error(result, "only 0 tokens", "are left for training")
    long = ("--sequence-length", "20000")
    result = train(tmp_path, *EXACT, *long, "--validation-fraction", "0.05", check=False)
    assert_error(result, "are held out for validation", "0 for none")


def test_small_data_are_all_for_training_unless_asked(train, data, tmp_path):
    tokens = Path(f"{data}.bin").stat().st_size // 2
    length = str(tokens // 15)  # longer than what would be held out
    words = (
        "--sequence-length",
        length,
        "--steps",
        "1",
        "--batch-size",
        "1",
        "--run-name",
        "small",
    )
    train(tmp_path, *EXACT, *words)
    (line,) = (tmp_path / "small/metrics.jsonl").read_text().splitlines()
    assert "validation_loss" not in line


def test_gpu_that_is_not_there_is_an_error(train, tmp_path):
    none = {"CUDA_VISIBLE_DEVICES": ""}
    result = train(tmp_path, *EXACT, "--device", "cuda", check=False, env=none)
    assert result.returncode == 2
    assert "error: --device is cuda, but PyTorch finds no GPU" in result.stderr


def test_torchrun_stops_resumes_and_agrees_with_one_process(inside, root, command, train, tmp_path):
    several, one = tmp_path / "several", tmp_path / "one"
    options = (*ENDLESS, "--dropout", "0", "--micro-batch-size", "1", "--validate-every", "10")
    launch = ["bash", root / "stacks/pytorch/run_training.sh", *command(several, *options)[2:]]
    shape = {**TWO_RANKS, "LONGSHIP_ROOT": str(root)}

    process = inside.start(*launch, env=shape)
    # Slurm tells the first process of a task, or without cgroups all: torchrun must not die of it.
    output = stop_at(process, several, 10, signal.SIGUSR1, [is_first, is_torchrun, is_rank_1])
    steps = len(losses(several))
    assert process.returncode == 0
    assert f"[rank 0] stopped by a signal after step {steps} of" in output
    assert "[rank 1]" not in output
    assert checkpoints(several) == [steps]

    process = inside.start(*launch, env=shape)
    # Ctrl-C, which a terminal sends to all that is in front
    stop_at(process, several, steps + 15, signal.SIGINT, [is_first, is_torchrun])
    assert process.returncode == 0
    assert checkpoints(several) == [steps, len(losses(several))]

    stop_at(inside.start(*command(one, *options), env=ONE_THREAD), one, len(losses(several)))
    # The order of additions differs, and training makes more of that from step to step.
    assert losses(several)[:25] == pytest.approx(losses(one)[:25], rel=1e-3)
    norms = [[line["grad_norm"] for line in read_metrics(each)[:15]] for each in (several, one)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    validated = [[validation_losses(each)[step] for step in (10, 20)] for each in (several, one)]
    assert validated[0] == pytest.approx(validated[1], rel=1e-3)


@pytest.mark.slow  # scancel sends both in test_jobs.py and test_job_sites.py
@pytest.mark.parametrize(
    ("number", "receivers"),
    [(signal.SIGUSR1, []), (signal.SIGTERM, []), (signal.SIGTERM, [is_torchrun])],
)
def test_torchrun_stops_at_a_signal_to_one_process(
    inside, root, command, tmp_path, number, receivers
):
    launch = ["bash", root / "stacks/pytorch/run_training.sh", *command(tmp_path, *ENDLESS)[2:]]
    process = inside.start(*launch, env={**TWO_RANKS, "LONGSHIP_ROOT": str(root)})
    stop_at(process, tmp_path, 10, number, receivers)
    assert process.returncode == 0 or receivers
    assert checkpoints(tmp_path) == [len(losses(tmp_path))]


def test_batch_of_its_own_choice_divides_among_any_number_of_ranks(inside, root):
    code = """
import sys
from argparse import Namespace
import train
for ranks in (1, 3, 8, 16, 512):
    args = Namespace(data="x", vocab_size=9, batch_size=0, width=8, heads=1, sequence_length=1)
    args.validation_fraction = 0
    train.check_arguments(args, 9, 0, ranks)
    print(args.batch_size)
"""
    assert inside("python", "-c", code, cwd=root).stdout.split() == ["8", "9", "8", "16", "512"]


def test_width_that_does_not_divide_is_an_error(train, tmp_path):
    result = train(tmp_path, *EXACT, "--width", "30", check=False)
    assert_error(result, "--width 30 is not --heads 2 times an even number", "--width")


def test_memory_of_a_step_is_not_zeroed_again_for_the_next(inside, root):
    code = """
import resource
import sys
import torch
from training_run.process import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
for step in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(2**22) for _ in range(4)]  # 16 MB each
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    kept, given_back = (
        int(inside("python", "-c", code, each, cwd=root).stdout) for each in ("keep", "")
    )
    assert kept < 1000 < given_back  # pages of 4 kB
