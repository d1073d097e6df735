"""What preprocess_data.sh of megatron-lm makes is what Megatron reads; a trained model is exported.

For the data, megatron-core comes as the newest wheel for Python 3.11, of an earlier release than
the pinned one. A training and its export run the pinned release, with stand-ins for GPU,
TransformerEngine and Python 3.12, see tests/stand_ins/no_gpu.py.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from support import cache, processes
from support.git import Repository, clone_of
from support.inside import Inside
from support.repository import toml

from lib.configuration.stacks import load_stack

# The framework is installed whole; tests/test_stack_megatron_lm.py reads its command lines.
pytestmark = pytest.mark.slow

TEXTS = [
    "def longship():\n    return 'oars'\n",
    "a document that quotes <|endoftext|> does not end there",
    "Tromsø, 北京, 🚢, tab\there, line ends \n\r\n",
    *(f"document {number}: " + "row, row, row the boat. " * number for number in range(40)),
]
SMALL = ("--vocab-size", "400")

# The folder serves two kinds of tokenizers. The dataset is that of pretrain_gpt.py.
READ = """
import json, sys
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer

prefix, folder, cache, texts = sys.argv[1:]
hub = AutoTokenizer.from_pretrained(folder)
bpe = ByteLevelBPETokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt")
documents = [ids.tolist() for ids in IndexedDataset(prefix)]

class Tokenizer:  # what the dataset asks of Megatron's HuggingFaceTokenizer
    eod = hub.eos_token_id
    unique_identifiers = {}
    vocab_size = len(hub)

