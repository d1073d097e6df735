import json
import os
import shutil
import sys

import pytest
from support.inside import CopiesInside
from support.terminal import Terminal

TEXTS = [
    "def longship():\n    return 'oars'\n",
    "",
    "a document that quotes <|endoftext|> does not end there",
    "Tromsø, 北京, 🚢, tab\there, nul \0, line ends \n\r\n",
    *(f"document {number}: " + "row, row, row the boat. " * number for number in range(20)),
]
SMALL = ("--vocab-size", "400")

READ_BACK = """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenizers import Tokenizer
prefix, tokenizer = sys.argv[1], Tokenizer.from_file(sys.argv[2])
dataset = IndexedDataset(prefix)
documents = [dataset[index].tolist() for index in range(len(dataset))]
json.dump({
    "boundaries": dataset.document_indices.tolist(),
    "ends": [ids.index(tokenizer.token_to_id("<|endoftext|>")) + 1 for ids in documents],
    "lengths": [len(ids) for ids in documents],
    "texts": [tokenizer.decode(ids[:-1], skip_special_tokens=False) for ids in documents],
}, sys.stdout)
"""


def write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def dataset_files(data_dir):
    return [data_dir / f"corpus_text_document.{ending}" for ending in ("bin", "idx")]


def read_dataset(data_dir):
    return [file.read_bytes() for file in dataset_files(data_dir)]


@pytest.fixture(scope="module")
def preprocess(inside, root, tmp_path_factory):
    """Give a function that runs preprocess_data.py to its end."""
    module = "megatron.core.datasets.indexed_dataset"
    copies = CopiesInside(inside, tmp_path_factory.mktemp("copies"), module)
    yield lambda *arguments, **options: copies(root / "preprocess_data.py", *arguments, **options)
    copies.close()


@pytest.fixture(scope="module")
def serial(preprocess, tmp_path_factory):
    """Give a folder with a text, its tokenizer, and its dataset, made by one process."""
    folder = tmp_path_factory.mktemp("serial")
    text = write_texts(folder / "text.jsonl", TEXTS)
    result = preprocess("--data-dir", folder, "--input", text, *SMALL)
    assert f"{len(TEXTS)} documents" in result.stdout
    return folder


@pytest.fixture
def same_text(serial):
    return ("--input", serial / "text.jsonl", "--tokenizer", serial / "corpus_tokenizer.json")


def assert_error(result, *parts):
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    for part in parts:
        assert part in result.stderr


