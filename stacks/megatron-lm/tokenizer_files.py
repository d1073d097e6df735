"""The files of a tokenizer: preprocess_data.py reads one file, Megatron-LM a Hugging Face folder.

    tokenizer_files.py find NAME            a folder or a name on the hub: tell preprocess_data.py
    tokenizer_files.py export ARGUMENT...   keep the BPE that preprocess_data.py trained as a folder

`find` prints the path of tokenizer.json and, below it, the token that ends a text. `export` takes
preprocess_data.py's own arguments, and finds that module on PYTHONPATH. Its folder has vocab.json
and merges.txt too, so that the bootcamp's notebooks can use it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt"),
)


def find(name: str) -> tuple[str, str]:
    """Find a tokenizer as transformers does, on the disk or in the hub's cache.

    Parameters
    ----------
    name : str
        A folder, or a name on the hub.

    Returns
    -------
    tuple of str
        Path of tokenizer.json, and the token that ends a text.

    Raises
    ------
    SystemExit
        If it is not there, has no tokenizer.json, or ends texts with nothing.
    """
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    try:
        path = cached_file(name, "tokenizer.json")
        end_of_text = AutoTokenizer.from_pretrained(name).eos_token
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        sys.exit(
            f"error: there is no tokenizer {name}: {reason}\n"
            "hint: name a folder with a tokenizer.json; set_up.py install fetches [[assets]]"
        )
    if end_of_text is None:
        sys.exit(
            f"error: the tokenizer {name} has no eos_token\nhint: add it to tokenizer_config.json"
        )
    return path, end_of_text


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
    from transformers import GPT2TokenizerFast

    end_of_text = options.end_of_text
    tokenizer = GPT2TokenizerFast(
        tokenizer_file=str(trained),
        eos_token=end_of_text,
        bos_token=end_of_text,
        unk_token=end_of_text,
    )
    with product.write() as (files, _), tempfile.TemporaryDirectory() as saved:
        tokenizer.save_pretrained(saved)
        for name, file in zip(NAMES, files):
            shutil.copyfile(Path(saved, name), file)
    print(f"tokenizer: for Megatron-LM in {folder}")


if __name__ == "__main__":
    if sys.argv[1] == "find":
        print(*find(sys.argv[2]), sep="\n")
    else:
        export(sys.argv[2:])
