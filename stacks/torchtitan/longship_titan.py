"""What this stack adds to TorchTitan 0.1.0, by its own extension points.

By itself that version reads two datasets that it knows by name, in one process, with tokenizers of
tiktoken, and knows no early end. ``--experimental.custom_args_module=longship_titan`` adds options
for JSON-lines files, and ``--experimental.custom_import=longship_titan`` lets every model that
trains on text use them, with tokenizers of Hugging Face, and end well before the time limit.
"""

import copy
import dataclasses
import operator
import signal
from collections.abc import Iterator
from typing import Any

import datasets
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.tokenizer import Tokenizer
from torchtitan.datasets.hf_datasets import (
    DATASETS,
    DatasetConfig,
    HuggingFaceDataset,
    build_hf_dataloader,
)
from torchtitan.protocols.train_spec import TrainSpec, apply_to_train_specs
from torchtitan.tools import utils
from torchtitan.tools.logging import logger
from transformers import AutoTokenizer

NAME = "json_lines"


@dataclasses.dataclass
class Training:
    """What is added to the options ``--training.*``."""

    dataset_files: str = ""
    """JSON-lines files of --training.dataset=json_lines, a line each"""

    dataset_text_field: str = "text"
    """The field of a sample that holds its text"""

    dataset_workers: int = 0
    """Processes per rank that read and tokenize"""


@dataclasses.dataclass
class JobConfig:
    """What TorchTitan merges into its own configuration."""

    training: Training = dataclasses.field(default_factory=Training)


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer as its folder or the hub has it.

    Parameters
    ----------
    path : str
        A folder, or a name on the Hugging Face hub.

    Raises
    ------
    ValueError
        If it has no token for the end of a document.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        if self._tokenizer.eos_token_id is None:
            raise ValueError(f"the tokenizer {path} has no eos_token, which ends a document")
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


def load_files(files: list[str]) -> datasets.Dataset:
    """Return the samples of JSON-lines files, from the cache where they were read before."""
    return datasets.load_dataset("json", data_files=files, split="train")


class JsonLinesDataset(HuggingFaceDataset):
    """The share of a rank, of which each of its workers takes a share in turn."""

    def __iter__(self) -> Iterator[Any]:
        """Yield sequences and their labels; in a worker, those of the worker's share."""
        worker = get_worker_info()
        if worker is not None:
            self._data = split_dataset_by_node(self._data, worker.id, worker.num_workers)
        if len(self._data) == 0:  # which would be read again and again for its first token
            raise ValueError("there are fewer samples than ranks and workers to read them")
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy: a worker sends it later, when it has read on."""
        return copy.deepcopy(super().state_dict())


class WorkersDataloader(ParallelAwareDataloader):
    """TorchTitan's loader, whose own way to be made takes no number of workers."""

    def __init__(
        self,
        dataset: JsonLinesDataset,
        *,
        dp_rank: int,
        dp_world_size: int,
        batch_size: int,
        workers: int,
    ) -> None:
        self.dp_rank, self.dp_world_size, self.batch_size = dp_rank, dp_world_size, batch_size
        self._rank_id = f"dp_rank_{dp_rank}"
        StatefulDataLoader.__init__(self, dataset, batch_size, num_workers=workers)


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
    files = training.dataset_files.splitlines()
    DATASETS[NAME] = DatasetConfig(
        path=f"{len(files)} files",  # only told
        loader=lambda path: load_files(files),
        text_processor=operator.itemgetter(training.dataset_text_field),
    )
    dataset = JsonLinesDataset(
        NAME, None, tokenizer, training.seq_len, dp_rank, dp_world_size, infinite
    )
    return WorkersDataloader(
        dataset,
        dp_rank=dp_rank,
        dp_world_size=dp_world_size,
        batch_size=training.local_batch_size,
        workers=training.dataset_workers,
    )


def build_tokenizer(job_config: Any) -> HuggingFaceTokenizer:
    """Build the tokenizer that ``--model.tokenizer_path`` names."""
    return HuggingFaceTokenizer(job_config.model.tokenizer_path)


class EndingMetrics(MetricsProcessor):
    """TorchTitan's metrics; where they are logged, the ranks also agree whether to end.

    The signal before the time limit finds the ranks in different steps. The trainer ends, with a
    checkpoint, at the step that its configuration names as the last.
    """

    asked_to_end = False

    def end(self, *_: Any) -> None:
        """Take note of the signal."""
        self.asked_to_end = True

    def log(self, step: int, *values: Any, **more: Any) -> None:
        """Log the values of a step, and make it the last if any rank was asked to end."""
        super().log(step, *values, **more)
        asked = torch.tensor(int(self.asked_to_end), device=utils.device_type)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        if asked.item() and step < self.job_config.training.steps:
            logger.info(f"Asked to end: step {step} is the last.")
            self.job_config.training.steps = step


def build_metrics(job_config: Any, parallel_dims: Any, model_args: Any = None) -> EndingMetrics:
    """Build the metrics, and listen to the signal from now on."""
    metrics = EndingMetrics(job_config, parallel_dims)
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
