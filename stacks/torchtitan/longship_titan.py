"""Additions to TorchTitan 0.1.0, by its own extension points.

That version tokenizes while it trains, only with tiktoken's tokenizers, and can neither validate
nor stop early. ``--experimental.custom_args_module=longship_titan`` adds options for tokens in
Megatron's format; ``--experimental.custom_import=longship_titan`` lets every model that trains on
text use these tokens, validate, and write a checkpoint before the time limit.
"""

import dataclasses
import itertools
import json
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.metrics import BaseLogger, MetricsProcessor
from torchtitan.components.tokenizer import Tokenizer
from torchtitan.datasets.hf_datasets import build_hf_dataloader
from torchtitan.distributed import utils as dist_utils
from torchtitan.protocols.train_spec import TrainSpec, apply_to_train_specs, get_train_spec
from torchtitan.tools import utils
from torchtitan.tools.logging import logger
from transformers import AutoTokenizer, PreTrainedTokenizerFast

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.metrics import MetricsFile, peak_flops  # noqa: E402

NAME = "megatron"
END_OF_TEXT = "<|endoftext|>"  # of a tokenizer that preprocess_data.py trained


@dataclasses.dataclass
class Training:
    """Additional options ``--training.*``."""

    dataset_files: str = ""
    """Datasets for --training.dataset=megatron, one per line, without .bin and .idx"""


@dataclasses.dataclass
class Validation:
    """The options ``--validation.*``, named as in later versions of TorchTitan."""

    dataset_files: str = ""
    """Datasets to validate on, one per line, without .bin and .idx; empty: no validation"""

    freq: int = 100
    """Steps between validations; the last step is validated too"""

    steps: int = 50
    """Batches per data-parallel rank; -1: all"""


@dataclasses.dataclass
class JobConfig:
    """Options that TorchTitan merges into its own configuration."""

    training: Training = dataclasses.field(default_factory=Training)
    validation: Validation = dataclasses.field(default_factory=Validation)


def fail(message: str, hint: str) -> NoReturn:
    """Exit with two lines: what is wrong, and what to do."""
    sys.exit(f"error: {message}\nhint: {hint}")


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer from a directory, the hub, or the file that preprocess_data.py trained.

    Megatron's data need only its number of tokens; TorchTitan tokenizes its own datasets with it.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        if path.endswith(".json"):
            self._tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, eos_token=END_OF_TEXT)
        else:
            self._tokenizer = AutoTokenizer.from_pretrained(path)
        self.eos_id = self._tokenizer.eos_token_id
        self.bos_id = self._tokenizer.bos_token_id
        self._n_words = len(self._tokenizer)

    def encode(self, text: str, *, bos: bool, eos: bool) -> list[int]:
        """Return the ids of a text, with a start token only if the tokenizer has one."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        start = [self.bos_id] if bos and self.bos_id is not None else []
        return [*start, *ids, *([self.eos_id] if eos else [])]

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids."""
        return self._tokenizer.decode(ids)


def open_tokens(prefix: str, vocab_size: int) -> np.ndarray:
    """Map the tokens of a dataset in Megatron's format into memory, all documents in a row.

    Parameters
    ----------
    prefix : str
        Path of the .bin and the .idx file, without the suffix.
    vocab_size : int
        Vocabulary size of the model; that of the data must not be larger.
    """
    hint = "make the data with this tokenizer: preprocess_data_*.sbatch"
    header = struct.Struct("<9sQB")  # magic, version, type of the ids
    try:
        with Path(f"{prefix}.idx").open("rb") as index:
            magic, _, type_code = header.unpack(index.read(header.size))
        tokens = np.memmap(f"{prefix}.bin", {4: np.int32, 8: np.uint16}[type_code], mode="r")
    except (OSError, struct.error, KeyError, ValueError) as error:
        fail(f"cannot read {prefix}.idx and .bin: {error}", hint)
    if magic != b"MMIDIDX\0\0":
        fail(f"{prefix}.idx is not an index in Megatron's format", hint)
    record = Path(f"{prefix}.record.json")  # which preprocess_data.py writes
    if record.exists():
        found = json.loads(record.read_text("utf-8"))["result"]["vocab_size"]
        if found > vocab_size:  # the GPU's assertion would not name the reason
            message = f"the vocabulary of {prefix} has {found} tokens"
            fail(f"{message}, but training.tokenizer has {vocab_size}", hint)
    return tokens


