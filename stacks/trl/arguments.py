"""The command line: TRL's own options, and what is translated with what."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from problem import InputError, first_line
from trl import SFTConfig, TrlParser

USAGE = "fine_tune.py --model MODEL --train_dataset NAME:SPLIT [OPTION...]; --help shows them all"


def option(default: object, about: str, **more: object) -> object:
    """Describe an option of the command line."""
    return field(default=default, metadata={"help": about, **more})


@dataclass
class TranslationArguments:
    """What is translated with what."""

    model: str = field(metadata={"help": "folder of a model, or its name on the hub"})
    train_dataset: str = field(
        metadata={"help": "FILE.jsonl[:SPLIT], NAME:SPLIT or NAME:CONFIGURATION:SPLIT"}
    )
    eval_dataset: str | None = option(None, "the same, to translate and score")
    train_source_field: str = option("source", "field with the text; dotted where it is nested")
    train_target_field: str = option("target", "field with its translation")
    eval_source_field: str | None = option(None, "that of eval_dataset; train_source_field's")
    eval_target_field: str | None = option(None, "that of eval_dataset; train_target_field's")
    prompt: str = option("Translate:\n{source}\n\nTranslation:\n", "{source}: the text")
    max_new_tokens: int = option(256, "tokens of a translation, at most")
    num_beams: int = option(1, "beams of the search for a translation; 1: greedy")
    bleu_tokenizer: str = option(
        "13a", "sacrebleu's: how BLEU splits words", choices=["13a", "char", "intl", "none", "zh"]
    )


@dataclass
class TrainingArguments(SFTConfig):
    """TRL's own options, with other defaults."""

    run_name: str = option("fine-tuning", "names the folder of the run, and the run in W&B")
    output_dir: str | None = option(None, "$LONGSHIP_CHECKPOINT_DIR/<run_name>")
    wandb_project: str | None = option(None, "record the run in this project of W&B")
    save_total_limit: int | None = option(2, "checkpoints that are kept")

    def __post_init__(self) -> None:
        """Fill in what follows from other options and from the machine."""
        if self.output_dir is None:
            checkpoints = Path(os.environ.get("LONGSHIP_CHECKPOINT_DIR", "."))
            self.output_dir = str(checkpoints / self.run_name)
        if self.wandb_project:
            os.environ["WANDB_PROJECT"] = self.wandb_project
            # the runs of a chain of jobs, one beside the other
            os.environ.setdefault("WANDB_RUN_GROUP", self.run_name)
            self.report_to = "wandb"
        if not torch.cuda.is_available():
            self.use_cpu = True
            if "WORLD_SIZE" in os.environ:
                self.ddp_backend = "gloo"
        if not sys.stderr.isatty():
            self.disable_tqdm = True
        super().__post_init__()


def parse_arguments(about: str) -> tuple[TranslationArguments, TrainingArguments]:
    """Read the command line; `about` is what --help says first."""
    parser = TrlParser(
        [TranslationArguments, TrainingArguments],
        usage=USAGE,
        description=about,
        allow_abbrev=False,
    )
    try:
        options, training, unknown = parser.parse_args_and_config(return_remaining_strings=True)
    except (OSError, ValueError) as error:
        raise InputError(first_line(error), "see the options: fine_tune.py --help") from error
    if unknown:
        parser.error(f"there is no option {unknown[0]}")
    if "{source}" not in options.prompt:
        raise InputError("--prompt does not say where the text goes", "write {source} there")
    return options, training
