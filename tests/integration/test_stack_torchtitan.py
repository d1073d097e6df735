"""The stack torchtitan with the real TorchTitan, on a CPU: its parser and trainer, and our data."""

import json
import re
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from support import cache, processes
from support.inside import Inside
from support.jobs import tiny_task
from support.repository import toml
from support.stacks import start

from lib.configuration.sites import own_arch

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

# What the environment brings besides the arguments.
MODEL = {"TRAINING_MODEL": "llama3", "TRAINING_FLAVOR": "debugmodel", "TRAINING_CONFIG": ""}

# TorchTitan's own configuration as JSON, and whether it takes an option that it does not know.
PARSE = (
    "-c",
    """
import json, sys
from torchtitan.config import ConfigManager

print(json.dumps(ConfigManager().parse_args(sys.argv[1:]).to_dict()))
try:
    ConfigManager().parse_args([*sys.argv[1:], "--training.stepz=3"])
except SystemExit as end:
    print("refused" if end.code else "helped")
""",
)

# Build what the trainer builds, for each of two ranks, and read all the data; then go on in the
# middle from a saved state, and beyond the end.
READ = (
    "-c",
    """
import dataclasses, json, sys
from torchtitan.config import ConfigManager

def read(batches, number):
    return [next(batches)[1].tolist() for _ in range(number)]

config = ConfigManager().parse_args(sys.argv[1:])
tokenizer = config.tokenizer.build(tokenizer_path=config.hf_assets_path)

def loader(rank, infinite):
    return dataclasses.replace(config.dataloader, infinite=infinite).build(
        dp_world_size=2, dp_rank=rank, tokenizer=tokenizer, seq_len=config.training.seq_len,
        local_batch_size=config.training.local_batch_size, snapshot_every_n_steps=None)

def rows(rank):
    return [[inputs["input"][0].tolist(), inputs["positions"][0].tolist(), labels[0].tolist()]
            for inputs, labels in loader(rank, False)]

first = loader(1, True)
batches = iter(first)
read(batches, 3)
state = first.state_dict()
second = loader(1, True)
second.load_state_dict(state)
resumed = read(batches, 60) == read(iter(second), 60)
seen = [rows(rank) for rank in (0, 1)]
facts = {"vocabulary": tokenizer.get_vocab_size(), "end": tokenizer.eos_id}
print(json.dumps({**facts, "seen": seen, "resumed": resumed}))
""",
)

# Build the validator, as the trainer does before its first step.
VALIDATOR = (
    "-c",
    """
import sys
from torchtitan.config import ConfigManager

config = ConfigManager().parse_args(sys.argv[1:])
tokenizer = config.tokenizer.build(tokenizer_path=config.hf_assets_path)
others = ("parallelism", "parallel_dims", "loss_fn", "validation_context", "metrics_processor")
config.validator.build(
    dp_world_size=2, dp_rank=0, tokenizer=tokenizer, seq_len=config.training.seq_len,
    local_batch_size=config.training.local_batch_size, **dict.fromkeys(others))
print("built")
""",
)

# PyTorch cannot compile attention to train on a CPU.
ATTEND = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from torchtitan.models.common import attention

def attend(query, key, value, *, block_mask, scale, enable_gqa, **_):
    batch, _, length, _ = query.shape
    mask = create_mask(block_mask.mask_mod, batch, 1, length, length, "cpu")
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None

attention._compiled_create_block_mask = create_block_mask
attention.FlexAttention.compiled_flex_attn = staticmethod(attend)
"""

# TorchTitan's own trainer, on a CPU, of which it knows no memory and no name; and between which
# gloo adds gradients but does not scale them. PyTorch 2.13 has set_timeout() under another name.
STAND_INS = (
    """
import types
import torch._utils, torch.distributed.fsdp

def nothing(*_): pass

device = types.SimpleNamespace(
    device_count=lambda: 1, set_device=nothing, current_device=lambda: 0,
    get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: types.SimpleNamespace(total_memory=2**30),
    reset_peak_memory_stats=nothing, empty_cache=nothing, memory_stats=lambda _: {},
    synchronize=nothing,
)
kept = torch._utils._get_available_device_type, torch._utils._get_device_module
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda _: device
import torchtitan.tools.utils
torch._utils._get_available_device_type, torch._utils._get_device_module = kept
"""
    + ATTEND
    + """
