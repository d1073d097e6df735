"""The stack torchtitan: what TorchTitan is started with, and how torchao and torchft get there."""

import re
import sys

import pytest
from support import processes

from lib.tables import read_toml

STACK = "stacks/torchtitan"


@pytest.fixture
def settings(root):
    """Give what the core exports for the settings' defaults, and for data and tokenizer."""
    tables, _ = read_toml(root / STACK / "stack.toml", "stack.toml")
    defaults = {name: setting["default"] for name, setting in tables["training"].items()}
    defaults.update(data="/data/a.jsonl\n/data/b, c.jsonl", tokenizer="/data/tokenizer")
    return {f"TRAINING_{name.upper()}": str(value) for name, value in defaults.items()}


@pytest.fixture
def run_training(root, settings, clean_environment, tmp_path):
    """Give a function that runs run_training.sh with a python that only prints its arguments."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    python.chmod(0o755)

    def run(*arguments, check=True, **changed):
        environment = {
            **clean_environment,
            **settings,
            "PATH": f"{python.parent}:{clean_environment['PATH']}",
            "LONGSHIP_ROOT": str(root),
            "LONGSHIP_SCRATCH_DIR": "/scratch",
            **{"NUM_NODES": "2", "GPUS_PER_NODE": "4"},
            **{"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            **changed,
        }
        script = ["bash", root / STACK / "run_training.sh", *arguments]
        return processes.run(script, env=environment, check=check)

    return run


def trainer_arguments(done):
    words = done.stdout.split("\0")[:-1]
    return words[words.index("torchtitan.train") + 1 :]


def options_of(done):
    """Give the value of each option; the last one wins, as in TorchTitan."""
    pairs = (word.partition("=") for word in trainer_arguments(done))
    return {name: value for name, _, value in pairs}


def test_passes_the_flags_that_are_listed_and_no_other(root, run_training):
    plain = options_of(run_training())
    more = options_of(
        run_training(
            TRAINING_CONFIG="/c.toml", TRAINING_GLOBAL_BATCH_SIZE="16", TRAINING_COMPILE="0"
        )
    )
    listed = (root / "tests/flags/torchtitan.txt").read_text().splitlines()
    assert sorted({*plain, *more}) == listed
    assert "--training.compile" in plain and "--training.compile" not in more


def test_settings_and_their_defaults_arrive(run_training):
    options = options_of(run_training())
    assert options["--training.dataset_files"] == "/data/a.jsonl\n/data/b, c.jsonl"
    assert options["--model.tokenizer_path"] == "/data/tokenizer"
    assert options["--job.dump_folder"] == "/scratch/checkpoints/torchtitan"
    assert "--training.global_batch_size" not in options  # TorchTitan's own: a pass of each GPU


def test_folder_of_the_configuration_is_taken(run_training):
    options = options_of(run_training(TRAINING_CHECKPOINT_FOLDER="/flash/run 1"))
    assert options["--job.dump_folder"] == "/flash/run 1"


def test_arguments_come_last(run_training):
    done = run_training("--training.steps=3", "--job.description=a b\n'c'")
    assert trainer_arguments(done)[-2:] == ["--training.steps=3", "--job.description=a b\n'c'"]


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_replica", "tensor_parallel", "replicas"),
    [(2, 4, 0, 1, 2), (2, 4, 8, 2, 1), (2, 4, 2, 2, 4), (1, 1, 0, 1, 1), (4, 8, 16, 8, 2)],
)
def test_replicas_follow_from_the_job(
    run_training, nodes, gpus, per_replica, tensor_parallel, replicas
):
    options = options_of(
        run_training(
            NUM_NODES=str(nodes),
            GPUS_PER_NODE=str(gpus),
            TRAINING_GPUS_PER_REPLICA=str(per_replica),
            TRAINING_TENSOR_PARALLEL=str(tensor_parallel),
        )
    )
    assert options["--parallelism.data_parallel_replicate_degree"] == str(replicas)
    assert options["--parallelism.tensor_parallel_degree"] == str(tensor_parallel)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"TRAINING_DATA": ""}, "training.data names no JSON-lines file"),
        ({"TRAINING_TOKENIZER": ""}, "training.tokenizer is empty"),
        (
            {"TRAINING_GPUS_PER_REPLICA": "3"},
            "8 GPUs are no multiple of training.gpus_per_replica = 3",
        ),
        (
            {"TRAINING_TENSOR_PARALLEL": "8"},
            "training.tensor_parallel = 8 does not divide the 4 GPUs of a replica",
        ),
        (
            {"TRAINING_TENSOR_PARALLEL": "0"},
            "training.tensor_parallel = 0 does not divide the 4 GPUs of a replica",
        ),
    ],
)
def test_what_cannot_run_is_told_before_a_rank_starts(run_training, changed, message):
    done = run_training(check=False, **changed)
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error == f"error: {message}"
    assert hint.startswith("hint: set it in [training] of configuration.toml")


def test_data_is_not_prepared_in_shards(root, clean_environment):
    script = ["bash", root / STACK / "preprocess_data.sh", "shard"]
    done = processes.run(script, env=clean_environment, check=False)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


@pytest.fixture
def torchft(root, clean_environment, tmp_path):
    """Give a checkout of torchft, and functions that install it and run Python in its venv."""
    venv = tmp_path / "venv"
    processes.run([sys.executable, "-m", "venv", "--without-pip", venv], env=clean_environment)
    checkout = tmp_path / "re pos/torchft"
    (checkout / "torchft").mkdir(parents=True)
    (checkout / "torchft/__init__.py").write_text('FROM = "checkout"\n')
    environment = {**clean_environment, "PATH": f"{venv}/bin:{clean_environment['PATH']}"}

    def install():
        script = ["bash", root / STACK / "install_torchft.sh"]
        return processes.run(script, env=environment, cwd=checkout)

    def python(program):
        return processes.run(["python", "-c", program], env=environment).stdout.strip()

    return checkout, install, python


def write_torchft_wheel(site):
    """Write what pip leaves of the wheel."""
    files = {
        "torchft/__init__.py": 'FROM = "wheel"\n',
        "torchft/_torchft.cpython-312-x86_64-linux-gnu.so": "compiled",
        "torchft_nightly-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: torchft-nightly\n",
    }
    record = "torchft_nightly-1.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_torchft_is_editable_with_the_compiled_half_of_the_wheel(torchft):
    checkout, install, python = torchft
    site = python("import sysconfig; print(sysconfig.get_path('purelib'))")
    write_torchft_wheel(type(checkout)(site))
    install()
    assert python("import torchft; print(torchft.FROM)") == "checkout"
    assert [path.read_text() for path in checkout.glob("torchft/*.so")] == ["compiled"]


def test_torchft_is_left_out_where_there_is_no_wheel(torchft):
    _, install, python = torchft
    assert re.fullmatch(r"note: torchft is left out: there is no wheel .*\n", install().stderr)
    find = "import importlib.util; print(importlib.util.find_spec('torchft'))"
    assert python(find) == "None"
