"""Two jobs that make the same data in shards, without a lock; `tokenizers` is replaced."""

import importlib
import shutil
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def layout(root, tmp_path, monkeypatch):
    """Give the paths of a data step, and let its module write a byte for each token."""
    names = ("Tokenizer", "decoders", "models", "pre_tokenizers", "trainers")
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(**dict.fromkeys(names)))
    monkeypatch.syspath_prepend(root)
    monkeypatch.delitem(sys.modules, "preprocess_data", raising=False)
    module = importlib.import_module("preprocess_data")
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "tokenizer.json").write_text("{}")
    words = [f"--data-dir={tmp_path}", f"--input={tmp_path}/text.jsonl"]
    words += [f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]
    monkeypatch.setattr(sys, "argv", ["preprocess_data.py", "shard", *words])
    tokenizer = SimpleNamespace(
        get_vocab_size=lambda: 1,
        encode_batch_fast=lambda texts, **_: [SimpleNamespace(ids=[1]) for _ in texts],
    )
    monkeypatch.setattr(module, "open_tokenizer", lambda _: (tokenizer, 0))
    return module.Layout(module.parse_arguments())


def write_while(layout, monkeypatch, meanwhile):
    """Write the shard, while another job does something."""
    module = sys.modules["preprocess_data"]

    class Builder:
        def __init__(self, file, _):
            file.write_bytes(b"")

        def add_document(self, *_):
            meanwhile()

        def finalize(self, file):
            with open(file, "wb"):
                pass

    monkeypatch.setattr(module, "open_builder", Builder)
    module.make(layout)


def test_shard_that_another_job_has_merged_meanwhile_is_done(layout, monkeypatch, capsys):
    def merge():
        with layout.dataset().write() as (files, result):
            for each in files:
                each.write_bytes(b"x")
            result.update(tokens=1, documents=1)
        shutil.rmtree(layout.shards_dir)

    write_while(layout, monkeypatch, merge)
    assert "dataset: already done, 1 tokens in 1 documents" in capsys.readouterr().out


def test_shard_that_cannot_be_written_is_an_error(layout, monkeypatch):
    with pytest.raises(FileNotFoundError):
        write_while(layout, monkeypatch, lambda: shutil.rmtree(layout.shards_dir))