set_factor = torch.distributed.fsdp.FSDPModule.set_gradient_divide_factor
def set_factor_and_add(module, factor):
    set_factor(module, factor)
    module.set_force_sum_reduction_for_comms(True)
torch.distributed.fsdp.FSDPModule.set_gradient_divide_factor = set_factor_and_add
torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout
"""
)

# END_AT is the step in which the second rank gets the signal.
TRAIN = (
    STAND_INS
    + """
import os, runpy, signal

if "END_AT" in os.environ and os.environ["RANK"] == "1":
    import longship_titan
    train_step = longship_titan.Trainer.train_step
    def end(self, data):
        if self.step == int(os.environ["END_AT"]):
            os.kill(os.getpid(), signal.SIGUSR1)
        train_step(self, data)
    longship_titan.Trainer.train_step = end
runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
"""
)

# The logits of transformers, and those of TorchTitan's own model of the checkpoint.
COMPARE = (
    "-c",
    ATTEND
    + """
import sys
import torch.distributed.checkpoint as dcp
from longship_titan import configuration
from torchtitan.components.checkpointer import ModelWrapper
from transformers import AutoModelForCausalLM, AutoTokenizer

checkpoint, exported, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(exported)
ids = torch.tensor([tokenizer(text)["input_ids"]])
theirs = AutoModelForCausalLM.from_pretrained(exported).eval()
model = configuration().model_spec.model
size = theirs.config.vocab_size
model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = size
ours = model.build()
state = ModelWrapper(ours).state_dict()
dcp.load(state, checkpoint_id=checkpoint)
ours.load_state_dict(state)
places = torch.arange(ids.shape[1])[None]
with torch.no_grad():
    logits = theirs(ids).logits
    difference = (ours(ids, places, ours.get_attention_masks(places)) - logits).abs().max().item()
print(type(theirs).__name__, tokenizer.eos_token, theirs.config.eos_token_id, logits.dtype)
print(ids.shape[1], logits.std().item(), difference)
""",
)

# The size of the embedding in a checkpoint.
SIZE = (
    "-c",
    """
import sys
from torch.distributed.checkpoint import FileSystemReader

metadata = FileSystemReader(sys.argv[1]).read_metadata().state_dict_metadata
print(*metadata["tok_embeddings.weight"].size)
""",
)


@pytest.fixture(scope="module")
def titan(root, session_environment, tmp_path_factory):
    """Give ``titan(*argv)``, which runs a command where TorchTitan is installed by set_up.py."""
    if sys.version_info < (3, 11):
        pytest.skip("TorchTitan needs Python 3.11")
    inputs = [root / "requirements/torch.txt", root / STACK / "requirements.txt"]
    name = f"torchtitan-{cache.fingerprint(*inputs)}"
    folder = cache.cache_folder() / name
    own = tmp_path_factory.mktemp("titan")
    (own / "requirements.txt").write_text(f"torchtitan==0.3.0\ntriton==3.9.0\n-r {inputs[1]}\n")
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


@pytest.fixture
def python(root, titan):
    """Give ``python(program, *arguments)``, which runs Python in the environment of the stack."""

    def run(program, *arguments, check=True, **variables):
        given = {"PYTHONPATH": root / STACK, **MODEL, **variables}
        words = [f"{name}={value}" for name, value in given.items()]
        return titan("env", *words, "python", *program, *arguments, check=check)

    return run


def test_torchtitan_understands_what_it_is_started_with(python, arguments_of, material, tmp_path):
    training = """
        gpus_per_replica = 2
        tensor_parallel = 2
        global_batch_size = 8
        learning_rate = "1e-4"
        compile = 0
        steps = 7
    """
    arguments = arguments_of(training, "--training.seq-len=128")
    done = python(PARSE, *arguments, "--checkpoint.no_enable")  # of the README's try
    assert json.loads(done.stdout.splitlines()[-2])["checkpoint"]["enable"] is False
    *_, config, unknown = python(PARSE, *arguments).stdout.splitlines()
    assert unknown == "refused"
    config = json.loads(config)
    assert (
        config["training"]
        | {"steps": 7, "global_batch_size": 8, "seq_len": 128, "disable_cuda_graphs": True}
        == config["training"]
    )
    prefix = f"{material}/data/torchtitan"
    assert config["dataloader"]["files"] == f"{prefix}_train_text_document"
    assert config["validator"]["enable"] is True
    assert config["validator"]["dataloader"]["files"] == f"{prefix}_validation_text_document"
    assert config["parallelism"]["data_parallel_replicate_degree"] == 4
    assert config["parallelism"]["tensor_parallel_degree"] == 2
    assert (config["learning_rate"], config["compile"]["enable"]) == (1e-4, False)
    assert (config["debug"]["seed"], config["profiler"]["enable_profiling"]) == (0, False)
    assert config["checkpoint"]["enable"] is True
    assert config["checkpoint"]["last_save_model_only"] is False
    assert config["checkpoint"]["async_mode"] == "async"


OWN = """
from torchtitan.models.llama3 import config_registry

