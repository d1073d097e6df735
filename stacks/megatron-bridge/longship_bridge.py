"""What Megatron-Bridge's runner of recipes does not do: `metrics.jsonl`, and a start from a model.

The variable TRAINING_MODEL names the model whose weights the training starts from.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.training.callbacks import Callback
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.utils.flop_utils import num_floating_point_operations

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.megatron_data import save_whole_files  # noqa: E402
from training_run.metrics import MetricsFile, peak_flops  # noqa: E402

# Of a recipe's model, for they belong to the machine and the data.
KEPT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_dtype",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "seq_length",
)


class Metrics(Callback):
    """Write a line for each step, in the last rank, which alone knows the loss."""

    def __init__(self) -> None:
        self._line: dict[str, float | None] = {}

    def on_train_start(self, context: Any) -> None:
        """Open the file of the run."""
        self._writes = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
        if self._writes:
            self._file = MetricsFile(Path(context.state.cfg.checkpoint.save))

    def on_train_step_start(self, context: Any) -> None:
        """Write the line of the step before, which a validation may have completed."""
        self._write()
        self._rate = max(group["lr"] for group in context.optimizer.param_groups)
        self._start = time.perf_counter()

    def on_train_step_end(self, context: Any) -> None:
        """Collect the metrics of the step; Megatron counts it after this call."""
        if not self._writes:
            return
        config, losses = context.state.cfg, context.loss_dict
        loss = losses["lm loss"].item() if "lm loss" in losses else None  # waits for the GPU
        seconds = time.perf_counter() - self._start
        batch, gpus = config.train.global_batch_size, torch.distributed.get_world_size()
        peak = peak_flops(torch.cuda.get_device_name())
        flops = num_floating_point_operations(config, batch) / gpus / seconds
        self._step = context.state.train_state.step + 1
        self._line = {
            "time": time.time(),
            "loss": loss,
            "grad_norm": context.grad_norm,
            "learning_rate": self._rate,
            "tokens_per_s": batch * config.model.seq_length / seconds,
            "seconds": seconds,
            "mfu": flops / peak if peak else None,
        }

    def on_eval_end(self, context: Any) -> None:
        """Add the validation loss to the step's line."""
        if self._line and "lm loss" in (context.total_loss_dict or {}):
            self._line["validation_loss"] = float(context.total_loss_dict["lm loss"])

    def on_checkpoint_save(self, context: Any) -> None:
        """Write the line of the checkpoint's step, after which a signal may end the training."""
        self._write()

    def on_train_end(self, context: Any) -> None:
        """Write the last line."""
        self._write()

    def _write(self) -> None:
        line, self._line = self._line, {}
        if line:
            self._file.write(self._step, line)


def directory_of(model: str) -> str:
    """Return the directory of a model, also of one in the cache of the hub."""
    from huggingface_hub import snapshot_download

    return model if Path(model).is_dir() else snapshot_download(model)


def start_from(config: ConfigContainer, directory: str) -> None:
    """Let a recipe train the model of a directory, starting from its weights."""
    model = AutoBridge.from_hf_pretrained(directory).to_megatron_provider(load_weights=False)
    for name in KEPT:
        setattr(model, name, getattr(config.model, name))
    config.model = model
    config.checkpoint.pretrained_checkpoint = directory
    config.tokenizer.tokenizer_type = "HuggingFaceTokenizer"
    config.tokenizer.tokenizer_model = directory


def main() -> None:
    """Execute the runner with this stack's callback and model."""
    scripts = Path(os.environ["LONGSHIP_REPOSITORIES"], "Megatron-Bridge/scripts/training")
    sys.path.insert(0, str(scripts))
    import recipe_runner
    import run_recipe

    def load_recipe(*arguments: Any, **options: Any) -> ConfigContainer:
        config = recipe_runner.load_recipe(*arguments, **options)
        if model := os.environ.get("TRAINING_MODEL"):
            start_from(config, directory_of(model))
        return config

    for mode in recipe_runner.TRAIN_FUNCTIONS:
        train = recipe_runner._load_train_function(mode)
        recipe_runner.TRAIN_FUNCTIONS[mode] = partial(train, callbacks=[Metrics()])
    save_whole_files()
    run_recipe.load_recipe = load_recipe
    run_recipe.__file__ = sys.argv[0]  # a recipe that sets variables starts the script again
    run_recipe.main()
