"""Tokenize JSON Lines with the method of Megatron-LM's own data tool, for comparison.

A pool of workers encodes one document after the other, and one process adds them to megatron-core's
IndexedDatasetBuilder. The tool itself is not part of the megatron-core package. It uses a tokenizer
of transformers; this program uses the bare one, which is not slower.

    python benchmarks/megatron_loop.py TEXT.jsonl TOKENIZER.json PREFIX WORKERS END_OF_TEXT
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import warnings

from tokenizers import Tokenizer

CHUNK = 32  # documents per worker and turn, as in the tool


def start_worker(path: str, end_of_text: str) -> None:
    """Read the tokenizer."""
    global tokenizer, end
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    end = tokenizer.token_to_id(end_of_text)


def encode(line: str) -> list[int]:
    """Return a document's ids."""
    return [*tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids, end]


def main() -> None:
    """Tokenize, and print the tokens per second."""
    text, path, prefix, workers, end_of_text = sys.argv[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about optional GPU packages
        from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    start_worker(path, end_of_text)
    dtype = DType.optimal_dtype(tokenizer.get_vocab_size())
    builder, tokens = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype), 0
    pool = multiprocessing.Pool(int(workers), start_worker, (path, end_of_text))
    pool.apply(encode, ('{"text": ""}',))  # load the tokenizer before the clock starts, like ours
    start = time.perf_counter()
    with pool, open(text, encoding="utf-8") as lines:
        for ids in pool.imap(encode, lines, CHUNK):
            builder.add_document(ids, [len(ids)])
            tokens += len(ids)
    builder.finalize(f"{prefix}.idx")
    print(tokens / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
