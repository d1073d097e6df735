"""The command line: TRL's own options, and those of the model and the data."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from examples import check_method
from problem import InputError, first_line, is_local
from trl import DPOConfig, GRPOConfig, SFTConfig, TrlParser

if TYPE_CHECKING:
    from peft import LoraConfig

USAGE = (
    "fine_tune.py [--method METHOD] --model MODEL --train_dataset NAME:SPLIT [OPTION...]; "
    "--help shows those of the method"
)


def option(default: object, about: str, **more: object) -> object:
    """Describe an option of the command line."""
    if "(default: " in about:
        about += "%(default).0s"  # or argparse would append "(default: None)"
    return field(default=default, metadata={"help": about, **more})


@dataclass
class ModelArguments:
    """Options of the method, the model and the data."""

    model: str = field(metadata={"help": "directory of a model, or its name on the hub"})
    train_dataset: str = field(
        metadata={"help": "FILE.jsonl[:SPLIT], NAME:SPLIT or NAME:CONFIGURATION:SPLIT"}
    )
    eval_dataset: str | None = option(None, "dataset to evaluate with, in the same format")
    method: str = option("sft", "sft (on translations), dpo (on preferences) or grpo (on rewards)")
    rewards: str | None = option(
        None, "Python file with reward functions for grpo, whose names begin with reward"
    )


@dataclass
class TranslationArguments(ModelArguments):
    """Options of supervised fine-tuning: the pairs of texts, and the translation."""

    train_source_field: str = option("source", "field with the source text; dotted if nested")
    train_target_field: str = option("target", "field with the translation")
    eval_source_field: str | None = option(
        None, "field of eval_dataset (default: train_source_field)"
    )
    eval_target_field: str | None = option(
        None, "field of eval_dataset (default: train_target_field)"
    )
    prompt: str = option(
        "Translate:\n{source}\n\nTranslation:\n", "prompt; {source} is the source text"
    )
    max_new_tokens: int = option(256, "maximum number of tokens per translation")
    num_beams: int = option(1, "number of beams of the search; 1: greedy search")
    bleu_tokenizer: str = option(
        "13a", "sacrebleu's tokenizer for BLEU", choices=["13a", "char", "intl", "none", "zh"]
    )


@dataclass
class RunArguments:
    """Options of TRL's trainers that have other defaults, and that of the project in W&B."""

    run_name: str = option("fine-tuning", "name of the run's directory, and of the run in W&B")
    output_dir: str | None = option(
        None, "directory of the run (default: $LONGSHIP_CHECKPOINT_DIR/<run_name>)"
    )
    wandb_project: str | None = option(None, "record the run in this project of W&B")
    save_total_limit: int | None = option(2, "number of checkpoints to keep")
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
            # W&B shows the runs of a job chain as one group.
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
class TrainingArguments(RunArguments, SFTConfig):
    """Options of supervised fine-tuning."""


@dataclass
class PreferenceArguments(RunArguments, DPOConfig):
    """Options of direct preference optimization."""


@dataclass
class RewardArguments(RunArguments, GRPOConfig):
    """Options of group relative policy optimization."""


METHODS = {
    "sft": (TranslationArguments, TrainingArguments),
    "dpo": (ModelArguments, PreferenceArguments),
    "grpo": (ModelArguments, RewardArguments),
}


@dataclass
class LoraArguments:
    """TRL's options for LoRA, each of which turns it on unless ``--use_peft false`` is given."""

    use_peft: bool | None = option(
        None, "train LoRA adapters and leave the model's weights unchanged", nargs="?", const=True
    )
    lora_r: int | None = option(None, "rank of the adapters (default: 16)")
    lora_alpha: int | None = option(None, "scale of the adapters times their rank (default: 32)")
    lora_dropout: float | None = option(None, "dropout of the adapters' input (default: 0.05)")
    lora_target_modules: list[str] | None = option(
        None, "modules to adapt (default: all linear layers)"
    )

    def peft_config(self) -> LoraConfig | None:
        """Return peft's configuration; None to train the whole model."""
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


def find_method() -> str:
    """Return the method on the command line, which decides what other options there are."""
    parser = argparse.ArgumentParser(usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("--method", default="sft")
    method = parser.parse_known_args()[0].method
    check_method(method)
    return method


def parse_arguments(
    description: str,
) -> tuple[ModelArguments, RunArguments, LoraConfig | None]:
    """Read the command line."""
    method = find_method()
    parser = TrlParser(
        [*METHODS[method], LoraArguments],
        usage=USAGE,
        description=description,
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
        parser.error(f"no such option with --method {method}: {unknown[0]}")
    if options.method != method:
        raise InputError("--config sets the method", f"give --method {options.method} instead")
    if method == "sft" and "{source}" not in options.prompt:
        raise InputError("--prompt has no {source}", "write {source} in place of the source text")
    if method == "grpo":
        check_generation(training, bool(options.eval_dataset))
    if is_local(options.model):
        options.model = str(Path(options.model).expanduser())
    return options, training, peft_config


def check_generation(training: RewardArguments, evaluates: bool) -> None:
    """Report what TRL would find only once it generates."""
    if training.use_vllm and not importlib.util.find_spec("vllm"):
        raise InputError(
            "--use_vllm requires the package vllm, which this environment does not have",
            "leave it out to generate with transformers, or use an image that has vllm",
        )
    batch = training.per_device_eval_batch_size * training.world_size
    group = training.num_generations_eval or training.num_generations
    if evaluates and batch % group:
        raise InputError(
            f"a batch of the evaluation, {batch}, is not a multiple of {group} generations",
            "change --per_device_eval_batch_size or --num_generations_eval",
        )
