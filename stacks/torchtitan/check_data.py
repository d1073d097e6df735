"""Read the training data into the cache of `datasets`, and try the tokenizer on its start."""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator

from datasets.exceptions import DatasetGenerationError
from longship_titan import HuggingFaceTokenizer, load_files

SAMPLES = 1000


@contextlib.contextmanager
def told(what: str, hint: str) -> Iterator[None]:
    """End with two lines where the libraries cannot read what the user named."""
    try:
        yield
    except (OSError, ValueError, DatasetGenerationError) as error:
        why = str(error.__cause__ or error).strip().split("\n")[0]
        sys.exit(f"error: {what}: {why}\nhint: {hint}")


def main() -> None:
    """Tell how many samples there are, and how many tokens the first of them have."""
    field = os.environ["TRAINING_TEXT_FIELD"]
    files = os.environ["TRAINING_DATA"].splitlines()
    if not files:
        sys.exit(
            "error: training.data names no JSON-lines file\n"
            "hint: set it in [training] of configuration.toml"
        )
    with told(
        "the data cannot be read", "name JSON-lines files in [training] of configuration.toml"
    ):
        data = load_files(files)
    if field not in data.column_names:
        sys.exit(
            f'error: the samples have no field "{field}", but {", ".join(data.column_names)}\n'
            "hint: set text_field in [training] of configuration.toml"
        )
    name = os.environ["TRAINING_TOKENIZER"]
    hint = "name its folder in [training] of configuration.toml, or one of the hub that is an asset"
    with told(f"the tokenizer {name} cannot be used", hint):
        tokenizer = HuggingFaceTokenizer(name)
    texts = (sample[field] for sample in itertools.islice(data, SAMPLES))
    tokens = [len(tokenizer.encode(text, bos=True, eos=True)) for text in texts]
    print(f"{len(data)} samples, {tokenizer.n_words} kinds of tokens")
    print(f"the first {len(tokens)} samples have {sum(tokens)} tokens")


if __name__ == "__main__":
    main()