def llama3_debugmodel():
    config = config_registry.llama3_debugmodel()
    config.training.max_norm = 0.5
    return config
"""


def test_configuration_can_be_ones_own(python, arguments_of, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = python(PARSE, *arguments_of(""), TRAINING_CONFIG=tmp_path / "own.py")
    assert json.loads(done.stdout.splitlines()[-2])["training"]["max_norm"] == 0.5


def test_flavor_is_written_as_in_torchtitan(python, arguments_of):
    qwen = {"TRAINING_MODEL": "qwen3", "TRAINING_FLAVOR": "30B-A3B"}
    done = python(PARSE, *arguments_of(""), **qwen)
    assert json.loads(done.stdout.splitlines()[-2])["model_spec"]["flavor"] == "30B-A3B"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MODEL", "lama", "cannot read the configurations of lama: No module named"),
        ("FLAVOR", "8c", "configuration llama3_8c not found in torchtitan."),
        ("CONFIG", "/p/none.py", "cannot read the configurations of llama3: "),
    ],
)
def test_unknown_configuration_is_told(name, value, message, python, arguments_of):
    done = python(PARSE, *arguments_of(""), check=False, **{f"TRAINING_{name}": value})
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith(f"error: {message}")
    assert hint == "hint: set model, flavor and config in [training] of configuration.toml"


def test_ranks_read_all_the_data_once_and_go_on_where_they_were(python, data, arguments_of):
    length = 5
    done = python(READ, *arguments_of(f"sequence_length = {length}\n"))
    read = json.loads(done.stdout.splitlines()[-1])
    assert (read["vocabulary"], read["end"], read["resumed"]) == (WORDS + 2, 0, True)
    tokens = [token for i in range(SAMPLES) for token in (i + 2, i + SAMPLES + 2, 0)]
    rows = []
    for first in range(0, SAMPLES * TOKENS - length, length):
        inputs = tokens[first : first + length]
        places = [0]
        for token in inputs[:-1]:
            places.append(places[-1] + 1 if token else 0)
        # nothing is learnt of the document that follows an end
        labels = [tokens[first + i + 1] if token else -100 for i, token in enumerate(inputs)]
        rows.append([inputs, places, labels])
    rows = rows[: len(rows) // 2 * 2]  # a share of each rank is as large as another's
    assert read["seen"] == [rows[0::2], rows[1::2]]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("none", "error: cannot read {}/none.idx and .bin: "),
        ("broken", "error: {}/broken.idx is not an index in Megatron's format"),
        ("small", "sequences do not fill a batch on each of 2 data-parallel ranks"),
        ("large", "error: the vocabulary of {}/large has 999 tokens, but training.tok"),
    ],
)
def test_data_that_cannot_be_read_are_told(files, message, python, data, arguments_of, tmp_path):
    for end in (".bin", ".idx"):
        whole = (data / f"torchtitan_validation_text_document{end}").read_bytes()
        (tmp_path / f"large{end}").write_bytes(whole)
        (tmp_path / f"broken{end}").write_bytes(whole.replace(b"MMIDIDX", b"MMIDIDY"))
        (tmp_path / f"small{end}").write_bytes(whole)
    (tmp_path / "large.record.json").write_text('{"result": {"vocab_size": 999}}')
    words = arguments_of("", f"--dataloader.files={tmp_path / files}")
    done = python(READ, *words, check=False)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()[-2:]
    assert message.format(tmp_path) in error and hint.startswith("hint: make ")


def test_validation_data_are_checked_before_the_first_step(python, data, arguments_of):
    small = "sequence_length = 8\n"
    assert "built" in python(VALIDATOR, *arguments_of(small)).stdout
    none = "--validator.dataloader.files=/p/none"
    for words, message in (
        (arguments_of(f"{small}local_batch_size = 9\n"), "7 sequences do not fill a batch on each"),
        (arguments_of(small, none), "error: cannot read /p/none.idx and .bin: "),
    ):
        done = python(VALIDATOR, *words, check=False)
        assert done.returncode == 1
        error, hint = done.stderr.splitlines()[-2:]
        assert message in error and hint.startswith("hint: make ")


def losses(text):
    """Give the losses that TorchTitan logged, by what and step."""
    found = re.findall(r"INFO - (validate step|step): +(\d+)  loss: +([\d.]+)", text)
    return {(what, int(step)): float(loss) for what, step, loss in found}


@pytest.fixture
def train(python, data, arguments_of, tmp_path):
    """Give ``train(run, training, *arguments)``: losses of two ranks, and lines of the metrics."""
    (tmp_path / "train.py").write_text(TRAIN)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    shape = {"nodes": 1, "more": {"GPUS_PER_NODE": "2"}}

    def run(name, training, *more, **variables):
        dump = tmp_path / name
        float32 = "--training.mixed_precision_param=float32"
        words = arguments_of(training, f"--dump_folder={dump}", float32, *more, **shape)
        done = python([*ranks, tmp_path / "train.py"], *words, **variables)
        lines = (dump / "metrics.jsonl").read_text().splitlines()
        return losses(done.stdout), [json.loads(line) for line in lines]

    return run


SMALL = """
sequence_length = 8
local_batch_size = 2
steps = 5
compile = 0
validation_interval = 2
checkpoint_interval = 2
"""


def test_torchtitan_trains_and_validates(python, train, tmp_path):
    both, lines = train("both", SMALL)
    assert sorted(both) == [
        *(("step", step) for step in (1, 2, 3, 4, 5)),
        *(("validate step", step) for step in (2, 4, 5)),
    ]
    assert both["validate step", 5] < both["validate step", 2]
    # what it logs is also in the form of all stacks, each step in one line
    assert {("step", line["step"]): round(line["loss"], 5) for line in lines} == {
        key: loss for key, loss in both.items() if key[0] == "step"
    }
    validated = {line["step"]: round(line.get("validation_loss", 0), 4) for line in lines}
    assert validated == {step: both.get(("validate step", step), 0) for step in range(1, 6)}
    names = ("tokens_per_s", "seconds", "grad_norm", "learning_rate")
    assert all(line[name] > 0 for line in lines for name in names)
    size = python(SIZE, tmp_path / "both/checkpoint/step-5")
    assert size.stdout.split() == ["256", "256"]  # of the tokenizer, rounded up; and the width
    # it changes nothing of the training, nor where a layer is split among two ranks
    alone, _ = train("alone", SMALL, "--validator.no_enable")
    assert alone == {key: loss for key, loss in both.items() if key[0] == "step"}
    tensor, _ = train("tensor", SMALL + "gpus_per_replica = 2\ntensor_parallel = 2\n")
    assert tensor["validate step", 5] < tensor["validate step", 2]


def test_ranks_end_at_the_same_step_when_one_is_told_and_resume_there(train, tmp_path):
    whole, _ = train("whole", SMALL)
    ended, lines = train("ended", SMALL, END_AT="3")
    assert [line["step"] for line in lines] == [1, 2, 3] and ("validate step", 3) not in ended
    assert (tmp_path / "ended/checkpoint/step-3/.metadata").exists()
    resumed, lines = train("ended", SMALL)
    assert {**ended, **resumed} == whole
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]


# A Llama whose keys and values are fewer than its queries, which the tests' own models are not.
SMALL_LLAMA = """
from torchtitan.models import llama3
from torchtitan.models.llama3 import config_registry

