"""TorchTitan's configuration of a model, with components for this repository's data and jobs.

TorchTitan 0.3.0 starts with a configuration that a function returns, and that options change:
``--module=longship_titan --config=configuration``. This one is TorchTitan's own for the model, with
a data loader for tokens in Megatron's format, with metrics in the form of all stacks, and with a
trainer that writes a checkpoint before the time limit.
"""

import importlib
import json
import os
import re
import runpy
import signal
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torchtitan import trainer
from torchtitan.components import metrics, validate
from torchtitan.components.dataloader import BaseDataLoader, ParallelAwareDataloader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger
from torchtitan.tools.utils import round_up
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.metrics import MetricsFile, peak_flops  # noqa: E402

END_OF_TEXT = "<|endoftext|>"  # of a tokenizer that preprocess_data.py trained


def fail(message: str, hint: str) -> NoReturn:
    """Exit with two lines: what is wrong, and what to do."""
    sys.exit(f"error: {message}\nhint: {hint}")


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a directory, the hub, or the file that preprocess_data.py trained."""
    if path.endswith(".json"):
        return PreTrainedTokenizerFast(tokenizer_file=path, eos_token=END_OF_TEXT)
    return AutoTokenizer.from_pretrained(path)


class HuggingFaceTokenizer(BaseTokenizer):
    """A tokenizer of the Hugging Face libraries.

    Megatron's data need only its size and its end token.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """The options ``--tokenizer.*``."""

        path: str = ""
        """A directory, a name on the hub, or a tokenizer.json"""

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()
        self._tokenizer = load_tokenizer(config.path)
        self.eos_id = self._tokenizer.eos_token_id

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return the ids of a text."""
        return self._tokenizer.encode(text, verbose=False)

    def decode(self, ids: list[int], **_: Any) -> str:
        """Return the text of some ids."""
        return self._tokenizer.decode(ids)

    def get_vocab_size(self) -> int:
        """Return the number of tokens."""
        return len(self._tokenizer)


def open_tokens(prefix: str, vocab_size: int) -> np.ndarray:
    """Map the tokens of a dataset in Megatron's format into memory, all documents in a row.

    Parameters
    ----------
    prefix : str
        Path of the .bin and the .idx file, without the suffix.
    vocab_size : int
        Vocabulary size of the tokenizer; that of the data must not be larger.
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

    A sequence goes over the ends of documents; its tokens attend only to those of their document.

    Parameters
    ----------
    files : list of numpy.ndarray
        The tokens of each dataset.
    length : int
        Tokens per sequence.
    end : int
        Token that ends a document; the model does not learn what follows it.
    rank, world_size : int
        Index and number of the shares, which all have the same size.
    infinite : bool
        Start again at the end.
    """

    def __init__(
        self,
        files: list[np.ndarray],
        length: int,
        end: int,
        rank: int,
        world_size: int,
        infinite: bool,
    ) -> None:
        self.files, self.length, self.end, self.infinite = files, length, end, infinite
        self.rank, self.world_size = rank, world_size
        # The label of a token is the next one, so the last token of a file has none.
        self.ends = np.cumsum([max(len(tokens) - 1, 0) // length for tokens in files])
        self.share = int(self.ends[-1]) // world_size
        self.done = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield sequences with the places of their tokens in the documents, and their labels."""
        while self.done < self.share or self.infinite:
            if self.done == self.share:
                logger.warning("Reached the end of the data; starting again from the beginning.")
                self.done = 0
            number = self.done * self.world_size + self.rank
            self.done += 1
            file = int(np.searchsorted(self.ends, number, side="right"))
            first = (number - (self.ends[file - 1] if file else 0)) * self.length
            tokens = self.files[file][first : first + self.length + 1].astype(np.int64)
            is_end = tokens[:-1] == self.end
            labels = np.where(is_end, IGNORE_INDEX, tokens[1:])
            places = np.arange(self.length)
            begins = np.where(np.roll(is_end, 1), places, 0)  # the first one is 0 in any case
            places = places - np.maximum.accumulate(begins)
            inputs = {"input": tokens[:-1], "positions": places}
            inputs = {name: torch.from_numpy(each) for name, each in inputs.items()}
            yield inputs, torch.from_numpy(labels)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of sequences read."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""
        self.done = state["done"]


class TokenLoader(ParallelAwareDataloader):
    """The data loader of one data-parallel rank; every rank needs at least one batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """The options ``--dataloader.*`` and ``--validator.dataloader.*``."""

        files: str = ""
        """Datasets in Megatron's format, one per line, without .bin and .idx"""

        infinite: bool = True
        """Start again at the end of the data"""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: BaseTokenizer,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        prefixes = config.files.splitlines()
        files = [open_tokens(prefix, tokenizer.get_vocab_size()) for prefix in prefixes]
        dataset = TokenDataset(
            files, seq_len, tokenizer.eos_id, dp_rank, dp_world_size, config.infinite
        )
        if dataset.share < local_batch_size:
            fail(
                f"{prefixes[0]}: {dataset.ends[-1]} sequences do not fill a batch on each "
                f"of {dp_world_size} data-parallel ranks",
                "make more data, or reduce sequence_length or local_batch_size in [training]",
            )
        super().__init__(
            dataset, dp_rank, dp_world_size, batch_size=local_batch_size, drop_last=True
        )


