"""The stack torchtitan with the real TorchTitan, on a CPU: its parser and trainer, and our data."""

import json
import re
import shutil
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
VALIDATED = 20

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
# middle from a saved state, and beyond the end.
READ = """
import json, sys
from torchtitan.config_manager import ConfigManager
from torchtitan.protocols.train_spec import get_train_spec

def read(batches, number):
    return [next(batches)[1].tolist() for _ in range(number)]

config = ConfigManager().parse_args(sys.argv[1:])
spec = get_train_spec(config.model.name)
tokenizer = spec.build_tokenizer_fn(config)
model = spec.config[config.model.flavor]
model.update_from_config(config, tokenizer)

def loader(rank, infinite):
    return spec.build_dataloader_fn(2, rank, tokenizer, config, infinite)

def rows(rank):
    return [[*inputs[0].tolist(), labels[0, -1].item()] for inputs, labels in (
        (batch["input"], labels) for batch, labels in loader(rank, False))]

first = loader(1, True)
batches = iter(first)
read(batches, 3)
state = first.state_dict()
second = loader(1, True)
second.load_state_dict(state)
resumed = read(batches, 60) == read(iter(second), 60)
seen = [rows(rank) for rank in (0, 1)]
facts = {"vocabulary": model.vocab_size, "end": model.eos_id}
print(json.dumps({**facts, "seen": seen, "resumed": resumed}))
"""

# TorchTitan's own trainer, on a CPU, of which it knows no memory and no name.
TRAIN = """
import runpy, types
import torch._utils

def nothing(*_): pass

device = types.SimpleNamespace(
    set_device=nothing, current_device=lambda: 0, get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: types.SimpleNamespace(total_memory=2**30),
    reset_peak_memory_stats=nothing, empty_cache=nothing, memory_stats=lambda _: {},
    synchronize=nothing,
)
kept = torch._utils._get_available_device_type, torch._utils._get_device_module
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda _: device
import torchtitan
torch._utils._get_available_device_type, torch._utils._get_device_module = kept
runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
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
def init(self, config, dims):
    self.job_config, self.logger = config, metrics.BaseLogger()

metrics.MetricsProcessor.__init__ = init
metrics.MetricsProcessor.log = lambda self, step, loss: None
config = ConfigManager().parse_args([*sys.argv[1:], "--validation.dataset_files="])
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
dist.barrier()  # one that leaves early can abort the other
dist.destroy_process_group()
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


def write_text(path, numbers):
    path.write_text("".join(json.dumps({"text": f"w{i} w{i + SAMPLES}"}) + "\n" for i in numbers))


@pytest.fixture(scope="module")
def material(titan, tmp_path_factory):
    """Give a folder with two texts and a tokenizer."""
    folder = tmp_path_factory.mktemp("it's material")
    titan("python", "-c", MAKE_TOKENIZER, folder / "tokenizer", str(WORDS))
    write_text(folder / "a.jsonl", range(SAMPLES))
    write_text(folder / "b, c.jsonl", range(VALIDATED))
    return folder


@pytest.fixture(scope="module")
def preprocess(root, titan, material):
    """Give a function that runs preprocess_data.sh, and writes below a folder."""
    settings = {
        "TRAINING_TEXT": str(material / "a.jsonl"),
        "TRAINING_VALIDATION_TEXT": str(material / "b, c.jsonl"),
        "TRAINING_TOKENIZER": str(material / "tokenizer"),
    }

    def run(folder, mode, check=True, **changed):
        variables = {"LONGSHIP_SCRATCH_DIR": str(folder), **settings, **changed}
        words = [f"{name}={value}" for name, value in variables.items()]
        script = ["bash", root / STACK / "preprocess_data.sh", mode]
        return titan("env", *words, *script, check=check)

    return run


@pytest.fixture(scope="module")
def data(preprocess, material):
    """Give the folder with the tokens of both splits."""
    preprocess(material, "all")
    return material / "data"


@pytest.fixture
def arguments_of(root, material, tmp_path):
    """Give what run_training.sh passes on, with a group's settings."""

    def make(training, *more, **shape):
        splits = ("train", "validation")
        trained, held_out = (material / f"data/torchtitan_{each}_text_document" for each in splits)
        given = (
            f"data = [{toml(trained)}]\nvalidation_data = [{toml(held_out)}]\n"
            f"tokenizer = {toml(material / 'tokenizer')}\n"
        )
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        configuration = f"[training]\n{given}{training}"
        done, calls = start(
            root, "torchtitan", "jwb", folder, more, configuration=configuration, **shape
        )
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
    prefix = f"{material}/data/torchtitan"
    assert config["training"]["dataset_files"] == f"{prefix}_train_text_document"
    assert config["validation"]["dataset_files"] == f"{prefix}_validation_text_document"
    assert config["parallelism"]["data_parallel_replicate_degree"] == 4
    assert config["parallelism"]["tensor_parallel_degree"] == 2
    assert (config["optimizer"]["lr"], config["optimizer"]["eps"]) == (1e-4, 1e-7)
    assert config["checkpoint"]["enable_checkpoint"] is True
    assert config["checkpoint"]["async_mode"] == "async"


