"""The command line: TRL's own options, and what is translated with what."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from problem import InputError, first_line
from trl import SFTConfig, TrlParser

if TYPE_CHECKING:
    from peft import LoraConfig

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
    eval_strategy: str | None = option(
        None, "no, epoch or steps (default: steps with --eval_steps)"
    )

    def __post_init__(self) -> None:
        """Fill in what follows from other options and from the machine."""
        if self.eval_strategy is None:
            self.eval_strategy = "steps" if self.eval_steps or self.eval_delay else "no"
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


@dataclass
class LoraArguments:
    """TRL's options for LoRA, each of which turns it on unless ``--use_peft false`` is given."""

    use_peft: bool | None = option(
        None, "train LoRA adapters; the model itself stays as it is", nargs="?", const=True
    )
    lora_r: int | None = option(None, "rank of the adapters (default: 16)")
    lora_alpha: int | None = option(None, "scale of the adapters, times their rank (default: 32)")
    lora_dropout: float | None = option(None, "dropout before the adapters (default: 0.05)")
    lora_target_modules: list[str] | None = option(
        None, "names of the modules that get an adapter (default: all linear layers)"
    )

    def peft_config(self) -> LoraConfig | None:
        """Return what peft is configured with; None if the whole model is trained."""
        modules = self.lora_target_modules
        options = {
            "r": self.lora_r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": modules[0] if modules and len(modules) == 1 else modules,
        }
        given = {name: value for name, value in options.items() if value is not None}
        if not (given if self.use_peft is None else self.use_peft):
            return None
        try:
            from peft import LoraConfig
        except ImportError as error:
            message, hint = "LoRA requires the package peft", "add peft to your requirements file"
            raise InputError(message, f"{hint}, then: python3 set_up.py install") from error
        default = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear"}
        return LoraConfig(task_type="CAUSAL_LM", **{**default, **given})


def parse_arguments(
    about: str,
) -> tuple[TranslationArguments, TrainingArguments, LoraConfig | None]:
    """Read the command line; `about` is what --help says first."""
    parser = TrlParser(
        [TranslationArguments, TrainingArguments, LoraArguments],
        usage=USAGE,
        description=about,
        allow_abbrev=False,
    )
    try:
        options, training, lora, unknown = parser.parse_args_and_config(
            return_remaining_strings=True
        )
        peft_config = lora.peft_config()
    except (OSError, ValueError) as error:
        raise InputError(first_line(error), "see the options: fine_tune.py --help") from error
    if unknown:
        parser.error(f"there is no option {unknown[0]}")
    if "{source}" not in options.prompt:
        raise InputError("--prompt does not say where the text goes", "write {source} there")
    return options, training, peft_config
