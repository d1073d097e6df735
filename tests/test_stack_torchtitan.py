"""The stack torchtitan: what TorchTitan is started with, and how torchft gets there."""

import re
import sys
import tempfile
from pathlib import Path

import pytest
from support import processes
from support.stacks import start

STACK = "stacks/torchtitan"


@pytest.fixture
def run_training(root, tmp_path):
    """Give a function that runs run_training.sh as on JUWELS Booster, with a group's settings."""

    def run(*arguments, nodes=2, gpus=4, training=""):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        shape = {"nodes": nodes, "more": {"GPUS_PER_NODE": str(gpus)}}
        configuration = f"[training]\n{training}"
        return start(
            root, "torchtitan", "jwb", folder, arguments, configuration=configuration, **shape
        )

    return run


def trainer_arguments(run):
    """Give what torchtitan.train was started with."""
    done, calls = run
    assert done.returncode == 0, done.stderr
    ((_, words),) = calls
    return words[words.index("torchtitan.train") + 1 :]


def options_of(run):
    """Give the value of each option; the last one wins, as in TorchTitan."""
    pairs = (word.partition("=") for word in trainer_arguments(run))
    return {name: value for name, _, value in pairs}


def test_passes_the_flags_that_are_listed_and_no_other(root, run_training):
    plain = options_of(run_training())
    changed = 'config = "/p/c.toml"\nglobal_batch_size = 16\ncompile = 0\n'
    more = options_of(run_training(training=changed))
    listed = (root / "tests/flags/torchtitan.txt").read_text().splitlines()
    assert sorted({*plain, *more}) == listed
    assert "--training.compile" in plain and "--training.compile" not in more


def test_settings_arrive_as_they_are(run_training):
    training = """
        data = ["/p/a.jsonl", "/p/b, c*.jsonl"]
        tokenizer = "/p/my tokenizer"
        run_name = "a/b"
    """
    options = options_of(run_training(training=training))
    assert options["--training.dataset_files"] == "/p/a.jsonl\n/p/b, c*.jsonl"
    assert options["--model.tokenizer_path"] == "/p/my tokenizer"
    assert options["--job.dump_folder"].endswith("/checkpoints/a/b")
    assert "--training.global_batch_size" not in options  # TorchTitan's own: a pass of each GPU


def test_arguments_come_last(run_training):
    arguments = ["--training.steps=3", "--job.description=a b\n'c'"]
    assert trainer_arguments(run_training(*arguments))[-2:] == arguments


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_replica", "tensor_parallel", "replicas"),
    [(2, 4, 0, 1, 2), (2, 4, 8, 2, 1), (2, 4, 2, 2, 4), (1, 1, 0, 1, 1), (4, 8, 16, 8, 2)],
)
def test_replicas_follow_from_the_job(
    run_training, nodes, gpus, per_replica, tensor_parallel, replicas
):
    training = f"gpus_per_replica = {per_replica}\ntensor_parallel = {tensor_parallel}"
    options = options_of(run_training(nodes=nodes, gpus=gpus, training=training))
    assert options["--parallelism.data_parallel_replicate_degree"] == str(replicas)
    assert options["--parallelism.tensor_parallel_degree"] == str(tensor_parallel)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ("data = []", "training.data names no JSON-lines file"),
        ('tokenizer = ""', "training.tokenizer is empty"),
        ("gpus_per_replica = 3", "8 GPUs are no multiple of training.gpus_per_replica = 3"),
        (
            "tensor_parallel = 8",
            "training.tensor_parallel = 8 does not divide the 4 GPUs of a replica",
        ),
        (
            "tensor_parallel = 0",
            "training.tensor_parallel = 0 does not divide the 4 GPUs of a replica",
        ),
    ],
)
def test_what_cannot_run_is_told_before_a_rank_starts(run_training, training, message):
    done, calls = run_training(training=training)
    assert (done.returncode, calls) == (1, [])
    error, hint = done.stderr.splitlines()
    assert error == f"error: {message}"
    assert hint.startswith("hint: set it in [training] of configuration.toml")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["prepare"], "by one task alone", "preprocess_data_jwc.sbatch"),
        (["shard"], "by one task alone", "preprocess_data_jwc.sbatch"),
        (["all", "--input", "x"], "takes no argument: --input", "[training] data"),
    ],
)
def test_data_step_that_would_do_something_else_is_refused(words, message, hint, root, tmp_path):
    done, calls = start(root, "torchtitan", "jwb", tmp_path, words, script="preprocess_data.sh")
    assert (done.returncode, calls) == (1, [])
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ") and message in first
    assert second.startswith("hint: ") and hint in second


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
    write_torchft_wheel(Path(site))
    install()
    assert python("import torchft; print(torchft.FROM)") == "checkout"
    assert [path.read_text() for path in checkout.glob("torchft/*.so")] == ["compiled"]


def test_torchft_is_left_out_where_there_is_no_wheel(torchft):
    _, install, python = torchft
    assert re.fullmatch(r"note: torchft is left out: there is no wheel .*\n", install().stderr)
    find = "import importlib.util; print(importlib.util.find_spec('torchft'))"
    assert python(find) == "None"
