"""What this stack adds to TorchTitan 0.1.0, by its own extension points.

That version tokenizes while it trains, with tiktoken's tokenizers alone, and knows neither
validation nor an early end. ``--experimental.custom_args_module=longship_titan`` adds options for
tokens in Megatron's format, and ``--experimental.custom_import=longship_titan`` lets every model
that trains on text use them, validate, and end well before the time limit.
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
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.tokenizer import Tokenizer
from torchtitan.datasets.hf_datasets import build_hf_dataloader
from torchtitan.distributed import utils as dist_utils
from torchtitan.protocols.train_spec import TrainSpec, apply_to_train_specs, get_train_spec
from torchtitan.tools import utils
from torchtitan.tools.logging import logger
from transformers import AutoTokenizer, PreTrainedTokenizerFast

NAME = "megatron"
END_OF_TEXT = "<|endoftext|>"  # of a tokenizer that preprocess_data.py trained


@dataclasses.dataclass
class Training:
    """What is added to the options ``--training.*``."""

    dataset_files: str = ""
    """Datasets of --training.dataset=megatron, without .bin and .idx, a line each"""


@dataclasses.dataclass
class Validation:
    """The options ``--validation.*``, named as in later versions of TorchTitan."""

    dataset_files: str = ""
    """Datasets to validate on, without .bin and .idx, a line each; none: no validation"""

    freq: int = 100
    """Steps from validation to validation; the last step is validated too"""

    steps: int = 50
    """Batches of each data-parallel rank; -1 is all"""


@dataclasses.dataclass
class JobConfig:
    """What TorchTitan merges into its own configuration."""

    training: Training = dataclasses.field(default_factory=Training)
    validation: Validation = dataclasses.field(default_factory=Validation)


def fail(message: str, hint: str) -> NoReturn:
    """End with one line that says what is wrong and one that says what to do."""
    sys.exit(f"error: {message}\nhint: {hint}")


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer as its directory or the hub has it, or the file that preprocess_data.py trained.

    Training asks it for the number of tokens alone; datasets of TorchTitan's own are tokenized.
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
        """Return the ids of a text; the start's only where the tokenizer has a token for it."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        start = [self.bos_id] if bos and self.bos_id is not None else []
        return [*start, *ids, *([self.eos_id] if eos else [])]

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids."""
        return self._tokenizer.decode(ids)


def open_tokens(prefix: str, vocab_size: int) -> np.ndarray:
    """Map the tokens of a dataset in Megatron's format, all documents in a row, into memory.

    Parameters
    ----------
    prefix : str
        Path of the .bin and the .idx file, without the ending.
    vocab_size : int
        Number of tokens of the model, which must have been enough for the data.
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
        has = json.loads(record.read_text("utf-8"))["result"]["vocab_size"]
        if has > vocab_size:  # a GPU would end with an assertion that names nothing
            fail(f"{prefix} has {has} kinds of tokens, and training.tokenizer {vocab_size}", hint)
    return tokens


