"""The trainer of each method, with its data."""

from __future__ import annotations

import threading
from typing import Any

import transformers
from arguments import ModelArguments, RewardArguments, RunArguments, TranslationArguments
from datasets import Dataset
from examples import has_messages, read_examples
from pairs import read_pairs
from problem import InputError
from reward_file import guarded, load_rewards
from translation import TranslationTrainer, with_prompts
from trl import DPOTrainer, GRPOTrainer


def read_data(
    options: ModelArguments,
    training: RunArguments,
    tokenizer: transformers.PreTrainedTokenizerBase,
) -> tuple[Dataset, Dataset | None]:
    """Read the training and the evaluation data, the first rank before the others."""
    with training.main_process_first(local=False):
        if options.method == "sft":
            is_chat = bool(tokenizer.chat_template or training.chat_template_path)
            return read_translations(options, is_chat)
        train = read_examples(options.train_dataset, options.method)
        evaluation = None
        if options.eval_dataset:
            evaluation = read_examples(options.eval_dataset, options.method)
    if has_messages(train) and not tokenizer.chat_template:
        raise InputError(
            f"the data are messages, and the model {options.model} has no chat template",
            "write the prompts and the answers as texts, or use a model for chat",
        )
    return train, evaluation


def read_translations(
    options: TranslationArguments, is_chat: bool
) -> tuple[Dataset, Dataset | None]:
    """Read pairs of texts, and add the prompts."""
    source, target = options.train_source_field, options.train_target_field
    pairs = read_pairs(options.train_dataset, source, target)
    train = with_prompts(pairs, options.prompt, is_chat)
    if not options.eval_dataset:
        return train, None
    source = options.eval_source_field or source
    target = options.eval_target_field or target
    pairs = read_pairs(options.eval_dataset, source, target)
    return train, with_prompts(pairs, options.prompt, is_chat)


def make_trainer(
    options: ModelArguments,
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    training: RunArguments,
    data: tuple[Dataset, Dataset | None],
    stop: threading.Event,
    **more: Any,
) -> transformers.Trainer:
    """Return TRL's trainer of the method.

    Parameters
    ----------
    stop : threading.Event
        Set by a signal that asks the process to end.
    **more
        Callbacks and configuration of peft, as all trainers take them.
    """
    train, evaluation = data
    more = {"args": training, "train_dataset": train, "processing_class": tokenizer, **more}
    if options.method == "dpo":
        return DPOTrainer(model, eval_dataset=evaluation, **more)
    if options.method == "grpo":
        rewards = [guarded(each) for each in load_rewards(options.rewards)]
        check_number(train, training)
        return GRPOTrainer(model, rewards, eval_dataset=evaluation, **more)
    training.model_init_kwargs = None  # the other trainers load their reference model with them
    return TranslationTrainer(
        model,
        eval_pairs=evaluation,
        generation={
            "do_sample": False,
            "num_beams": options.num_beams,
            "max_new_tokens": options.max_new_tokens,
            "pad_token_id": tokenizer.pad_token_id,
        },
        bleu_tokenizer=options.bleu_tokenizer,
        stop=stop,
        **more,
    )


def check_number(prompts: Dataset, training: RewardArguments) -> None:
    """Report too few prompts: the trainer uses whole batches only, and would take no step."""
    needed = training.generation_batch_size // training.num_generations
    if len(prompts) < needed:
        raise InputError(
            f"a step needs {needed} prompts, but the training data have {len(prompts)}",
            "give more prompts, a smaller batch or a larger --num_generations",
        )