@pytest.mark.slow  # in a job: test_job_sites.py
def test_ranks_in_parallel_make_what_one_process_makes(
    inside, root, preprocess, serial, same_text, tmp_path
):
    script, where = root / "preprocess_data.py", ("--data-dir", tmp_path, *same_text)
    ranks = [
        inside.start("python", script, "shard", *where, env={"RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.communicate(timeout=300) and rank.returncode == 0
    (tmp_path / "corpus_text_document.bin.partial-node7-1").touch()  # a kill on another node
    preprocess("merge", *where)
    assert read_dataset(tmp_path) == read_dataset(serial)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"corpus_text_document.{end}" for end in ("bin", "idx", "record.json")]


def test_workers_of_ranks_make_what_one_process_makes(preprocess, serial, same_text, tmp_path):
    where = ("--data-dir", tmp_path, *same_text)
    for rank in range(2):
        environment = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "2"}
        said = preprocess("shard", *where, env=environment).stdout
        for shard in (2 * rank, 2 * rank + 1):
            assert f"shard of rank {shard} of 4: " in said
    # what a message tells to type makes that shard alone
    command = ("shard", "--rank", "1", "--world-size", "4", *where)
    said = preprocess(*command, env={"SLURM_CPUS_PER_TASK": "2"}).stdout
    assert said.startswith("shard of rank 1 of 4: already done")
    preprocess("merge", *where)
    assert read_dataset(tmp_path) == read_dataset(serial)


def test_worker_that_fails_ends_the_others(preprocess, same_text, tmp_path):
    line = json.dumps({"text": "row, row, row the boat. " * 40}) + "\n"
    first, wrong = line * 10_000, "plain words\n"  # the first half takes a worker some seconds
    text = tmp_path / "text.jsonl"
    text.write_text(first + wrong + "\n" * (len(first) - len(wrong)))
    where = ("--data-dir", tmp_path / "data", *same_text[2:], "--input", text)
    done = preprocess("shard", "--workers=2", *where, check=False)
    assert_error(done, str(text), "is not a JSON object")
    assert done.stdout == ""  # the first one has not finished
    assert not list(tmp_path.rglob("*.partial*"))


@pytest.mark.slow  # three ranks: the test above
def test_any_world_size_makes_the_same(preprocess, serial, same_text, tmp_path):
    for world_size in (3, len(TEXTS) + 9):
        where = ["--data-dir", tmp_path / str(world_size), *same_text]
        for rank in reversed(range(world_size)):
            preprocess("shard", "--rank", rank, "--world-size", world_size, *where)
        preprocess("merge", *where)
        assert read_dataset(tmp_path / str(world_size)) == read_dataset(serial)


def test_megatron_reads_every_document(inside, serial):
    prefix, tokenizer = serial / "corpus_text_document", serial / "corpus_tokenizer.json"
    read = json.loads(inside("python", "-W", "ignore", "-c", READ_BACK, prefix, tokenizer).stdout)
    assert read["texts"] == TEXTS
    assert read["ends"] == read["lengths"]
    assert read["boundaries"] == list(range(len(TEXTS) + 1))


def test_terminal_sees_how_far_it_is(inside, root, same_text, tmp_path):
    command = [sys.executable, root / "container_run.py", "python", root / "preprocess_data.py"]
    command += ["--data-dir", tmp_path, *same_text]
    with Terminal(command, env=inside.environment, cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    line, gone, rest = terminal.said.partition("\r\x1b[K")[2].partition("\r\x1b[K")
    shown = f"shard of rank 0 of 1: {len(TEXTS)} documents, "
    assert line.startswith(shown) and gone
    assert rest.startswith("shard of rank 0 of 1: ") and "tokens/s\r\n" in rest


def test_what_is_done_is_not_done_again(preprocess, serial, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(serial, folder)  # keeps the times, by which a changed text is known
    call = ("--data-dir", folder, "--input", folder / "text.jsonl", *SMALL)
    made = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    for mode in ("all", "shard", "merge"):
        assert "dataset: already done" in preprocess(mode, *call).stdout
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == made

    write_texts(folder / "text.jsonl", [*TEXTS, "one more"])
    assert f"{len(TEXTS) + 1} documents" in preprocess(*call).stdout
    assert read_dataset(folder) != read_dataset(serial)


@pytest.mark.parametrize("damage", ["truncated", "missing", "empty record", "wrong record"])
def test_damaged_dataset_is_made_again(damage, preprocess, serial, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(serial, folder)
    bin_file, _ = dataset_files(folder)
    record = bin_file.with_suffix(".record.json")
    if damage == "truncated":
        os.truncate(bin_file, bin_file.stat().st_size // 2)
    elif damage == "missing":
        bin_file.unlink()
    else:
        record.write_text("" if damage == "empty record" else "[]")
    call = ("--data-dir", folder, "--input", folder / "text.jsonl", *SMALL)
    assert "dataset: already done" not in preprocess(*call).stdout
    assert read_dataset(folder) == read_dataset(serial)


def test_two_at_once_make_the_data_once(inside, root, serial, tmp_path):
    command = ("python", root / "preprocess_data.py", "--data-dir", tmp_path, *SMALL)
    command = (*command, "--input", serial / "text.jsonl")
    both = [inside.start(*command) for _ in range(2)]
    said = [each.communicate(timeout=300) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert sorted("dataset: already done" in output for output, _ in said) == [False, True]
    assert read_dataset(tmp_path) == read_dataset(serial)
    assert not list(tmp_path.glob("*lock*"))


def test_shards_of_other_inputs_are_other_files(preprocess, serial, same_text, tmp_path):
    """Two jobs at once, one of which ends documents with another token, cannot mix their files."""
    where = ["--data-dir", tmp_path, *same_text]
    for call in (["shard"], ["shard", "--end-of-text", "a"], ["merge"]):
        preprocess(*call, *where)
    assert read_dataset(tmp_path) == read_dataset(serial)
    assert len(list(tmp_path.glob("corpus_shards/*/*.idx"))) == 1  # those of the other inputs


def test_shards_that_an_ended_job_of_another_size_left_are_no_obstacle(
    preprocess, serial, same_text, tmp_path
):
    where = ["--data-dir", tmp_path, *same_text]
    for rank, size in ((2, 3), (0, 2), (1, 2)):
        preprocess("shard", *where, "--rank", rank, "--world-size", size)
    preprocess("merge", *where)
    assert read_dataset(tmp_path) == read_dataset(serial)
    assert not list(tmp_path.glob("corpus_shards"))


def test_standard_library_is_the_same_text_every_time(inside, root, preprocess, tmp_path):
    folders = [tmp_path / "scratch" / "data", tmp_path / "other"]
    size = ("--max-megabytes", "0.3", *SMALL)
    scratch = f"LONGSHIP_SCRATCH_DIR={tmp_path / 'scratch'}"  # where data lies unless told
    inside("env", scratch, "python", root / "preprocess_data.py", "prepare", *size)
    preprocess("prepare", *size, "--data-dir", folders[1])
    for name in ("corpus.jsonl", "corpus_tokenizer.json"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second
    lines = (folders[0] / "corpus.jsonl").read_text("utf-8").splitlines()
    assert 0 < sum(len(json.loads(line)["text"].encode()) for line in lines) <= 300_000


def test_merge_names_the_rank_whose_shard_is_missing(preprocess, same_text, tmp_path):
    where = ("--data-dir", tmp_path, *same_text)
    assert_error(preprocess("merge", *where, check=False), "no shards")
    done = preprocess("shard", "--rank", "0", "--world-size", "2", *where)
    assert "rank 0 of 2" in done.stdout
    hint = "preprocess_data.py shard --rank 1 --world-size 2"
    assert_error(preprocess("merge", *where, check=False), "rank 1 of 2", hint)
    differing = preprocess("merge", "--world-size", "3", *where, check=False)
    assert_error(differing, "rank 0 of 3")

    (shard,) = tmp_path.glob("corpus_shards/*/*.idx")
    shard.with_name("00000-of-00003.idx").write_bytes(b"")
    assert_error(preprocess("merge", *where, check=False), "world sizes: 2, 3", "--world-size")
    assert not any(file.exists() for file in dataset_files(tmp_path))


def test_rank_comes_from_slurm_without_torchrun(preprocess, tmp_path):
    environment = {"SLURM_PROCID": "3", "SLURM_NTASKS": "3"}
    result = preprocess("shard", "--data-dir", tmp_path, env=environment, check=False)
    assert result.returncode == 2
    assert "rank: expected 0 to 2, got 3" in result.stderr


def test_missing_text_names_the_command_that_makes_it(preprocess, tmp_path):
    result = preprocess("shard", "--data-dir", tmp_path, check=False)
    hint = "python3 container_run.py python preprocess_data.py prepare"
    assert_error(result, str(tmp_path / "corpus.jsonl"), hint)


def test_place_that_cannot_be_written_to_is_an_error(preprocess, same_text, tmp_path):
    (tmp_path / "file").touch()
    result = preprocess("--data-dir", tmp_path / "file", *same_text, check=False)
    assert_error(result, "cannot read or write", str(tmp_path / "file"), "permissions")


def test_tokenizer_that_cannot_be_read_is_an_error(preprocess, serial, tmp_path):
    text = serial / "text.jsonl"
    where = ("--data-dir", tmp_path, "--input", text, "--tokenizer", text)
    assert_error(preprocess(*where, check=False), f"cannot read the tokenizer {text}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        ("", "is empty"),
        ("\n\n", "no document"),
        ('{"text": "fine"}\n{"words": 1}\n', "line 2 "),
        ('{"text": 5}\n', "line 1 "),
        ("plain words\n", "line 1 "),
    ],
)
def test_unusable_text_is_an_error(preprocess, tmp_path, content, message):
    text = tmp_path / "text.jsonl"
    if content is not None:
        text.write_text(content)
    result = preprocess("--data-dir", tmp_path, "--input", text, *SMALL, check=False)
    assert_error(result, str(text), message)
    assert not any(file.exists() for file in dataset_files(tmp_path))


def test_unknown_end_of_text_is_an_error(preprocess, same_text, tmp_path):
    call = ("shard", "--data-dir", tmp_path, *same_text, "--end-of-text", "</s>")
    assert_error(preprocess(*call, check=False), "'</s>'", "--end-of-text")


def test_wrong_mode_is_an_error(preprocess, tmp_path):
    result = preprocess("mrege", "--data-dir", tmp_path, check=False)
    assert result.returncode == 2
    assert "mrege" in result.stderr
    assert not list(tmp_path.iterdir())


# The object ends the writing of an array, as a kill does.
SAVE = """
import sys
import numpy
sys.path.append(sys.argv[1])
from training_run.megatron_data import save_whole_files

class Wrong:
    def __reduce__(self):
        raise ZeroDivisionError

save_whole_files()
try:
    numpy.save("broken.npy", numpy.array([Wrong()]), allow_pickle=True)
except ZeroDivisionError:
    numpy.save("whole.npy", numpy.arange(3), allow_pickle=True)
    numpy.save("other", numpy.load("whole.npy", mmap_mode="r"))
"""


def test_part_of_an_index_has_no_name_that_megatron_reads(inside, root, tmp_path):
    inside("env", "-C", tmp_path, "python", "-c", SAVE, root)
    assert sorted(each.name for each in tmp_path.glob("*.npy")) == ["other.npy", "whole.npy"]
