"""Pretrain with OLMo-core, in the form of its official scripts.

    torchrun stacks/olmo-core/train.py --save-folder=DIR --tokenizer=DIR --data=FILE [OVERRIDE...]

The configuration is built here, and OLMo-core's own `main` trains. `--dry-run` shows the
configuration; every value of it can be overridden: `--train_module.optim.weight_decay=0.05`.
"""

import argparse
from glob import glob
from typing import Any

from olmo_core import script_utils
from olmo_core.config import DType
from olmo_core.data import (
    NumpyDataLoaderConfig,
    NumpyDatasetDType,
    NumpyFSLDatasetConfig,
    NumpyPaddedFSLDatasetConfig,
    TokenizerConfig,
)
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.hf.tokenizer import load_tokenizer_losslessly
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig, CosWithWarmup, OptimGroupOverride
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.callbacks import (
    CheckpointerCallback,
    ConfigSaverCallback,
    LMEvaluatorCallbackConfig,
    WandBCallback,
)
from olmo_core.train.train_module import (
    TransformerDataParallelConfig,
    TransformerTrainModuleConfig,
)


def find_files(patterns: str) -> list[str]:
    """Return the files of patterns, one per line; OLMo-core reports what does not exist."""
    lines = patterns.splitlines()
    return [file for each in lines for file in sorted(glob(each)) or [each]]


def parser() -> argparse.ArgumentParser:
    """Return the parser of OLMo-core's scripts, with the options of this one."""
    options = script_utils.get_cli_parser()
    add = options.add_argument
    add("--model", default="olmo2_190M", help="classmethod of TransformerConfig")
    add("--attention", default="torch", help="attention backend: torch, flash_2, ...")
    add("--tokenizer", required=True, help="directory in Hugging Face's format, or name on the hub")
    add("--data", required=True, type=find_files, help="files of token IDs, one per line")
    add("--validation-data", default=[], type=find_files, help="files to validate on")
    options.set_defaults(sequence_length=4096)
    return options


def read_tokenizer(name: str) -> TokenizerConfig:
    """Read the tokenizer as the export to Hugging Face's format does."""
    tokenizer, _, _ = load_tokenizer_losslessly(name)
    end = tokenizer.eos_token_id
    padding = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    # Without a start token: preprocess_data.py writes none.
    return TokenizerConfig(len(tokenizer), end, padding, identifier=name)


def build_config(
    options: argparse.Namespace, overrides: list[str]
) -> script_utils.ExperimentConfig:
    """Return the configuration of a run."""
    tokenizer = read_tokenizer(options.tokenizer)
    length = options.sequence_length
    # Megatron's writer, and so preprocess_data.py, has 16-bit IDs below this size.
    width = NumpyDatasetDType.uint16 if tokenizer.vocab_size < 65500 else NumpyDatasetDType.uint32
    tokens = {
        "tokenizer": tokenizer,
        "dtype": width,
        "sequence_length": length,
        "work_dir": options.work_dir,
    }
    callbacks = {
        # As in the official scripts. Asynchronous, it records its duration in a thread: if the
        # metrics of the ranks then differ, they wait for each other at the end of a run.
        "checkpointer": CheckpointerCallback(save_async=False),
        "config_saver": ConfigSaverCallback(),
        "lm_evaluator": LMEvaluatorCallbackConfig(
            eval_dataset=NumpyPaddedFSLDatasetConfig(
                **tokens,
                paths=options.validation_data,
                metadata=[{"label": "validation"}] * len(options.validation_data),
            ),
            eval_duration=Duration.steps(50),
            enabled=bool(options.validation_data),
        ),
        "wandb": WandBCallback(name=options.name, cancel_tags=None, enabled=False),
    }
    return script_utils.ExperimentConfig(
        model=getattr(TransformerConfig, options.model)(
            vocab_size=tokenizer.padded_vocab_size(), attn_backend=options.attention
        ),
        dataset=NumpyFSLDatasetConfig(**tokens, paths=options.data),
        data_loader=NumpyDataLoaderConfig(global_batch_size=length, seed=0, num_workers=4),
        train_module=TransformerTrainModuleConfig(
            rank_microbatch_size=length,
            max_sequence_length=length,
            optim=AdamWConfig(
                lr=4e-4,
                weight_decay=0.1,
                betas=(0.9, 0.95),
                group_overrides=[OptimGroupOverride(["embeddings.weight"], {"weight_decay": 0.0})],
            ),
            scheduler=CosWithWarmup(warmup=10),
            max_grad_norm=1.0,
            z_loss_multiplier=1e-5,
            compile_model=True,
            dp_config=TransformerDataParallelConfig(
                name=DataParallelType.fsdp,
                param_dtype=DType.bfloat16,
                reduce_dtype=DType.float32,
            ),
        ),
        trainer=TrainerConfig(
            save_folder=options.save_folder,
            save_overwrite=True,
            max_duration=Duration.steps(100),
            metrics_collect_interval=1,
            callbacks=callbacks,
        ),
    ).merge(overrides)


def join_ranks(**options: Any) -> None:
    """Join the ranks also on CPUs, where OLMo-core's main would let each of them train alone."""
    backend = options.pop("backend") or "gloo"
    prepare_training_environment(backend=backend, **options)


if __name__ == "__main__":
    script_utils.prepare_training_environment = join_ranks
    script_utils.main(build_config, parser())
