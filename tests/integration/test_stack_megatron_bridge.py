"""The stack megatron-bridge with the real one: recipes, import, two ranks, stop, export.

GPU, TransformerEngine and Python 3.12 have stand-ins, see tests/stand_ins/no_gpu.py.
"""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from support import cache, processes
from support.git import clone_of
from support.hub import Repo, running_hub
from support.inside import Inside
from support.repository import toml

from lib.configuration.stacks import load_stack

# The framework is installed whole; tests/test_stack_megatron_bridge.py reads its command lines.
pytestmark = pytest.mark.slow

STEPS = 12
# Documents whose words repeat, so that a small model learns within a few steps.
TEXTS = [f"document {number}: " + "row, row, row the boat. " * 8 for number in range(300)]
SETTINGS = f"""
[training]
recipe = "vanilla_gpt_pretrain_config"
sequence_length = 64
micro_batch = 2
global_batch = 8
steps = {STEPS}
warmup_steps = 2
learning_rate = "2e-3"
checkpoint_interval = 8
validation_interval = 4
validation_steps = 1
split = "90,5,5"
"""
# No kernels or types of GPUs.
ON_CPU = (
    *("dist.distributed_backend=gloo", "mixed_precision=null", "model.bf16=false"),
    *("model.params_dtype=float32", "model.gradient_accumulation_fusion=false"),
    *("model.persist_layer_norm=false", "model.apply_rope_fusion=false"),
    *("model.bias_dropout_fusion=false", "model.bias_activation_fusion=false"),
    *("model.masked_softmax_fusion=false", "logger.log_interval=1"),
)
VARIABLES = ("OMP_NUM_THREADS=1", "TORCHDYNAMO_DISABLE=1", "PYTHONWARNINGS=ignore")
TRITON = "triton==3.9.0"  # a dependency of PyTorch's builds for GPUs
PATIENCE = 900  # seconds that a command can take on a busy machine

MAKE_MODEL = """
import json, sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

model = sys.argv[1]
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator(["row, row, row the boat."] * 9, trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")
tokenizer.save_pretrained(model)
torch.manual_seed(0)
config = LlamaConfig(**json.loads(sys.argv[2]), vocab_size=len(tokenizer))
LlamaForCausalLM(config).save_pretrained(model)
"""
SMALL = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0},
}
# That of the recipes, with other numbers.
QWEN = {
    **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, **SMALL},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"},
}

# Whether the weights are the same; the loss on the text that the training learns.
COMPARE = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

before, after, text = sys.argv[1:]
models = [AutoModelForCausalLM.from_pretrained(each).eval() for each in (before, after)]
first, second = (model.state_dict() for model in models)
tokenizer = AutoTokenizer.from_pretrained(after)
ids = tokenizer(text, return_tensors="pt").input_ids[:, :64]
with torch.no_grad():
    losses = [model(ids, labels=ids).loss.item() for model in models]
assert first.keys() == second.keys()
same = all(torch.equal(first[each], second[each]) for each in first)
print(same, models[1].config.max_position_embeddings, tokenizer.eos_token, *losses)
"""


@pytest.fixture(scope="module")
def hub():
    """Give a hub with the configuration of the recipes' model."""
    with running_hub() as hub:
        hub.repos["Qwen/Qwen3-0.6B"] = Repo()
        hub.repos["Qwen/Qwen3-0.6B"].commit({"config.json": json.dumps(QWEN).encode()})
        yield hub