def test_ranks_read_all_the_data_once_and_go_on_where_they_were(root, titan, data, arguments_of):
    length = 5
    words = arguments_of(f"sequence_length = {length}\n")
    done = titan("env", f"PYTHONPATH={root / STACK}", "python", "-c", READ, *words)
    read = json.loads(done.stdout.splitlines()[-1])
    assert (read["vocabulary"], read["end"], read["resumed"]) == (WORDS + 2, 0, True)
    tokens = [token for i in range(SAMPLES) for token in (i + 2, i + SAMPLES + 2, 0)]
    rows = [tokens[k : k + length + 1] for k in range(0, SAMPLES * TOKENS - length, length)]
    rows = rows[: len(rows) // 2 * 2]  # a share of each rank is as large as another's
    assert read["seen"] == [rows[0::2], rows[1::2]]


@pytest.mark.parametrize(
    ("files", "vocabulary", "message"),
    [
        ("none", WORDS, "error: cannot read {}/none.idx and .bin: "),
        ("broken", WORDS, "error: {}/broken.idx is not an index in Megatron's format"),
        ("small", WORDS, "sequences do not fill a batch on each of 2 data-parallel ranks"),
        ("large", WORDS, "error: the vocabulary of {}/large has 999 tokens, but training.tok"),
    ],
)
def test_data_that_cannot_be_read_are_told(
    files, vocabulary, message, root, titan, data, arguments_of, tmp_path
):
    for end in (".bin", ".idx"):
        whole = (data / f"torchtitan_validation_text_document{end}").read_bytes()
        (tmp_path / f"large{end}").write_bytes(whole)
        (tmp_path / f"broken{end}").write_bytes(whole.replace(b"MMIDIDX", b"MMIDIDY"))
        (tmp_path / f"small{end}").write_bytes(whole)
    (tmp_path / "large.record.json").write_text('{"result": {"vocab_size": 999}}')
    words = arguments_of("", f"--training.dataset_files={tmp_path / files}")
    done = titan("env", f"PYTHONPATH={root / STACK}", "python", "-c", READ, *words, check=False)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()[-2:]
    assert message.format(tmp_path) in error and hint.startswith("hint: make ")


def losses(text):
    """Give the losses that TorchTitan logged, by what and step."""
    found = re.findall(r"INFO - (validate step|step): +(\d+)  loss: +([\d.]+)", text)
    return {(what, int(step)): float(loss) for what, step, loss in found}


def test_torchtitan_trains_and_validates(root, titan, data, arguments_of, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    training = "sequence_length = 8\nlocal_batch_size = 2\nsteps = 5\ncompile = 0\n"
    training += "validation_interval = 2\ncheckpoint_interval = 2\n"
    shape = {"nodes": 1, "more": {"GPUS_PER_NODE": "2"}}
    ranks = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    def train(*more, own=training):
        dump = f"--job.dump_folder={Path(tempfile.mkdtemp(dir=tmp_path))}"
        float32 = "--training.mixed_precision_param=float32"
        words = arguments_of(own, dump, float32, "--metrics.log_freq=3", *more, **shape)
        path = f"PYTHONPATH={root / STACK}"
        return losses(titan("env", path, *ranks, tmp_path / "train.py", *words).stderr)

    def recorded():
        newest = max(tmp_path.glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(line) for line in newest.read_text().splitlines()]

    both = train()
    # validated steps are logged too
    assert sorted(both) == [
        *(("step", step) for step in (1, 2, 3, 4, 5)),
        *(("validate step", step) for step in (2, 4, 5)),
    ]
    assert both["validate step", 5] < both["validate step", 2]
    # what it logs is also in the form of all stacks, each step in one line
    lines = recorded()
    assert {("step", line["step"]): round(line["loss"], 4) for line in lines} == {
        key: loss for key, loss in both.items() if key[0] == "step"
    }
    validated = {line["step"]: round(line.get("validation_loss", 0), 4) for line in lines}
    assert validated == {step: both.get(("validate step", step), 0) for step in range(1, 6)}
    # it changes nothing of the training, nor where a layer is split among two ranks
    alone = train("--validation.dataset_files=", "--metrics.log_freq=1")
    assert alone == {key: loss for key, loss in both.items() if key[0] == "step"}
    rates = [line.get("learning_rate") for line in recorded()]
    assert rates[0] is None and all(0 < rate < 1 for rate in rates[1:])
    assert all(line["tokens_per_s"] > 0 and line["seconds"] > 0 for line in recorded())
    tensor = train(own=training + "gpus_per_replica = 2\ntensor_parallel = 2\n")
    assert tensor["validate step", 5] < tensor["validate step", 2]


def test_ranks_end_at_the_same_step_when_one_is_told(root, titan, arguments_of, tmp_path):
    (tmp_path / "end.py").write_text(END)
    ranks = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = f"PYTHONPATH={root / STACK}"
    done = titan("env", path, *ranks, tmp_path / "end.py", *arguments_of("steps = 100"))
    assert "rank 0 ended at 3\n" in done.stdout and "rank 1 ended at 3\n" in done.stdout


def tokens_in(folder):
    """Give the bytes of both splits."""
    return {file.name: file.read_bytes() for file in folder.glob("*_text_document.[bi][id][nx]")}


def test_ranks_in_parallel_make_what_one_process_makes(preprocess, data, tmp_path):
    preprocess(tmp_path, "prepare")
    for rank in (2, 0, 1):
        preprocess(tmp_path, "shard", SLURM_PROCID=str(rank), SLURM_NTASKS="3")
    preprocess(tmp_path, "merge")
    assert len(tokens_in(data)) == 4
    assert tokens_in(tmp_path / "data") == tokens_in(data)


def test_training_takes_the_tokenizer_that_the_data_step_trained(
    root, titan, preprocess, arguments_of, tmp_path
):
    preprocess(tmp_path, "all", TRAINING_TOKENIZER="")
    record = tmp_path / "data/torchtitan_validation_text_document.record.json"
    vocabulary = json.loads(record.read_text())["result"]["vocab_size"]
    words = arguments_of(
        "sequence_length = 5\n",
        f"--model.tokenizer_path={tmp_path}/data/torchtitan_train_tokenizer.json",
        f"--training.dataset_files={tmp_path}/data/torchtitan_train_text_document",
    )
    done = titan("env", f"PYTHONPATH={root / STACK}", "python", "-c", READ, *words)
    read = json.loads(done.stdout.splitlines()[-1])
    assert (read["vocabulary"], read["end"]) == (vocabulary, 0)
    assert any(0 in row for row in read["seen"][0])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRAINING_TEXT", "{}/none.jsonl", "error: the text is missing: "),
        ("TRAINING_VALIDATION_TEXT", "{}/broken.jsonl", "error: {}/broken.jsonl: the line at byte"),
        ("TRAINING_TOKENIZER", "{}", "error: cannot read the tokenizer {}: "),
        ("TRAINING_TOKENIZER", "{}/no end", "error: the tokenizer {}/no end has no eos_token"),
    ],
)
def test_text_and_tokenizer_that_cannot_be_read_are_told(
    name, value, message, material, preprocess, tmp_path
):
    (tmp_path / "broken.jsonl").write_text('{"text": "whole"}\n{"text": \n')
    shutil.copytree(material / "tokenizer", tmp_path / "no end")
    for file in (tmp_path / "no end").glob("*_*.json"):
        file.write_text(file.read_text().replace("eos_token", "some_token"))
    done = preprocess(tmp_path, "all", check=False, **{name: value.format(tmp_path)})
    assert done.returncode == 1
    *_, error, hint = done.stderr.splitlines()
    assert error.startswith(message.format(tmp_path)) and hint.startswith("hint: ")
    assert "Traceback" not in done.stderr
