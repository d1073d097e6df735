"""Save the BPE that preprocess_data.py trained as a directory that Megatron-LM reads.

    tokenizer_files.py ARGUMENT...      arguments of preprocess_data.py, which must be on PYTHONPATH

The directory also has vocab.json and merges.txt for the bootcamp's notebooks.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile

from tokenizers import Tokenizer

NAMES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def export(arguments: list[str]) -> None:
    """Save the trained BPE as `NAME_tokenizer/` next to `NAME_tokenizer.json`, unless it exists."""
    import preprocess_data

    sys.argv[1:] = arguments
    options = preprocess_data.parse_arguments()
    if options.tokenizer or options.mode in ("shard", "merge"):
        return
    trained = preprocess_data.Layout(options).tokenizer
    directory = trained.with_suffix("")
    made_from = {
        "tokenizer_sha256": hashlib.sha256(trained.read_bytes()).hexdigest(),
        "end_of_text": options.end_of_text,
    }
    product = preprocess_data.Product(tuple(directory / name for name in NAMES), made_from)
    if product.result() is not None:
        return
    # transformers 4 cannot read what transformers 5 writes; both read this class.
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.update(dict.fromkeys(("bos_token", "eos_token", "unk_token"), options.end_of_text))
    with product.write() as (files, _), tempfile.TemporaryDirectory() as saved:
        shutil.copyfile(trained, files[0])
        files[1].write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        for model_file, file in zip(Tokenizer.from_file(str(trained)).model.save(saved), files[2:]):
            shutil.copyfile(model_file, file)
    print(f"tokenizer: for Megatron-LM in {directory}")


if __name__ == "__main__":
    export(sys.argv[1:])
