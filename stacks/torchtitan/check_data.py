"""Read the training data into the cache of `datasets`, and try the tokenizer on its start."""

import itertools
import os
import sys

from longship_titan import HuggingFaceTokenizer, load_files

SAMPLES = 1000


def main() -> None:
    """Tell how many samples there are, and how many tokens the first of them have."""
    field = os.environ["TRAINING_TEXT_FIELD"]
    files = os.environ["TRAINING_DATA"].splitlines()
    if not files:
        sys.exit(
            "error: training.data names no JSON-lines file\n"
            "hint: set it in [training] of configuration.toml"
        )
    data = load_files(files)
    if field not in data.column_names:
        sys.exit(
            f'error: the samples have no field "{field}", but {", ".join(data.column_names)}\n'
            "hint: set text_field in [training] of configuration.toml"
        )
    tokenizer = HuggingFaceTokenizer(os.environ["TRAINING_TOKENIZER"])
    texts = (sample[field] for sample in itertools.islice(data, SAMPLES))
    tokens = [len(tokenizer.encode(text, bos=True, eos=True)) for text in texts]
    print(f"{len(data)} samples, {tokenizer.n_words} kinds of tokens")
    print(f"the first {len(tokens)} samples have {sum(tokens)} tokens")


if __name__ == "__main__":
    main()
