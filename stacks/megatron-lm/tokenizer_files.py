"""Keep the BPE that preprocess_data.py trained as the directory that Megatron-LM reads.

    tokenizer_files.py ARGUMENT...      those of preprocess_data.py, which it finds on PYTHONPATH

The directory has vocab.json and merges.txt too, so that the bootcamp's notebooks can use it.
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
    """Keep the trained BPE as `NAME_tokenizer/` beside `NAME_tokenizer.json`, once.

    Parameters
    ----------
    arguments : list of str
        Those that preprocess_data.py was run with.
    """
    import preprocess_data

    sys.argv[1:] = arguments
    options = preprocess_data.parse_arguments()
    if options.tokenizer or options.mode in ("shard", "merge"):
        return
    trained = preprocess_data.Layout(options).tokenizer
    folder = trained.with_suffix("")
    made_from = {
        "tokenizer_sha256": hashlib.sha256(trained.read_bytes()).hexdigest(),
        "end_of_text": options.end_of_text,
    }
    product = preprocess_data.Product(tuple(folder / name for name in NAMES), made_from)
    if product.result() is not None:
        return
    # transformers 4 and 5 both read this class; what 5 itself writes, 4 cannot read.
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.update(dict.fromkeys(("bos_token", "eos_token", "unk_token"), options.end_of_text))
    with product.write() as (files, _), tempfile.TemporaryDirectory() as saved:
        shutil.copyfile(trained, files[0])
        files[1].write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        for model_file, file in zip(Tokenizer.from_file(str(trained)).model.save(saved), files[2:]):
            shutil.copyfile(model_file, file)
    print(f"tokenizer: for Megatron-LM in {folder}")


if __name__ == "__main__":
    export(sys.argv[1:])