def llama3_debugmodel():
    config = config_registry.llama3_debugmodel()
    model = config.model_spec.model
    model.layers = llama3._build_llama3_layers(
        n_layers=2, dim=256, n_heads=8, n_kv_heads=2, hidden_dim=512, attn_backend="flex",
        rope=llama3.ComplexRoPE.Config(
            dim=32, max_seq_len=128, theta=5e5, scaling="llama", scaling_factor=4.0,
            original_max_position_embeddings=64))
    return config
"""
TWENTY_STEPS = SMALL.replace("steps = 5", "steps = 20").replace("interval = 2", "interval = 10")
# Words whose order matters to the model; the text is longer than the sequences in training.
TEXT = " ".join(f"w{i % 7} w{i}" for i in range(40))


@pytest.fixture
def export(root, titan, tmp_path):
    """Give ``export(*arguments)``, which starts export.sh; the runs are in tmp_path."""
    script = ("bash", root / STACK / "export.sh")
    return lambda *more: titan.start("env", f"LONGSHIP_CHECKPOINT_DIR={tmp_path}", *script, *more)


@pytest.mark.parametrize(
    ("model", "name"), [("llama3", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM")]
)
def test_exported_model_has_the_same_logits(model, name, export, python, train, tmp_path):
    given = {"TRAINING_MODEL": model}
    if model == "llama3":
        (tmp_path / "own.py").write_text(SMALL_LLAMA)
        given["TRAINING_CONFIG"] = tmp_path / "own.py"
    train("run", TWENTY_STEPS, "--learning_rate=1e-2", **given)
    checkpoint, exported = tmp_path / "run/checkpoint/step-20", tmp_path / "run/step-20-hf"
    assert len(list(checkpoint.glob("*.distcp"))) == 2  # a shard of each rank
    both = [export("run") for _ in range(2)]
    for each in both:
        output, errors = each.communicate(timeout=600)
        assert (each.returncode, output) == (0, f"{exported}\n"), errors
    assert [each.name for each in tmp_path.glob("run/step-*")] == ["step-20-hf"]
    facts, numbers = python(COMPARE, checkpoint, exported, TEXT, **given).stdout.splitlines()[-2:]
    assert facts.split() == [name, "<end>", "0", "torch.float32"]
    length, spread, difference = map(float, numbers.split())
    assert length == 80 and spread > 0.1
    assert difference < 1e-5 * spread  # float32; only the order of additions differs


# export.py of several runs in one process, which imports the libraries once.
EXPORT_EACH = (
    "-c",
    """