config = GPTDatasetConfig(
    random_seed=1, sequence_length=32, blend=([prefix], None), split="1,0,0", path_to_cache=cache,
    tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
    eod_mask_loss=False, create_attention_mask=False,
)
builder = BlendedMegatronDatasetBuilder(GPTDataset, [64, 0, 0], lambda: True, config)
sample = builder.build()[0][0]
json.dump({
    "end": hub.eos_token_id,
    "ends": [ids[-1] for ids in documents],
    "texts": [hub.decode(ids[:-1]) for ids in documents],
    "as_hub": [hub(text).input_ids for text in json.load(open(texts))],
    "as_bpe": [bpe.encode(hub.decode(ids[:-1])).ids for ids in documents],
    "ids": [ids[:-1] for ids in documents],
    "sample": sample["tokens"].tolist(),
    "labels": sample["labels"].tolist(),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def inside(root, session_environment, tmp_path_factory):
    """Give the environment of the stack, with the released megatron-core for its repositories."""
    # The others are in the image.
    more = ["megatron-core==0.16.1", "pybind11==3.0.4", "triton==3.9.0"]
    requirements = root / "stacks/megatron-lm/requirements.txt"
    marks = cache.fingerprint(requirements, root / "requirements/torch.txt", more)
    folder = cache.cache_folder() / f"megatron-lm-{marks}"
    made = tmp_path_factory.mktemp("inside")
    wanted = made / "requirements.txt"
    wanted.write_text("\n".join([requirements.read_text(), *more, ""]))
    lines = [
        'stack = "megatron-lm"',
        "[container]",
        'runtime = "host"',
        "[packages]",
        f"requirements = {toml(wanted)}",
        "[paths]",
        f"project_dir = {toml(folder / 'project')}",
        f"scratch_dir = {toml(folder / 'scratch')}",
    ]
    for each in ("Megatron-LM", "gpubootcamp"):
        lines += [
            "[[repositories]]",
            f"url = {toml(folder / each)}",
            'ref = ""',
            'install = "none"',
        ]
    configuration = made / "configuration.toml"
    configuration.write_text("\n".join([*lines, ""]))
    environment = {
        **session_environment,
        "LONGSHIP_CONFIGURATION": str(configuration),
        "LONGSHIP_MACHINE": "local",
    }
    with cache.locked(folder.name):
        for each in ("Megatron-LM", "gpubootcamp"):  # at the same place every time, as its clone is
            if not (folder / each / ".git/refs/heads/main").exists():
                (folder / each).mkdir(parents=True, exist_ok=True)
                upstream = Repository(folder / each, session_environment)
                upstream.git("init", "--quiet", "--initial-branch=main")
                upstream.commit("nothing", README="")
        install = [sys.executable, root / "set_up.py", "install"]
        processes.run(install, env=environment, timeout=900)
    return Inside(root, environment)


def write_texts(path):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(scope="module")
def preprocess(inside, root):
    """Give a function that runs the stack's preprocess_data.sh, with variables of its own."""
    script = root / "stacks/megatron-lm/preprocess_data.sh"

    def run(*arguments, **options):
        return inside("bash", script, *arguments, **options)

    return run


@pytest.fixture(scope="module")
def data(preprocess, tmp_path_factory):
    """Give a folder with a text, its tokenizer and its tokens, made by one process."""
    folder = tmp_path_factory.mktemp("data")
    text = write_texts(folder / "text.jsonl")
    preprocess("all", "--data-dir", folder, "--input", text, *SMALL)
    return folder


def tokens(folder, name):
    return [(folder / f"{name}_text_document.{ending}").read_bytes() for ending in ("bin", "idx")]


def test_megatron_reads_the_data_and_both_forms_of_the_tokenizer(inside, data, tmp_path):
    prefix, folder = data / "corpus_text_document", data / "corpus_tokenizer"
    script = tmp_path / "read.py"
    script.write_text(READ)
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(TEXTS[:1] + TEXTS[2:]))
    found = json.loads(inside("python", script, prefix, folder, tmp_path, texts).stdout)
    assert found["texts"] == TEXTS
    assert set(found["ends"]) == {found["end"]}
    assert found["as_bpe"] == found["ids"]
    # All but the text that quotes the token that ends a text, which training never encodes.
    assert found["as_hub"] == found["ids"][:1] + found["ids"][2:]
    assert found["labels"][:-1] == found["sample"][1:] and len(found["sample"]) == 32


def test_ranks_make_the_same_files(preprocess, data, tmp_path):
    where = ("--data-dir", tmp_path, "--input", data / "text.jsonl", *SMALL)
    preprocess("prepare", *where)
    assert (tmp_path / "corpus_tokenizer/tokenizer.json").is_file()
    for rank in ("0", "1"):
        preprocess("shard", *where, env={"SLURM_PROCID": rank, "SLURM_NTASKS": "2"})
    preprocess("merge", *where)
    assert tokens(tmp_path, "corpus") == tokens(data, "corpus")


def test_second_run_has_nothing_to_do(preprocess, data):
    folder = data / "corpus_tokenizer"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    done = preprocess("all", "--data-dir", data, "--input", data / "text.jsonl", *SMALL)
    assert done.stdout.count("already done") == 2 and "for Megatron-LM" not in done.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_given_tokenizer_is_used_with_the_token_that_ends_its_texts(
    inside, preprocess, data, tmp_path
):
    own = tmp_path / "own"
    shutil.copytree(data / "corpus_tokenizer", own)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (own / name).read_text()
        (own / name).write_text(text.replace("<|endoftext|>", "</s>"))
    where = ("--data-dir", tmp_path, "--input", data / "text.jsonl", "--name", "mine")
    configuration = tmp_path / "configuration.toml"
    configuration.write_text(
        Path(inside.environment["LONGSHIP_CONFIGURATION"]).read_text()
        + f"[training]\ntokenizer = {toml(own)}\n"
    )
    preprocess("all", *where, env={"LONGSHIP_CONFIGURATION": str(configuration)})
    assert not (tmp_path / "mine_tokenizer").exists()
    assert tokens(tmp_path, "mine") == tokens(data, "corpus")


def test_tokenizer_that_is_not_there_is_told(inside, root, tmp_path):
    script = root / "lib/jobs/inside/find_tokenizer.py"
    done = inside("python", script, "me/nowhere", check=False)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: cannot read the tokenizer me/nowhere: ")
    assert hint.startswith("hint: set training.tokenizer to a directory")


SIZES = """
[training]
layers = 2
hidden_size = 64
heads = 4
sequence_length = 32
micro_batch = 2
global_batch = 8
steps = 8
save_interval = 8
learning_rate = "1e-2"
split = "1,0,0"
"""
# Megatron's own layers instead of TransformerEngine's, and no kernels of GPUs.
ON_CPU = (
    *("--transformer-impl=local", "--distributed-backend=gloo", "--eval-iters=0"),
    *("--no-gradient-accumulation-fusion", "--no-persist-layer-norm", "--no-rope-fusion"),
    *("--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion"),
    "--no-bias-dropout-fusion",
)
VARIABLES = ("OMP_NUM_THREADS=1", "TORCHDYNAMO_DISABLE=1", "PYTHONWARNINGS=ignore")

# The logits of transformers, and those of the model that Megatron-LM builds for the checkpoint.
COMPARE = """
import sys
import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.training.argument_utils import gpt_config_from_args
from megatron.training.models.gpt import GPTModelBuilder
from transformers import AutoModelForCausalLM, AutoTokenizer

checkpoint, exported, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(exported)
theirs = AutoModelForCausalLM.from_pretrained(exported)
stored = theirs.dtype
ids = torch.tensor([tokenizer(text)["input_ids"]])
common = dist_checkpointing.load_common_state_dict(checkpoint)
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
parallel_state.initialize_model_parallel()
tensor_parallel.model_parallel_cuda_manual_seed(1)
builder = GPTModelBuilder(gpt_config_from_args(common["args"]))
ours = builder.build_model(ProcessGroupCollection.use_mpu_process_groups())
metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
state = {"model": ours.sharded_state_dict(metadata=metadata)}
ours.load_state_dict(dist_checkpointing.load(state, checkpoint)["model"])
places = torch.arange(ids.shape[1])[None]
with torch.no_grad():
    logits = theirs.float().eval()(ids).logits
    difference = (ours.float().eval()(ids, places, None) - logits).abs().max().item()
print(type(theirs).__name__, tokenizer.eos_token, theirs.config.eos_token_id, stored)
print(*logits.shape, logits.std().item(), difference)
"""

# What the export says of each argument of a training that is not a Llama's.
REFUSE = """
import sys
sys.path.insert(0, sys.argv[1])
import export

args = export.dist_checkpointing.load_common_state_dict(sys.argv[2])["args"]
export.llama_configuration(args)
for name in export.LLAMA:
    before = getattr(args, name)
    setattr(args, name, "other")
    try:
        export.llama_configuration(args)
        sys.exit(f"{name} is not refused")
    except ValueError as error:
        print(error)
    setattr(args, name, before)
"""


@pytest.fixture(scope="module")
def megatron(root, session_environment, inside, data, tmp_path_factory):
    """Give ``megatron(*argv)``, which runs a command with the pinned Megatron-LM, on a CPU.

    The runs are in ``megatron.runs``.
    """
    if sys.version_info < (3, 11):
        pytest.skip("Megatron-LM needs Python 3.12, for which the stand-ins make 3.11 do")
    repository = load_stack(root, "megatron-lm").configuration.values["repositories"][0]
    clone = clone_of(repository, session_environment)
    own = tmp_path_factory.mktemp("it's megatron")
    (own / "repos").mkdir()
    (own / "repos/Megatron-LM").symlink_to(clone)
    (own / "python").mkdir()
    shutil.copy(root / "tests/stand_ins/no_gpu.py", own / "python")
    (own / "python/sitecustomize.py").write_text("import no_gpu\n")
    base = Path(inside.environment["LONGSHIP_CONFIGURATION"]).read_text()
    prefix = toml(data / "corpus_text_document")
    settings = f"{SIZES}data = [{prefix}]\n"
    (own / "configuration.toml").write_text(
        base.replace("[paths]", f"[paths]\ncheckpoint_dir = {toml(own / 'runs')}") + settings
    )
    environment = {**inside.environment, "LONGSHIP_CONFIGURATION": str(own / "configuration.toml")}
    places = (f"PYTHONPATH={clone}:{own}/python", f"LONGSHIP_REPOSITORIES={own}/repos")
    command = Inside(root, environment)

    def run(*argv, **options):
        return command("env", *VARIABLES, *places, *argv, timeout=900, **options)

    run.runs = own / "runs"
    return run


@pytest.fixture(scope="module")
def train(root, megatron):
    """Give a function that trains a run on two ranks, and returns its directory."""

    def run(name, *arguments):
        script = root / "stacks/megatron-lm/run_training.sh"
        given = ("GPUS_PER_NODE=2", f"TRAINING_RUN_NAME={name}")
        megatron(*given, "bash", script, *ON_CPU, *arguments)
        return megatron.runs / name

    return run


@pytest.fixture(scope="module")
def llama(root):
    """Give the arguments with which the README trains a Llama."""
    readme = (root / "stacks/megatron-lm/README.md").read_text()
    (words,) = re.findall(r"-- (--swiglu .*?)\n```", readme, re.S)
    return words.replace("\\\n", " ").split()


@pytest.fixture(scope="module")
def whole(train, llama):
    """Train a Llama with fewer keys than queries; give the directory of the run."""
    return train("whole", *llama, "--group-query-attention", "--num-query-groups=2")


@pytest.fixture
def export(root, megatron):
    """Give a function that exports a run."""
    script = root / "stacks/megatron-lm/export.sh"
    return lambda name, **options: megatron("bash", script, name, **options)


def test_exported_llama_has_the_logits_of_megatrons_model(megatron, whole, export):
    checkpoint, exported = whole / "iter_0000008", whole / "step-0000008-hf"
    assert len(list(checkpoint.glob("*.distcp"))) > 1  # of both ranks
    assert export("whole").stdout == f"{exported}\n"
    assert "already exported:" in export("whole").stderr
    assert not list(whole.glob("*.partial")) and not list(exported.glob("model-*.json"))
    text = " ".join(TEXTS[-1].split()[:12])
    done = megatron("python", "-c", COMPARE, checkpoint, exported, text)
    facts, numbers = done.stdout.splitlines()[-2:]
    assert facts.split() == ["LlamaForCausalLM", "<|endoftext|>", "0", "torch.bfloat16"]
    _, length, vocabulary, spread, difference = map(float, numbers.split())
    assert length > 10 and vocabulary == 512 and spread > 0.1  # with the padding
    assert difference < 1e-5 * spread  # in float32; only the order of additions differs


def refusal(run, export):
    """Give the error of an export that fails, without the directories, and its hint."""
    done = export(run.name, check=False)
    assert done.returncode == 1 and not done.stdout
    assert not list(run.glob("step-*"))
    error, hint = done.stderr.splitlines()[-2:]
    return error.replace(f"{run.parent}/", ""), hint


def test_model_with_other_weights_is_refused(train, llama, export):
    biased = [word for word in llama if word != "--disable-bias-linear"]
    error, hint = refusal(train("biased", *biased, "--train-iters=1"), export)
    name = "decoder.layers.mlp.linear_fc1.bias"
    assert error == f"error: cannot export biased/iter_0000001: it also has {name}"
    assert hint.startswith("hint: train a model with the arguments of a Llama")


def test_model_that_computes_otherwise_is_refused(root, megatron, whole):
    words = (REFUSE, root / "stacks/megatron-lm", whole / "iter_0000008")
    errors = megatron("python", "-c", *words).stdout.splitlines()
    assert "position_embedding_type is other, not rope" in errors
    assert "tokenizer_type is other, not HuggingFaceTokenizer" in errors


def test_damaged_checkpoint_is_told(whole, export):
    damaged = whole.with_name("damaged")
    shutil.copytree(whole, damaged, ignore=shutil.ignore_patterns("step-*"))
    for shard in damaged.glob("iter_*/__1_*.distcp"):
        with shard.open("r+b") as file:
            file.truncate(1000)
    error, hint = refusal(damaged, export)
    assert re.fullmatch("error: cannot read damaged/iter_0000008: .+", error)
    assert hint.endswith("/damaged/latest_checkpointed_iteration.txt")


def test_run_without_a_checkpoint_is_told(megatron, export):
    error, _ = refusal(megatron.runs / "none", export)
    assert error == "error: no checkpoint in none"