@pytest.fixture(scope="module")
def bridge(root, session_environment, hub, tmp_path_factory):
    """Give ``bridge(*argv)``, which runs where set_up.py has installed the stack."""
    if sys.version_info < (3, 11):
        pytest.skip("Megatron-Bridge needs Python 3.12, for which the stand-ins make 3.11 do")
    own = tmp_path_factory.mktemp("it's a bridge")
    requirements = root / "stacks/megatron-bridge/requirements.txt"
    name = f"megatron-bridge-{cache.fingerprint(requirements, root / 'requirements/torch.txt')}"
    folder = cache.cache_folder() / name
    wanted = own / "requirements.txt"
    wanted.write_text(f"{requirements.read_text()}\n{TRITON}\n")
    lines = [
        f"paths.project_dir = {toml(folder / 'project')}",
        f"paths.scratch_dir = {toml(folder / 'scratch')}",
        f"paths.checkpoint_dir = {toml(own / 'checkpoints')}",
        'container.runtime = "host"',
        f"packages.requirements = {toml(wanted)}",
    ]
    stack = load_stack(root, "megatron-bridge").configuration.values
    for each in stack["repositories"]:
        lines += [
            "[[repositories]]",
            f"name = {toml(Path(each['url']).stem)}",
            f"url = {toml(clone_of(each, session_environment))}",
            f"ref = {toml(each['ref'])}",
            'install = "none"',  # it requires Python 3.12
        ]
    lines += ["[[assets]]", 'repo = "Qwen/Qwen3-0.6B"', 'revision = "main"']
    (own / "configuration.toml").write_text("\n".join(lines) + SETTINGS)
    environment = {
        **session_environment,
        **hub.environment,
        "LONGSHIP_CONFIGURATION": str(own / "configuration.toml"),
        "LONGSHIP_MACHINE": "local",
        "LONGSHIP_STACK": "megatron-bridge",
    }
    inside = Inside(root, environment)
    with cache.locked(name):
        processes.run([sys.executable, root / "set_up.py", "install"], env=environment, timeout=900)
        show = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(inside("python", "-c", show).stdout.strip())
        (packages / "no_gpu.py").write_text((root / "tests/stand_ins/no_gpu.py").read_text())
        (packages / "no_gpu.pth").write_text("import no_gpu\n")
    return inside


@pytest.fixture(scope="module")
def own(bridge):
    """Give the directory of this module's files: model, data, checkpoints."""
    return Path(bridge.environment["LONGSHIP_CONFIGURATION"]).parent


@pytest.fixture(scope="module")
def model(root, bridge, hub, own):
    """Make a model with a tokenizer, and let set_up.py download it from the hub; give its copy."""
    bridge("python", "-c", MAKE_MODEL, own / "model", json.dumps(SMALL))
    hub.repos["lab/model"] = Repo()
    files = (own / "model").iterdir()
    hub.repos["lab/model"].commit({each.name: each.read_bytes() for each in files})
    with (own / "configuration.toml").open("a") as file:
        file.write('[[assets]]\nrepo = "lab/model"\n')
    install = [sys.executable, root / "set_up.py", "install"]
    processes.run(install, env=bridge.environment, timeout=900)
    return own / "model"


@pytest.fixture(scope="module")
def data(root, bridge, own, model):
    """Make data with the model's tokenizer; give its prefix."""
    text = own / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    script = root / "stacks/megatron-bridge/preprocess_data.sh"
    where = ("--data-dir", own / "data", "--input", text)
    bridge("env", "TRAINING_MODEL=lab/model", "bash", script, "all", *where)
    return own / "data/corpus_text_document"


@pytest.fixture(scope="module")
def command(root, model, data):
    """Give a function that returns the words that train a run on two ranks."""
    script = root / "stacks/megatron-bridge/run_training.sh"
    return lambda name, *more, **settings: (
        *("env", *VARIABLES, "GPUS_PER_NODE=2", f"TRAINING_RUN_NAME={name}"),
        *("TRAINING_MODEL=lab/model", f"TRAINING_DATA={data}"),
        *(f"TRAINING_{key.upper()}={value}" for key, value in settings.items()),
        *("bash", script, *ON_CPU, *more),
    )


@pytest.fixture(scope="module")
def whole(bridge, own, command):
    """Train a run that nothing interrupts; give its directory."""
    bridge(*command("whole"), timeout=PATIENCE)
    return own / "checkpoints/whole"


