"""Stacks read each other's tokenizers, with the packages that each is pinned to."""

import re
import sys

import pytest
from support import cache, processes

pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="transformers 5 needs it")

STACKS = ("trl", "torchtitan", "megatron-lm", "olmo-core")
TEXT = "w3 <sep> w19 w4"

# What a fine-tuning leaves with its model; a token of one's own is where the formats differ.
WRITE = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

vocabulary = {"<end>": 0, "<unknown>": 1, **{f"w{i}": i + 2 for i in range(20)}}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
special = {"eos_token": "<end>", "unk_token": "<unknown>", "additional_special_tokens": ["<sep>"]}
made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
made.save_pretrained(sys.argv[1])
"""
READ = """
import sys
from tokenizers import Tokenizer
from transformers import AutoTokenizer

inside, text, *folders = sys.argv[1:]
sys.path.insert(0, inside)
from find_tokenizer import find
for folder in folders:
    file, end = find(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(text).input_ids
    assert tokens == Tokenizer.from_file(file).encode(text).ids
    print(file, end, len(tokenizer), tokenizer.eos_token_id, *tokens)
"""


@pytest.fixture(scope="module")
def python(root, session_environment):
    """Give ``python(stack, *argv)``, which has the packages of a stack that read tokenizers."""

    def install(pins, folder):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        processes.run([*pip, "--target", folder, *pins], env=session_environment, timeout=900)

    def run(stack, *argv, check=True):
        text = (root / "stacks" / stack / "requirements.txt").read_text(encoding="utf-8")
        pins = re.findall(r"^(?:transformers|tokenizers)==\S+", text, re.M)
        assert pins, f"{stack} pins neither transformers nor tokenizers"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        name = f"tokenizers-{cache.fingerprint(sorted(pins), version)}"
        folder = cache.cached(name, lambda path: install(pins, path))
        environment = {**session_environment, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
        return processes.run([sys.executable, *argv], env=environment, check=check)

    return run


@pytest.mark.slow  # as the next one, with four tokenizers
def test_each_stack_reads_what_all_write(root, python, tmp_path):
    folders = [tmp_path / f"it's of {writer}" for writer in STACKS]
    for writer, folder in zip(STACKS, folders):
        python(writer, "-c", WRITE, folder)
    for reader in STACKS:
        said = python(reader, "-c", READ, root / "lib/jobs/inside", TEXT, *folders).stdout
        expected = [f"{folder}/tokenizer.json <end> 23 0 5 22 21 6" for folder in folders]
        assert said.splitlines() == expected


def test_trained_tokenizer_of_megatron_lm_is_read_by_all(root, python, tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "row, row, row the boat"}\n' * 9)
    words = ["--data-dir", tmp_path, "--input", tmp_path / "text.jsonl", "--vocab-size", "300"]
    python("megatron-lm", root / "preprocess_data.py", "prepare", *words)
    export = root / "stacks/megatron-lm/tokenizer_files.py"
    program = f"import sys, runpy; sys.path.insert(0, {str(root)!r}); sys.argv = sys.argv[1:]; "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    python("megatron-lm", "-c", program, export, "prepare", *words)
    folder = tmp_path / "corpus_tokenizer"
    done = python("megatron-lm", root / "lib/jobs/inside/find_tokenizer.py", folder)
    assert done.stdout == f"{folder}/tokenizer.json\n<|endoftext|>\n"
    words = ["-c", READ, root / "lib/jobs/inside", "row the boat", folder]
    said = [python(reader, *words).stdout.split() for reader in STACKS]
    assert said.count(said[0]) == len(STACKS) and len(said[0]) > 6
    assert said[0][1] == "<|endoftext|>"


@pytest.mark.parametrize(
    ("files", "message"),
    [({}, "Unrecognized|not|no "), ({"tokenizer.json": '{"model": 1}'}, ".")],
    ids=["empty", "broken"],
)
def test_what_is_no_tokenizer_is_told(files, message, root, python, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    finder = root / "lib/jobs/inside/find_tokenizer.py"
    done = python("torchtitan", finder, tmp_path, check=False)
    error, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 1
    assert re.match(rf"error: cannot read the tokenizer {tmp_path}: .*({message})", error)
    assert hint.startswith("hint: set training.tokenizer to a directory")
    assert "Traceback" not in done.stderr
