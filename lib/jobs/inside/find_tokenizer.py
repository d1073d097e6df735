"""Find a tokenizer as transformers does: its tokenizer.json, and the token that ends a document.

    find_tokenizer.py NAME          a directory, or a name on the hub

The data steps of stacks tell preprocess_data.py what it prints, on a line each.
"""

import sys


def find(name: str) -> tuple[str, str]:
    """Return path and token; the libraries tell by many kinds of errors what they cannot read."""
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    try:
        path = cached_file(name, "tokenizer.json")
        end_of_text = AutoTokenizer.from_pretrained(name).eos_token
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        sys.exit(
            f"error: cannot read the tokenizer {name}: {reason}\n"
            "hint: set training.tokenizer to a directory with a tokenizer.json; or to one of "
            "[[assets]], and run: python3 set_up.py install"
        )
    if end_of_text is None:
        sys.exit(
            f"error: the tokenizer {name} has no eos_token\nhint: add it to tokenizer_config.json"
        )
    return path, end_of_text


if __name__ == "__main__":
    print(*find(sys.argv[1]), sep="\n")
