"""The stack torchtitan with the real TorchTitan, on a CPU: its parser, our data and tokenizer."""

import json
import sys
import tempfile
from pathlib import Path

import pytest
from support import cache, processes
from support.inside import Inside
from support.repository import toml
from support.stacks import start

# The framework is installed whole; tests/test_stack_torchtitan.py reads its command lines.
pytestmark = pytest.mark.slow

STACK = "stacks/torchtitan"
WORDS = 200
SAMPLES = 100
TOKENS = 3  # of a sample: two words and the end

# A tokenizer of whole words, as a folder of the Hugging Face libraries.
MAKE_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder, words = sys.argv[1], int(sys.argv[2])
vocabulary = {"<end>": 0, "<unknown>": 1, **{f"w{i}": i + 2 for i in range(words)}}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
special = {"eos_token": "<end>", "unk_token": "<unknown>"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
"""

# TorchTitan's own configuration as JSON, and whether it takes an option that it does not know.
PARSE = """
import json, sys
from torchtitan.config_manager import ConfigManager

print(json.dumps(ConfigManager().parse_args(sys.argv[1:]).to_dict()))
try:
    ConfigManager().parse_args([*sys.argv[1:], "--training.stepz=3"])
except SystemExit as end:
    print("refused" if end.code else "helped")
"""

# Build what the trainer builds, for each of two ranks, and read all the data; then go on in the
# middle from a saved state.
READ = """
import json, sys
from torchtitan.config_manager import ConfigManager
from torchtitan.protocols.train_spec import get_train_spec

def read(batches, number):
    return [next(batches)[1].tolist() for _ in range(number)]

for workers in ("0", "2"):
    config = ConfigManager().parse_args([*sys.argv[1:], f"--training.dataset_workers={workers}"])
    spec = get_train_spec(config.model.name)
    tokenizer = spec.build_tokenizer_fn(config)
    model = spec.config[config.model.flavor]
    model.update_from_config(config, tokenizer)

    def loader(rank, infinite):
        return spec.build_dataloader_fn(2, rank, tokenizer, config, infinite)

    seen = [[inputs["input"].tolist() for inputs, _ in loader(rank, False)] for rank in (0, 1)]
    first = loader(1, True)
    batches = iter(first)
    read(batches, 3)
    state = first.state_dict()
    second = loader(1, True)
    second.load_state_dict(state)
    resumed = read(batches, 30) == read(iter(second), 30)
    print(json.dumps({"vocabulary": model.vocab_size, "seen": seen, "resumed": resumed}))
"""


# Two ranks, each in its own step; the second is asked to end.
END = """
import os, signal, sys
import torch.distributed as dist
from torchtitan.components import metrics
from torchtitan.config_manager import ConfigManager
from torchtitan.protocols.train_spec import get_train_spec
from torchtitan.tools import utils

utils.device_type = "cpu"
metrics.MetricsProcessor.__init__ = lambda self, config, dims: setattr(self, "job_config", config)
metrics.MetricsProcessor.log = lambda self, step, loss: None
config = ConfigManager().parse_args(sys.argv[1:])
processor = get_train_spec(config.model.name).build_metrics_processor_fn(config, None, None)
dist.init_process_group("gloo")
step = 0
while step < config.training.steps:
    step += 1
    if step == 3 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    processor.log(step, 0.5)
# one write: two ranks' lines and their ends would mix
os.write(1, f"rank {dist.get_rank()} ended at {step}\\n".encode())
"""


@pytest.fixture(scope="module")
def titan(root, session_environment, tmp_path_factory):
    """Give ``titan(*argv)``, which runs a command where TorchTitan is installed by set_up.py."""
    if sys.version_info < (3, 10):
        pytest.skip("TorchTitan needs Python 3.10")
    inputs = [root / "requirements/torch.txt", root / STACK / "requirements.txt"]
    name = f"torchtitan-{cache.fingerprint(*inputs)}"
    folder = cache.cache_folder() / name
    own = tmp_path_factory.mktemp("titan")
    (own / "requirements.txt").write_text(f"torchtitan==0.1.0\n-r {inputs[1]}\n")
    (own / "configuration.toml").write_text(
        f"paths.project_dir = {toml(folder / 'project')}\n"
        f"paths.scratch_dir = {toml(folder / 'scratch')}\n"
        f"packages.requirements = {toml(own / 'requirements.txt')}\n"
        'container.runtime = "host"\n'
    )
    environment = {
        **session_environment,
        "LONGSHIP_CONFIGURATION": str(own / "configuration.toml"),
        "LONGSHIP_MACHINE": "local",
        "PYTHONPATH": "",
    }
    with cache.locked(name):
        processes.run([sys.executable, root / "set_up.py", "install"], env=environment, timeout=900)
    return Inside(root, environment)


@pytest.fixture(scope="module")
def material(titan, tmp_path_factory):
    """Give a folder with two data files and a tokenizer."""
    folder = tmp_path_factory.mktemp("it's material")
    titan("python", "-c", MAKE_TOKENIZER, folder / "tokenizer", str(WORDS))
    lines = [json.dumps({"text": f"w{i} w{i + SAMPLES}"}) + "\n" for i in range(SAMPLES)]
    (folder / "a.jsonl").write_text("".join(lines[:60]))
    (folder / "b, c.jsonl").write_text("".join(lines[60:]))
    return folder


@pytest.fixture
def arguments_of(root, material, tmp_path):
    """Give what run_training.sh passes on, with a group's settings."""

    def make(training, *more):
        data = [str(material / "a.jsonl"), str(material / "b*.jsonl")]
        given = f"data = {toml(data)}\ntokenizer = {toml(material / 'tokenizer')}\n"
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        configuration = f"[training]\n{given}{training}"
        done, calls = start(root, "torchtitan", "jwb", folder, more, configuration=configuration)
        assert done.returncode == 0, done.stderr
        ((_, words),) = calls
        return words[words.index("torchtitan.train") + 1 :]

    return make


def test_torchtitan_understands_what_it_is_started_with(
    root, titan, arguments_of, material, tmp_path
):
    (tmp_path / "titan.toml").write_text("[optimizer]\neps = 1e-7\n[training]\nsteps = 5\n")
    training = f"""
        config = {toml(tmp_path / "titan.toml")}
        gpus_per_replica = 2
        tensor_parallel = 2
        global_batch_size = 8
        learning_rate = "1e-4"
        compile = 0
        steps = 7
    """
    arguments = arguments_of(training, "--training.seq-len=128")
    off = "--checkpoint.no_enable_checkpoint"  # of the README's try
    path = f"PYTHONPATH={root / STACK}"
    done = titan("env", path, "python", "-c", PARSE, *arguments, off)
    assert json.loads(done.stdout.splitlines()[-2])["checkpoint"]["enable_checkpoint"] is False
    done = titan("env", path, "python", "-c", PARSE, *arguments)
    *_, config, unknown = done.stdout.splitlines()
    assert unknown == "refused"
    config = json.loads(config)
    assert (
        config["training"] | {"steps": 7, "global_batch_size": 8, "seq_len": 128}
        == config["training"]
    )
    assert config["training"]["compile"] is False
    assert config["training"]["dataset_files"] == f"{material}/a.jsonl\n{material}/b*.jsonl"
    assert config["parallelism"]["data_parallel_replicate_degree"] == 4
    assert config["parallelism"]["tensor_parallel_degree"] == 2
    assert (config["optimizer"]["lr"], config["optimizer"]["eps"]) == (1e-4, 1e-7)
    assert config["checkpoint"]["enable_checkpoint"] is True
    assert config["checkpoint"]["async_mode"] == "async"


def test_ranks_read_all_the_data_once_and_go_on_where_they_were(root, titan, arguments_of):
    words = arguments_of("sequence_length = 5\n")
    done = titan("env", f"PYTHONPATH={root / STACK}", "python", "-c", READ, *words)
    for workers, line in zip((0, 2), done.stdout.splitlines()[-2:]):
        read = json.loads(line)
        assert read["vocabulary"] == WORDS + 2
        assert read["resumed"] is True
        tokens = [
            {token for batch in rank for sequence in batch for token in sequence} - {0}
            for rank in read["seen"]
        ]
        assert not tokens[0] & tokens[1]
        readers = 2 * max(workers, 1)  # each keeps an incomplete sequence to itself
        assert SAMPLES * 2 - len(tokens[0] | tokens[1]) <= readers * (5 + TOKENS)


def test_ranks_end_at_the_same_step_when_one_is_told(root, titan, arguments_of, tmp_path):
    (tmp_path / "end.py").write_text(END)
    ranks = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = f"PYTHONPATH={root / STACK}"
    done = titan("env", path, *ranks, tmp_path / "end.py", *arguments_of("steps = 100"))
    assert "rank 0 ended at 3\n" in done.stdout and "rank 1 ended at 3\n" in done.stdout


def test_data_and_tokenizer_are_tried_before_a_job(root, titan, material):
    settings = {
        "TRAINING_DATA": f"{material}/*.jsonl",
        "TRAINING_TEXT_FIELD": "text",
        "TRAINING_TOKENIZER": str(material / "tokenizer"),
    }

    def check(**changed):
        words = [f"{name}={value}" for name, value in {**settings, **changed}.items()]
        script = ["bash", root / STACK / "preprocess_data.sh", "all"]
        return titan("env", *words, *script, check=False)

    assert check().stdout == (
        f"{SAMPLES} samples, {WORDS + 2} kinds of tokens\n"
        f"the first {SAMPLES} samples have {SAMPLES * TOKENS} tokens\n"
    )
    done = check(TRAINING_TEXT_FIELD="content")
    assert done.returncode == 1
    assert 'error: the samples have no field "content", but text\nhint: ' in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRAINING_DATA", "{}/none.jsonl", "error: the data cannot be read: "),
        ("TRAINING_DATA", "{}/broken.jsonl", "error: the data cannot be read: "),
        ("TRAINING_TOKENIZER", "{}", "error: the tokenizer {} cannot be used: "),
    ],
)
def test_data_and_tokenizer_that_cannot_be_read_are_told(
    name, value, message, root, titan, material, tmp_path
):
    (tmp_path / "broken.jsonl").write_text('{"text": "whole"}\n{"text": \n')
    settings = {
        "TRAINING_DATA": f"{material}/*.jsonl",
        "TRAINING_TEXT_FIELD": "text",
        "TRAINING_TOKENIZER": str(material / "tokenizer"),
        name: value.format(tmp_path),
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    script = ["bash", root / STACK / "preprocess_data.sh", "all"]
    done = titan("env", *words, *script, check=False)
    assert done.returncode == 1
    *_, error, hint = done.stderr.splitlines()
    assert error.startswith(message.format(tmp_path)) and hint.startswith("hint: name ")
    assert "Traceback" not in done.stderr
