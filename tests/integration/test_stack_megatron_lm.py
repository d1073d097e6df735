"""What preprocess_data.sh of megatron-lm makes is what Megatron reads.

megatron-core comes as the newest wheel, of an earlier release than the pinned one, of which the
registry has none. It has the datasets, not pretrain_gpt.py.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from support import cache, processes
from support.git import Repository
from support.inside import Inside
from support.repository import toml

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
    core = "megatron-core==0.16.1"
    requirements = root / "stacks/megatron-lm/requirements.txt"
    marks = cache.fingerprint(requirements, root / "requirements/torch.txt", core)
    folder = cache.cache_folder() / f"megatron-lm-{marks}"
    made = tmp_path_factory.mktemp("inside")
    wanted = made / "requirements.txt"
    wanted.write_text(f"{requirements.read_text()}\n{core}\n")
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
