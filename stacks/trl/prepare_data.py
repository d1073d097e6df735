"""Check model, data and rewards before the ranks start, and leave the data in the cache for them.

Takes the options of fine_tune.py. One process reports what is missing, before PyTorch is imported,
and reads a large dataset while no rank waits for it.
"""

from __future__ import annotations

import argparse
import sys

import datasets
from examples import check_method, read_examples
from pairs import read_pairs
from problem import InputError, check_model
from reward_file import load_rewards


def parse_arguments() -> argparse.Namespace:
    """Read the options for model and data; fine_tune.py checks the others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--method", default="sft")
    parser.add_argument("--model")
    parser.add_argument("--rewards")
    for use in ("train", "eval"):
        # TRL's parser accepts either spelling.
        parser.add_argument(f"--{use}_dataset", f"--{use}-dataset")
        for side in ("source", "target"):
            names = (f"--{use}_{side}_field", f"--{use}-{side}-field")
            parser.add_argument(*names, default=side if use == "train" else None)
    return parser.parse_known_args()[0]


def read_translations(options: argparse.Namespace) -> None:
    """Read the pairs of texts for supervised fine-tuning."""
    source, target = options.train_source_field, options.train_target_field
    if options.train_dataset:
        pairs = read_pairs(options.train_dataset, source, target)
        print(f"{options.train_dataset}: {len(pairs)} pairs to train with")
    if options.eval_dataset:
        source = options.eval_source_field or source
        target = options.eval_target_field or target
        pairs = read_pairs(options.eval_dataset, source, target)
        print(f"{options.eval_dataset}: {len(pairs)} pairs to translate")


def main() -> None:
    """Check the model and the reward functions, and read both datasets."""
    options = parse_arguments()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        check_method(options.method)
        if options.model:
            check_model(options.model)
        if options.method == "grpo":
            load_rewards(options.rewards)
        if options.method == "sft":
            read_translations(options)
            return
        for name, use in ((options.train_dataset, "train"), (options.eval_dataset, "evaluate")):
            if name:
                print(f"{name}: {len(read_examples(name, options.method))} examples to {use} with")
    except InputError as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")


if __name__ == "__main__":
    main()