class TokenDataset(IterableDataset):
    """The sequences of a rank: every world_size-th one, in the order of the files.

    Parameters
    ----------
    files : list of numpy.ndarray
        The tokens of each dataset.
    length : int
        Tokens per sequence.
    rank, world_size : int
        Index and number of the shares, which all have the same size.
    infinite : bool
        Start again at the end.
    """

    def __init__(
        self, files: list[np.ndarray], length: int, rank: int, world_size: int, infinite: bool
    ) -> None:
        self.files, self.length, self.infinite = files, length, infinite
        self.rank, self.world_size = rank, world_size
        # The label of a token is the next one, so the last token of a file has none.
        self.ends = np.cumsum([max(len(tokens) - 1, 0) // length for tokens in files])
        self.share = int(self.ends[-1]) // world_size
        self.done = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield sequences and their labels."""
        while self.done < self.share or self.infinite:
            if self.done == self.share:
                logger.warning("Reached the end of the data; starting again from the beginning.")
                self.done = 0
            number = self.done * self.world_size + self.rank
            self.done += 1
            file = int(np.searchsorted(self.ends, number, side="right"))
            first = (number - (self.ends[file - 1] if file else 0)) * self.length
            tokens = self.files[file][first : first + self.length + 1].astype(np.int64)
            yield {"input": torch.from_numpy(tokens[:-1])}, torch.from_numpy(tokens[1:])

    def state_dict(self) -> dict[str, Any]:
        """Return the number of sequences read."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""
        self.done = state["done"]


def build_dataset(
    job_config: Any, prefixes: str, rank: int, world_size: int, vocab_size: int, infinite: bool
) -> TokenDataset:
    """Open the datasets, one per line of `prefixes`; every rank needs at least one batch."""
    files = [open_tokens(prefix, vocab_size) for prefix in prefixes.splitlines()]
    dataset = TokenDataset(files, job_config.training.seq_len, rank, world_size, infinite)
    if dataset.share < job_config.training.local_batch_size:
        fail(
            f"{prefixes.splitlines()[0]}: {dataset.ends[-1]} sequences do not fill a batch on each "
            f"of {world_size} data-parallel ranks",
            "make more data, or reduce sequence_length or local_batch_size in [training]",
        )
    return dataset


def build_dataloader(
    dp_world_size: int,
    dp_rank: int,
    tokenizer: Tokenizer,
    job_config: Any,
    infinite: bool = True,
) -> ParallelAwareDataloader:
    """Build the data loader of one data-parallel rank, with the signature of TorchTitan's own."""
    training = job_config.training
    if training.dataset != NAME:
        return build_hf_dataloader(dp_world_size, dp_rank, tokenizer, job_config, infinite)
    dataset = build_dataset(
        job_config, training.dataset_files, dp_rank, dp_world_size, tokenizer.n_words, infinite
    )
    return ParallelAwareDataloader(dataset, dp_rank, dp_world_size, training.local_batch_size)


def build_tokenizer(job_config: Any) -> HuggingFaceTokenizer:
    """Build the tokenizer that ``--model.tokenizer_path`` names."""
    return HuggingFaceTokenizer(job_config.model.tokenizer_path)


class Validator:
    """Mean loss on the same batches of the validation data each time.

    TorchTitan has its own validator only in versions that need a newer PyTorch than the image's.
    """

    def __init__(self, job_config: Any, parallel_dims: Any, vocab_size: int) -> None:
        self.settings, dims = job_config.validation, parallel_dims
        if dims.pp_enabled or dims.cp_enabled:
            fail(
                "validation cannot be combined with pipeline or context parallelism",
                "set validation_data = [] in [training] of configuration.toml",
            )
        # Tensor-parallel ranks are consecutive, and read the same data.
        rank = torch.distributed.get_rank() // dims.tp
        self.dataset = build_dataset(
            job_config,
            self.settings.dataset_files,
            rank,
            dims.dp_replicate * dims.dp_shard,
            vocab_size,
            infinite=False,
        )
        self.batch_size = job_config.training.local_batch_size
        self.loss_fn = get_train_spec(job_config.model.name).build_loss_fn(job_config)
        self.context = dist_utils.get_train_context(dims.loss_parallel_enabled, False)
        self.amp = dist_utils.maybe_enable_amp(
            dims, job_config.training.mixed_precision_param, utils.device_type
        )

    def is_due(self, step: int, last: int) -> bool:
        """Tell whether to validate after a step."""
        return step % self.settings.freq == 0 or step == last

    @torch.no_grad()
    def loss(self, model: torch.nn.Module) -> float:
        """Return the mean loss of all ranks."""
        self.dataset.done = 0
        batches = self.dataset.share // self.batch_size
        if self.settings.steps >= 0:
            batches = min(batches, self.settings.steps)
        loader = torch.utils.data.DataLoader(self.dataset, self.batch_size)
        model.eval()
        losses = [self._loss(model, *batch) for batch in itertools.islice(loader, batches)]
        model.train()
        for module in model.modules():  # or a checkpoint would find unsharded weights
            if isinstance(module, FSDPModule):
                module.reshard()
        mean = torch.stack(losses).mean()
        torch.distributed.all_reduce(mean)
        return mean.item() / torch.distributed.get_world_size()

    def _loss(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], labels: torch.Tensor
    ) -> torch.Tensor:
        with self.context(), self.amp:
            prediction = model(inputs["input"].to(utils.device_type))
            loss = self.loss_fn(prediction, labels.to(utils.device_type))
        return loss.full_tensor() if isinstance(loss, DTensor) else loss


class Collector(BaseLogger):
    """TorchTitan's logger, which also keeps what it logged of a step."""

    def __init__(self, logger: BaseLogger) -> None:
        self.logger = logger
        self.logged: dict[str, Any] = {}

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Log the metrics of a step, or of its validation."""
        self.logger.log(metrics, step)
        self.logged.update(metrics)

    def close(self) -> None:
        """Close the logger."""
        self.logger.close()


class Metrics(MetricsProcessor):
    """TorchTitan's metrics, extended: they also validate, and stop the run on a signal.

    The rank that logs for TensorBoard also writes `metrics.jsonl`, in the form of all stacks, but
    without the gradient norm, which TorchTitan 0.1.0 does not report.

    After each logged step the ranks agree whether to stop, because the signal before the time
    limit reaches them in different steps. The trainer then ends, with a checkpoint, because its
    configuration names this step as the last.
    """

    stop = False
    validator: Validator | None = None
    next_rate: float | None = None

    def __init__(self, job_config: Any, parallel_dims: Any) -> None:
        super().__init__(job_config, parallel_dims)
        is_only_one = not job_config.metrics.save_for_all_ranks or torch.distributed.get_rank() == 0
        self.is_recorded = is_only_one and type(self.logger) is not BaseLogger
        self.logger = Collector(self.logger)
        self.file = MetricsFile(Path(job_config.job.dump_folder))

    def end(self, *_: Any) -> None:
        """Remember the signal."""
        self.stop = True

    def should_log(self, step: int) -> bool:
        """Tell whether to log a step; every validated step is logged."""
        return super().should_log(step) or self._is_validated(step)

    def log(self, step: int, *values: Any, **more: Any) -> None:
        """Log a step, and make it the last one if any rank has received the signal."""
        super().log(step, *values, **more)
        stop = torch.tensor(int(self.stop), device=utils.device_type)
        torch.distributed.all_reduce(stop, torch.distributed.ReduceOp.MAX)
        if stop.item() and step < self.job_config.training.steps:
            logger.info(f"Stopped by a signal: step {step} is the last.")
            self.job_config.training.steps = step
        elif self._is_validated(step):
            self._validate(step)
        if self.is_recorded:
            self.file.write(step, self._line())
        self.logger.logged.clear()

    def _line(self) -> dict[str, float | None]:
        logged = self.logger.logged
        speed = logged["throughput(tps)"]  # of a device
        peak = peak_flops(self.device_memory_monitor.device_name)
        # The optimizer has the rate of the next step already.
        rate, self.next_rate = self.next_rate, self.optimizers.optimizers[0].param_groups[0]["lr"]
        return {
            "loss": logged["loss_metrics/global_avg_loss"],
            "learning_rate": rate if self.job_config.metrics.log_freq == 1 else None,
            "tokens_per_s": speed * torch.distributed.get_world_size(),
            "seconds": logged["time_metrics/end_to_end(s)"],
            "mfu": self.num_flops_per_token * speed / peak if peak else None,
            "validation_loss": logged.get("validation_metrics/global_avg_loss"),
        }

    def _is_validated(self, step: int) -> bool:
        last = self.job_config.training.steps
        return self.validator is not None and self.validator.is_due(step, last)

    def _validate(self, step: int) -> None:
        (model,) = self.optimizers.model_parts
        loss = self.validator.loss(model)
        self.logger.log({"validation_metrics/global_avg_loss": loss}, step)
        logger.info(f"validate step: {step:2}  loss: {loss:7.4f}")
        self.time_last_log = time.perf_counter()  # not a part of the next step's throughput
        self.device_memory_monitor.reset_peak_stats()


def build_metrics(job_config: Any, parallel_dims: Any, model_args: Any = None) -> Metrics:
    """Build the metrics, and handle the signal from now on."""
    metrics = Metrics(job_config, parallel_dims)
    if job_config.validation.dataset_files:
        metrics.validator = Validator(job_config, parallel_dims, model_args.vocab_size)
    signal.signal(signal.SIGUSR1, metrics.end)
    return metrics


def _extend(spec: TrainSpec) -> TrainSpec:
    if spec.build_dataloader_fn is not build_hf_dataloader:  # a model of images, for example
        return spec
    return dataclasses.replace(
        spec,
        build_dataloader_fn=build_dataloader,
        build_tokenizer_fn=build_tokenizer,
        build_metrics_processor_fn=build_metrics,
    )


apply_to_train_specs(_extend)