def lines_of(run):
    """Give the metrics of a run, also while it is written."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(run):
    return [line["loss"] for line in lines_of(run)]


def compose(bridge, own, words, check=True):
    """Give the configuration that the runner would train with, on one rank, and how it ended."""
    file = own / "composed.yaml"
    words = [*words, "--dry-run", f"logger.save_config_filepath='{file}'".replace("'s", r"\'s")]
    done = bridge(*words, check=check, timeout=PATIENCE)
    return yaml.load(file.read_text(), yaml.BaseLoader) if check else None, done


def test_settings_reach_the_configuration_of_a_recipe(bridge, own, command, model, data):
    words = command("composed", recipe="qwen3_600m_pretrain_config", model="", tokenizer=model)
    found, _ = compose(bridge, own, words)
    assert found["model"]["hf_model_id"] == "Qwen/Qwen3-0.6B"  # that of the recipe
    assert (found["model"]["num_layers"], found["model"]["seq_length"]) == ("2", "64")
    assert found["dataset"]["data_path"] == [str(data)]
    assert found["tokenizer"]["tokenizer_model"] == str(model)
    assert found["checkpoint"]["save"] == found["checkpoint"]["load"]
    assert found["checkpoint"]["save"] == str(own / "checkpoints/composed")
    assert found["checkpoint"]["save_interval"] == "8"
    assert found["train"]["train_iters"] == str(STEPS)
    assert found["optimizer"]["lr"] == "0.002"
    assert found["validation"]["eval_interval"] == "4"


def test_fine_tuning_recipe_has_the_weights_of_the_model(bridge, own, command, model):
    words = command("composed", recipe="qwen3_600m_sft_config", data=own)
    found, _ = compose(bridge, own, words)
    copy = Path(found["checkpoint"]["pretrained_checkpoint"])  # in the cache
    assert (copy / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert found["model"]["hf_model_id"] == found["tokenizer"]["tokenizer_model"] == str(copy)
    assert found["dataset"]["dataset_root"] == str(own)


def test_unknown_name_of_the_configuration_is_refused(bridge, own, command):
    _, done = compose(bridge, own, command("composed", "train.stepz=3"), check=False)
    assert done.returncode != 0 and "train.stepz" in done.stdout + done.stderr


def test_lines_have_what_every_stack_reports(whole):
    lines = lines_of(whole)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    always = {"time", "loss", "grad_norm", "learning_rate", "tokens_per_s", "seconds"}
    assert all(always <= line.keys() for line in lines)
    assert {round(line["tokens_per_s"] * line["seconds"]) for line in lines} == {8 * 64}
    assert [line["step"] for line in lines if "validation_loss" in line] == [4, 8, 12]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    assert [lines[n]["learning_rate"] for n in range(3)] == pytest.approx([0, 1e-3, 2e-3])


def test_signal_of_the_job_stops_the_run_and_it_resumes(bridge, own, command, whole):
    run = own / "checkpoints/stopped"
    process = bridge.start(*command("stopped"))
    deadline = time.monotonic() + PATIENCE
    while len(lines_of(run)) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)  # as Slurm does, to the first process of a task
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    last = lines_of(run)[-1]["step"]
    assert last < STEPS and (run / f"iter_{last:07d}/.metadata").exists()
    bridge(*command("stopped"), timeout=PATIENCE)
    resumed, expected = lines_of(run), lines_of(whole)
    rates = [[line["learning_rate"] for line in lines] for lines in (resumed, expected)]
    assert len(resumed) == STEPS and rates[0] == rates[1]
    # Weights and data: later losses differ, for Megatron does not restore the state of PyTorch's
    # Adam, which stands for TransformerEngine's, exactly.
    assert losses(run)[: last + 1] == losses(whole)[: last + 1]


def export(root, bridge, run):
    """Export a run; give the directory of the model."""
    script = root / "stacks/megatron-bridge/export.sh"
    done = bridge("env", *VARIABLES, "bash", script, run.name, timeout=PATIENCE)
    directory = Path(done.stdout.removesuffix("\n"))
    assert directory.parent == run and directory.name.startswith("step-")
    assert not list(run.glob("*.partial"))
    return directory


def test_model_that_learned_nothing_is_exported_as_it_was_imported(
    root, bridge, own, command, model
):
    bridge(*command("same", "optimizer.min_lr=0", learning_rate="0.0", steps=3), timeout=PATIENCE)
    exported = export(root, bridge, own / "checkpoints/same")
    done = bridge("python", "-c", COMPARE, model, exported, TEXTS[0])
    same, length, end, *_ = done.stdout.split()
    assert (same, length, end) == ("True", "128", "<|endoftext|>")


def test_exported_model_has_learned(root, bridge, model, whole):
    exported = export(root, bridge, whole)
    assert export(root, bridge, whole) == exported
    same, _, _, before, after = bridge(
        "python", "-c", COMPARE, model, exported, TEXTS[0]
    ).stdout.split()
    assert same == "False" and float(after) < float(before) - 0.5
    assert float(after) == pytest.approx(lines_of(whole)[-1]["validation_loss"], abs=0.5)


def test_run_that_does_not_exist_is_told(root, bridge, own):
    script = root / "stacks/megatron-bridge/export.sh"
    done = bridge("env", *VARIABLES, "bash", script, "none", check=False, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2] == f"error: no checkpoint in {own}/checkpoints/none"