class TokenDataset(IterableDataset):
    """The sequences of a rank: of all ranks' in turn, in the order of the files.

    Parameters
    ----------
    files : list of numpy.ndarray
        The tokens of each dataset.
    length : int
        Tokens of a sequence.
    rank, world_size : int
        Which share, and of how many; all are of the same size.
    infinite : bool
        Begin again at the end.
    """

    def __init__(
        self, files: list[np.ndarray], length: int, rank: int, world_size: int, infinite: bool
    ) -> None:
        self.files, self.length, self.infinite = files, length, infinite
        self.rank, self.world_size = rank, world_size
        # A label is the token behind, so that the last token of a file begins no sequence.
        self.ends = np.cumsum([max(len(tokens) - 1, 0) // length for tokens in files])
        self.share = int(self.ends[-1]) // world_size
        self.done = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield sequences and their labels."""
        while self.done < self.share or self.infinite:
            if self.done == self.share:
                logger.warning("All data has been read; it is read again from its beginning.")
                self.done = 0
            number = self.done * self.world_size + self.rank
            self.done += 1
            file = int(np.searchsorted(self.ends, number, side="right"))
            first = (number - (self.ends[file - 1] if file else 0)) * self.length
            tokens = self.files[file][first : first + self.length + 1].astype(np.int64)
            yield {"input": torch.from_numpy(tokens[:-1])}, torch.from_numpy(tokens[1:])

    def state_dict(self) -> dict[str, Any]:
        """Return how far it was read."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.done = state["done"]


def build_dataset(
    job_config: Any, prefixes: str, rank: int, world_size: int, vocab_size: int, infinite: bool
) -> TokenDataset:
    """Open the datasets that are named on a line each; every rank needs a whole batch of them."""
    files = [open_tokens(prefix, vocab_size) for prefix in prefixes.splitlines()]
    dataset = TokenDataset(files, job_config.training.seq_len, rank, world_size, infinite)
    if dataset.share < job_config.training.local_batch_size:
        fail(
            f"{prefixes.splitlines()[0]}: {dataset.ends[-1]} sequences are not a batch for each of "
            f"{world_size} data-parallel ranks",
            "make more data, or lower sequence_length or local_batch_size in [training]",
        )
    return dataset


def build_dataloader(
    dp_world_size: int,
    dp_rank: int,
    tokenizer: Tokenizer,
    job_config: Any,
    infinite: bool = True,
) -> ParallelAwareDataloader:
    """Build the loader of one data-parallel rank, as TorchTitan's trainer asks for it."""
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
    """Mean loss on the validation data, the same batches each time.

    TorchTitan has a validator only in versions that this image's PyTorch cannot import.
    """

    def __init__(self, job_config: Any, parallel_dims: Any, vocab_size: int) -> None:
        self.settings, dims = job_config.validation, parallel_dims
        if dims.pp_enabled or dims.cp_enabled:
            fail(
                "validation works neither with pipeline nor with context parallelism",
                "validation_data = [] in [training] of configuration.toml",
            )
        # Ranks that share layers follow each other, and read the same data.
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
        """Tell whether a step is validated."""
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
        for module in model.modules():  # or a checkpoint would find the weights in one piece
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


class Metrics(MetricsProcessor):
    """TorchTitan's metrics, and what else belongs to the end of a step.

    Some steps are validated. Where a step is logged, the ranks also agree whether to end: the
    signal before the time limit finds them in different steps. The trainer ends, with a
    checkpoint, at the step that its configuration names as the last.
    """

    asked_to_end = False
    validator: Validator | None = None

    def end(self, *_: Any) -> None:
        """Take note of the signal."""
        self.asked_to_end = True

    def should_log(self, step: int) -> bool:
        """Tell whether a step is logged: all those that are validated are."""
        return super().should_log(step) or self._is_validated(step)

    def log(self, step: int, *values: Any, **more: Any) -> None:
        """Log the values of a step, and make it the last if any rank was asked to end."""
        super().log(step, *values, **more)
        asked = torch.tensor(int(self.asked_to_end), device=utils.device_type)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        if asked.item() and step < self.job_config.training.steps:
            logger.info(f"Asked to end: step {step} is the last.")
            self.job_config.training.steps = step
        elif self._is_validated(step):
            self._validate(step)

    def _is_validated(self, step: int) -> bool:
        last = self.job_config.training.steps
        return self.validator is not None and self.validator.is_due(step, last)

    def _validate(self, step: int) -> None:
        (model,) = self.optimizers.model_parts
        loss = self.validator.loss(model)
        self.logger.log({"validation_metrics/global_avg_loss": loss}, step)
        logger.info(f"validate step: {step:2}  loss: {loss:7.4f}")
        self.time_last_log = time.perf_counter()  # it is no part of the next step's throughput
        self.device_memory_monitor.reset_peak_stats()


def build_metrics(job_config: Any, parallel_dims: Any, model_args: Any = None) -> Metrics:
    """Build the metrics, and listen to the signal from now on."""
    metrics = Metrics(job_config, parallel_dims)
    if job_config.validation.dataset_files:
        metrics.validator = Validator(job_config, parallel_dims, model_args.vocab_size)
    signal.signal(signal.SIGUSR1, metrics.end)
    return metrics


def _use_them(spec: TrainSpec) -> TrainSpec:
    if spec.build_dataloader_fn is not build_hf_dataloader:  # it trains on images, say
        return spec
    return dataclasses.replace(
        spec,
        build_dataloader_fn=build_dataloader,
        build_tokenizer_fn=build_tokenizer,
        build_metrics_processor_fn=build_metrics,
    )


apply_to_train_specs(_use_them)