import sys
import export

for sys.argv[1:] in [[run, "--dtype=bfloat16"] for run in sys.argv[1:]]:
    try:
        export.main()
    except SystemExit as end:
        print(f"exited with code {end.code}", file=sys.stderr)
""",
)


def test_export_is_complete_or_told_why_not(python, train, tmp_path):
    train("whole", SMALL)
    text = (tmp_path / "whole/configuration.json").read_text()
    changed = {
        "other": ('"name": "llama3"', '"name": "deepseek_v3"'),
        "yarn": ('"scaling": "llama"', '"scaling": "yarn"'),
        "smaller": ('"vocab_size": 256', '"vocab_size": 128'),
    }
    for name, (old, new) in changed.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint").symlink_to(tmp_path / "whole/checkpoint")
        assert old in text
        (tmp_path / name / "configuration.json").write_text(text.replace(old, new))
    for name in ("unknown", "damaged"):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
    (tmp_path / "unknown/configuration.json").unlink()
    shards = (tmp_path / "damaged/checkpoint/step-5").glob("*.distcp")
    max(shards, key=lambda each: each.stat().st_size).unlink()
    (tmp_path / "whole/checkpoint/step-5/.metadata").unlink()  # it is not yet complete

    names = ("none", "unknown", "damaged", *changed)
    done = python(EXPORT_EACH, *names, "whole", "whole", LONGSHIP_CHECKPOINT_DIR=tmp_path)
    lines = done.stderr.splitlines()
    ends = [number for number, line in enumerate(lines) if line == "exited with code 1"]
    errors = [lines[number - 2].replace(f"{tmp_path}/", "") for number in ends]
    messages = [
        "no checkpoint in none",
        "cannot read unknown/configuration.json: ",
        "cannot read damaged/checkpoint/step-5: ",
        "cannot export other/checkpoint/step-4: model deepseek_v3",
        "cannot export yarn/checkpoint/step-4: position embedding with scaling yarn",
        "cannot export smaller/checkpoint/step-4: weights that are not those of LlamaConfig",
    ]
    for error, message in zip(errors, messages, strict=True):
        assert error.startswith(f"error: {message}")
    assert all(lines[number - 1].startswith("hint: ") for number in ends)
    assert [each.name for each in tmp_path.glob("*/step-*")] == ["step-4-hf"]  # nothing incomplete
    model = tmp_path / "whole/step-4-hf"
    assert done.stdout == f"{model}\n" * 2 and lines[-1] == "already exported:"
    assert json.loads((model / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.needs("apptainer")
def test_training_becomes_a_number_by_one_command(
    titan, material, data, make_job_clone, harness, slurm, tmp_path
):
    (tmp_path / "python").mkdir()
    ranks = textwrap.indent(STAND_INS, "    ")
    site = f"import os\nif 'RANK' in os.environ:\n{ranks}"
    (tmp_path / "python/sitecustomize.py").write_text(site)
    prefix = data / "torchtitan_train_text_document"
    settings = (
        f'[stacks.torchtitan]\ncontainer.runtime = "host"\n'
        f"environment.set = {{ PYTHONPATH = {toml(tmp_path / 'python')} }}\n"
        f"[stacks.torchtitan.training]\n{SMALL}data = [{toml(prefix)}]\nvalidation_data = []\n"
        f"tokenizer = {toml(material / 'tokenizer')}\n"
    )
    clone = make_job_clone(tmp_path, settings + tiny_task(tmp_path / "tasks"))
    venv = titan("python", "-c", "import sys; print(sys.prefix)").stdout.strip()
    for stack, packages in (("torchtitan", venv), ("evaluate", harness)):
        (clone.scratch / f"venv_{stack}_{own_arch()}").symlink_to(packages)
    job = ("--stack", "torchtitan", "local/run_training_local.sbatch", "--then", "evaluate")
    sent = clone.submit(*job, "--", "--training.mixed_precision_param=float32")
    trained, evaluated = map(clone.run, sent.stdout.split())
    for each in (trained, evaluated):
        assert slurm.wait(each.job, timeout=600) == "COMPLETED", slurm.log(each.job)
    exported = trained.folder / "exported"
    assert exported.resolve() == clone.scratch / "checkpoints/torchtitan/step-5-hf"
    (results,) = exported.glob("evaluation/results_*.json")
    assert json.loads(results.read_text())["results"]["tiny"]["acc,none"] == 1.0


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
    python, preprocess, arguments_of, tmp_path
):
    preprocess(tmp_path, "all", TRAINING_TOKENIZER="")
    record = tmp_path / "data/torchtitan_validation_text_document.record.json"
    vocabulary = json.loads(record.read_text())["result"]["vocab_size"]
    words = arguments_of(
        "sequence_length = 5\n",
        f"--tokenizer.path={tmp_path}/data/torchtitan_train_tokenizer.json",
        f"--dataloader.files={tmp_path}/data/torchtitan_train_text_document",
    )
    read = json.loads(python(READ, *words).stdout.splitlines()[-1])
    assert (read["vocabulary"], read["end"]) == (vocabulary, 0)
    assert any(0 in inputs for inputs, _, _ in read["seen"][0])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRAINING_TEXT", "{}/none.jsonl", "error: the text is missing: "),
        ("TRAINING_VALIDATION_TEXT", "{}/broken.jsonl", "error: {}/broken.jsonl: line "),
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