class Lines(metrics.BaseLogger):
    """Writes what is logged of each step as a line of `metrics.jsonl`.

    A validation is logged after its step, so a line is complete when the next step is logged.
    """

    def __init__(self, directory: Path, processor: metrics.MetricsProcessor) -> None:
        self.file, self.processor = MetricsFile(directory), processor
        self.step, self.logged = 0, {}

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Remember the metrics of a step, or of its validation."""
        if step != self.step:
            self.write()
        self.step = step
        self.logged.update(metrics)

    def write(self) -> None:
        """Write the line of the last step."""
        logged, self.logged = self.logged, {}
        if "throughput(tps)" not in logged:
            return
        speed = logged["throughput(tps)"]  # of a device
        peak = peak_flops(self.processor.device_memory_monitor.device_name)
        rates = [value for name, value in logged.items() if name.startswith("lr/")]
        line = {
            "loss": logged["loss_metrics/global_avg_loss"],
            "grad_norm": logged["grad_norm"],
            "learning_rate": rates[0],
            "tokens_per_s": speed * torch.distributed.get_world_size(),
            "seconds": logged["time_metrics/end_to_end(s)"],
            "mfu": self.processor.num_flops_per_token * speed / peak if peak else None,
            "validation_loss": logged.get("validation_metrics/loss"),
        }
        self.file.write(self.step, line)

    def close(self) -> None:
        """Write the last line."""
        self.write()
        self.file.close()


class Metrics(metrics.MetricsProcessor):
    """TorchTitan's metrics, which the rank that logs for TensorBoard also writes as lines."""

    @dataclass(kw_only=True, slots=True)
    class Config(metrics.MetricsProcessor.Config):
        """The options ``--metrics.*``."""

    def __init__(self, config: Config, *, dump_folder: str, **options: Any) -> None:
        super().__init__(config, dump_folder=dump_folder, **options)
        is_only_one = not config.save_for_all_ranks or torch.distributed.get_rank() == 0
        if is_only_one and isinstance(self.logger, metrics.LoggerContainer):
            self.logger.add_logger(Lines(Path(dump_folder), self))


class Validator(validate.Validator):
    """TorchTitan's validator, on the same batches each time, and after the last step too."""

    @dataclass(kw_only=True, slots=True)
    class Config(validate.Validator.Config):
        """The options ``--validator.*``."""

    last_step = 0

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(config, **options)
        self.dl_config = replace(self.dl_config, infinite=False)
        # What is wrong with the data is told now, and not after hundreds of steps.
        self.dl_config.build(
            dp_world_size=self.dp_world_size,
            dp_rank=self.dp_rank,
            tokenizer=self.tokenizer,
            seq_len=self.seq_len,
            local_batch_size=self.local_batch_size,
        )

    def should_validate(self, step: int) -> bool:
        """Tell whether to validate after a step."""
        return step % self.config.freq == 0 or step == self.last_step


class Trainer(trainer.Trainer):
    """TorchTitan's trainer, whose model has the tokenizer's vocabulary, and which stops on SIGUSR1.

    After each logged step the ranks agree whether to stop, because the signal before the time
    limit reaches them in different steps. The trainer then ends with a checkpoint, because its
    configuration names this step as the last.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(trainer.Trainer.Config):
        """All options."""

        learning_rate: float = 3e-4
        """Learning rate after the warm-up"""

    stop = False

    def __init__(self, config: Config) -> None:
        for group in config.optimizer.param_groups:
            group.optimizer_kwargs["lr"] = config.learning_rate
        tokenizer = config.tokenizer.build(tokenizer_path=config.hf_assets_path)
        size = round_up(tokenizer.get_vocab_size(), 128)  # which tensor parallelism divides
        model = config.model_spec.model
        model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = size
        getattr(config.loss, "loss_fn", config.loss).global_vocab_size = size
        super().__init__(config)
        if config.validator.enable:
            self.validator.last_step = config.training.steps
        signal.signal(signal.SIGUSR1, self.end)

    def end(self, *_: Any) -> None:
        """Remember the signal."""
        self.stop = True

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Train a step, and make it the last one if any rank has received the signal."""
        super().train_step(data_iterator)
        if not self.metrics_processor.should_log(self.step):
            return
        stop = torch.tensor(int(self.stop), device=self.device)
        torch.distributed.all_reduce(stop, torch.distributed.ReduceOp.MAX)
        if stop.item() and self.step < self.config.training.steps:
            logger.info(f"Stopped by a signal: step {self.step} is the last.")
            self.config.training.steps = self.step
            self.config.validator.enable = False


def configuration() -> Trainer.Config:
    """Return TorchTitan's configuration of the model in the settings, with our components."""
    model, flavor = os.environ["TRAINING_MODEL"], os.environ["TRAINING_FLAVOR"]
    name = re.sub(r"\W", "_", f"{model}_{flavor}".lower())  # qwen3_30b_a3b
    hint = "set model, flavor and config in [training] of configuration.toml"
    try:
        if file := os.environ["TRAINING_CONFIG"]:
            functions = runpy.run_path(file)
        else:
            functions = vars(importlib.import_module(f"torchtitan.models.{model}.config_registry"))
    except (ImportError, OSError) as error:
        fail(f"cannot read the configurations of {model}: {error}", hint)
    if name not in functions:
        fail(f"configuration {name} not found in {functions['__name__']}", hint)
    config = functions[name]()
    if type(config) is not trainer.Trainer.Config:
        fail(f"{name} is not a configuration for text", hint)
    config = Trainer.Config(**{each.name: getattr(config, each.name) for each in fields(config)})
    config.tokenizer = HuggingFaceTokenizer.Config()
    config.dataloader = TokenLoader.Config()
    config.metrics = Metrics.Config()
    config.validator = Validator.Config(dataloader=TokenLoader.Config())
    return config
