"""Train a small GPT on the tokens that `preprocess_data.py` writes.

    python3 container_run.py python train.py     one process, on a GPU if there is one
    torchrun --nproc-per-node=4 train.py        data parallel; see stacks/pytorch/run_training.sh

A run writes checkpoints, metrics.jsonl, TensorBoard events and the loss curve to one directory,
CHECKPOINT_DIR/RUN_NAME. Run the same command again to resume from the newest checkpoint, with the
losses of a run that was never stopped: batch and random numbers of a step depend only on seed, step
and rank, so there is no state of a sampler or a generator to restore. On SIGTERM or SIGUSR1,
which Slurm sends before the time limit, and on Ctrl-C, a run finishes its step, writes a checkpoint
and exits; a second Ctrl-C ends it at once.

The validation loss is measured on the last documents of the data, which are held out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

# PyTorch reads this when it is loaded. By default waiting threads spin, which takes the cores from
# other work on a laptop or login node.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Until there is a step to save, Ctrl-C ends the program without a traceback.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

from directory_lock import DirectoryLock

State = dict[str, Any]
MODEL_OPTIONS = ("vocab_size", "layers", "heads", "width")
TRAINING_OPTIONS = (
    *("batch_size", "sequence_length", "learning_rate", "warmup_steps", "weight_decay"),
    *("clip_norm", "dropout", "seed", "validation_fraction"),
)
HELD_OUT = 0.05  # of the documents
CHECKSUM_BYTES = hashlib.sha256().digest_size
MAKE_DATA = "run: python3 container_run.py python preprocess_data.py"
SHOW_OPTIONS = "list all options: python3 container_run.py python train.py --help"


def fail(message: str, hint: str, code: int = 1, every_rank: bool = False) -> NoReturn:
    """Exit with two lines, what is wrong and what to do, once per node."""
    if every_rank or os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


class Block(nn.Module):
    """Transformer layer: causal self-attention with rotary positions, then SwiGLU."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        # Two thirds of the usual four widths, because SwiGLU has three matrices instead of two.
        hidden = 64 * math.ceil(8 * width / 3 / 64)
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate_and_up = nn.Linear(width, 2 * hidden, bias=False)
        self.mlp_out = nn.Linear(hidden, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map activations to activations, both (batch, length, width)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), cos, sin))
        gate, up = self.gate_and_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.dropout(self.mlp_out(F.silu(gate) * up))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Let every position attend to itself and earlier ones; x is (batch, length, width)."""
        heads = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (batch, heads, length, head width) each
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of features by angles that grow with the position.

    Parameters
    ----------
    x : Tensor
        Queries or keys, (batch, heads, length, head width).
    cos, sin : Tensor
        Cosine and sine of the angles, (length, head width / 2).
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(x)


class GPT(nn.Module):
    """Decoder-only transformer with tied embeddings.

    Parameters
    ----------
    args : Namespace
        Vocabulary size, layers, heads, width, maximum sequence length (tokens), dropout.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, args: Namespace) -> None:
        super().__init__()
        layers, heads, width = args.layers, args.heads, args.width
        # Matrix units work best with multiples of 64; no token has the additional ids.
        self.embedding = nn.Embedding(64 * math.ceil(args.vocab_size / 64), width)
        self.blocks = nn.ModuleList(Block(width, heads, args.dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        frequencies = 1e4 ** -torch.arange(0, 1, 2 * heads / width)
        angles = torch.outer(torch.arange(args.sequence_length), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Two branches per layer add to the residual stream; this keeps its variance at 1.
                scale = (2 * layers) ** -0.5 if name.endswith("_out.weight") else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats per token, of ids (batch, length)."""
        length = tokens.size(1)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def open_tokens(prefix: Path, validation_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Map a dataset in Megatron's format into memory: training tokens and held-out tokens.

    The last documents are held out, as with Megatron's `--split`. Training needs only the tokens of
    all documents in a row, so this function reads the index itself: megatron-core's IndexedDataset
    opens the same files, but takes several seconds to import, on every rank.

    Parameters
    ----------
    prefix : Path
        The .bin and the .idx file, without the suffix.
    validation_fraction : float
        Share of the documents to hold out; above 0 it is at least one document.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, data):
        if not path.is_file():
            fail(f"training data not found: {path}", MAKE_DATA)
    header = struct.Struct("<9sQBQQ")  # magic, version, type of the ids, sequences, documents
    try:
        with index.open("rb") as file:
            magic, version, type_code, sequences, bounds = header.unpack(file.read(header.size))
            lengths = np.fromfile(file, np.int32, sequences)
            # The first sequence of each document, and the number of sequences; skips the offset of
            # each sequence in the .bin.
            documents = np.fromfile(file, np.int64, bounds, offset=8 * sequences)
        tokens = np.memmap(data, {4: np.int32, 8: np.uint16}[type_code], mode="r")
        is_complete = (magic, version) == (b"MMIDIDX\0\0", 1) and lengths.sum() == tokens.size
        held_out = math.ceil(validation_fraction * (bounds - 1))
        first_held_out = lengths[: documents[bounds - 1 - held_out]].sum()
    except (struct.error, KeyError, ValueError, IndexError):
        is_complete = False
    if not is_complete:
        fail(f"{index} and .bin are not a complete dataset in Megatron's format", MAKE_DATA)
    return tokens[:first_held_out], tokens[first_held_out:]


@dataclass(frozen=True)
class Process:
    """One of the processes that train together."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def join(cls, device_type: str) -> Process:
        """Join the process group of torchrun's variables; a single process needs none."""
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        device = torch.device(device_type)
        if device_type == "cuda":
            # Some launchers hide all GPUs but one from each process.
            local_rank = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
        if world_size > 1 and device_type == "cuda":
            dist.init_process_group("nccl", device_id=device)
        elif world_size > 1:
            dist.init_process_group("gloo")
        return cls(rank, world_size, device)

    def mean(self, values: Tensor) -> list[float]:
        """Average a few numbers over all ranks, in one small message."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return (values / self.world_size).tolist()

    def from_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        box = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box)
        return box[0]


class Checkpoints:
    """Checkpoints of a run; a thread writes them and keeps the newest two."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = DirectoryLock(directory / "run.lock")
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def make_directory(self) -> None:
        """Create the directory, or fail if it is not writable."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.directory).close()
        except OSError as error:
            hint = "choose another --checkpoint-dir or --run-name"
            fail(f"cannot write to {self.directory}: {error.strerror}", hint)

    def take_lock(self) -> str:
        """Lock the run; return the owner if another process already trains it, otherwise ""."""
        owner = self.lock.acquire()
        if not owner:
            for left in self.directory.glob("*.partial"):  # from killed processes
                left.unlink(missing_ok=True)
        return owner

    def check_lock(self) -> None:
        """Fail if another process has taken over the run, for example while this one was paused."""
        if not self.lock.is_held():
            fail(
                f"another process has taken over the run in {self.directory}",
                "do nothing: that process resumes from the newest checkpoint",
            )

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint after a step."""
        return self.directory / f"step-{step:08d}.pt"

    def newest(self) -> Path | None:
        """Return the newest intact checkpoint; rename damaged ones."""
        for path in sorted(self.directory.glob("step-*.pt"), reverse=True):
            if is_intact(path):
                return path
            damaged = path.replace(path.with_suffix(".damaged"))
            print(f"warning: skipping a damaged checkpoint: {damaged}", file=sys.stderr)
        return None

    def save(self, step: int, state: State) -> None:
        """Copy a state and write it in the background, after the previous one."""
        self.wait()
        self.check_lock()
        self._pending = self._thread.submit(self._write, self.path(step), host_copy(state))

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        try:
            if self._pending:
                self._pending.result()
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            fail(f"cannot write a checkpoint: {error}", f"free some space in {self.directory}")

    def _write(self, path: Path, state: State) -> None:
        partial = self.directory / own_name("checkpoint")
        with partial.open("wb") as file:
            hashed = HashedFile(file)
            torch.save(state, hashed)
            # torch.load ignores the bytes after the state.
            file.write(hashed.digest.digest())
            file.flush()
            os.fsync(file.fileno())
        if not self.lock.is_held():  # lost to another process during a slow write
            partial.unlink()
            return
        partial.replace(path)
        for old in sorted(self.directory.glob("step-*.pt"))[:-2]:
            old.unlink()


class HashedFile:
    """A file that computes the SHA-256 of the bytes before they reach the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()

    def write(self, content: bytes) -> int:
        """Write some bytes."""
        self.digest.update(content)
        return self.file.write(content)

    def flush(self) -> None:
        """Flush the file."""
        self.file.flush()


def own_name(name: str) -> str:
    """Return a name for an unfinished file that no other process writes."""
    return f"{name}.{platform.node()}-{os.getpid()}.partial"


def checksum(content: np.ndarray) -> bytes:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(memoryview(content)).digest()


def is_intact(checkpoint: Path) -> bool:
    """Compare a checkpoint with the checksum at its end."""
    if not checkpoint.stat().st_size:
        return False
    content = np.memmap(checkpoint, mode="r")
    return checksum(content[:-CHECKSUM_BYTES]) == content[-CHECKSUM_BYTES:].tobytes()


def host_copy(value: Any) -> Any:
    """Copy a nested state with its tensors to host memory, because training changes it."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: host_copy(item) for key, item in value.items()}
    return [host_copy(item) for item in value] if isinstance(value, list) else value


def load_checkpoint(path: Path, args: Namespace) -> State:
    """Read a checkpoint to host memory; fail if the options describe another model."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name in MODEL_OPTIONS:
        given, saved, option = getattr(args, name), state["arguments"][name], name.replace("_", "-")
        if given != saved:
            fail(
                f"--{option} is {given}, but {saved} in the checkpoint {path}",
                f"give --{option} {saved}, or another --run-name",
            )
    return state


def warn_of_changes(state: State, args: Namespace) -> None:
    """Warn of training options that differ from those of the checkpoint."""
    changes = []
    for name in TRAINING_OPTIONS:
        given = getattr(args, name)
        saved = state["arguments"].get(name, given)  # missing in a checkpoint of an older train.py
        if given != saved:
            changes.append(f"--{name.replace('_', '-')} {given} (was {saved})")
    if changes:
        warning = f"warning: the run continues with other options: {', '.join(changes)}"
        hint = "hint: to start from the beginning, choose another --run-name"
        print(f"{warning}\n{hint}", file=sys.stderr)


def read_metrics(path: Path, last_step: int) -> tuple[list[dict[str, float]], int]:
    """Return the metrics up to a step, and the number of unreadable lines before the last one.

    A crash can leave metrics of later steps, and an incomplete last line.
    """
    metrics: list[dict[str, float]] = []
    damaged = 0
    with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                found = json.loads(line)
                if found["step"] <= last_step and math.isfinite(found["loss"]):
                    metrics.append(found)
            except (ValueError, LookupError, TypeError):
                damaged += line.endswith("\n")
    return metrics, damaged


class Recorder:
    """Write the metrics of each step as JSON Lines, for TensorBoard, and as a progress line."""

    def __init__(self, directory: Path, done: int, args: Namespace) -> None:
        self.steps = args.steps
        self.tokens_per_step = args.batch_size * args.sequence_length
        path, partial = directory / "metrics.jsonl", directory / own_name("metrics")
        kept, damaged = read_metrics(path, done)
        if damaged:
            copy = shutil.copy(path, directory / "metrics.damaged")
            warning = f"cannot read {damaged} lines of {path}; all lines are kept in {copy}"
            print(f"warning: {warning}", file=sys.stderr)
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        self.lines = partial.replace(path).open("a", encoding="utf-8")
        self.board = SummaryWriter(str(directory / "tensorboard"), purge_step=done + 1)
        self.first: tuple[int, float] | None = None
        self.shown = -math.inf

    def record(self, step: int, metrics: dict[str, float], seconds: float) -> None:
        """Record a step: its metrics, losses in nats per token, and the time it took."""
        speed = self.tokens_per_step / seconds
        metrics = {**metrics, "tokens_per_s": speed, "seconds": seconds}
        self.lines.write(json.dumps({"step": step, **metrics}) + "\n")
        self.lines.flush()
        for name, value in metrics.items():
            self.board.add_scalar(name, value, step)
        now = time.monotonic()
        # The first step is not representative: it compiles and warms up.
        first_step, first_time = self.first = self.first or (step, now)
        left = (self.steps - step) * (now - first_time) / max(1, step - first_step)
        validation = metrics.get("validation_loss")
        line = f"step {step}/{self.steps}  loss {metrics['loss']:.4f}"
        line += f"  validation {validation:.4f}" if validation else ""
        line += f"  {speed:,.0f} tokens/s"
        line += f"  {timedelta(seconds=round(left))} left" if step > first_step else ""
        if sys.stdout.isatty():
            print(f"\r\033[K{line}", end="\n" if validation else "", flush=True)
        elif validation or now - self.shown >= 10 or step == self.steps:
            print(line, flush=True)
            self.shown = now

    def close(self) -> None:
        """End the progress line and close the files."""
        if sys.stdout.isatty():
            print()
        self.lines.close()
        self.board.close()


def draw_loss(metrics: list[dict[str, float]], title: str, path: Path) -> None:
    """Draw the loss of each step and their moving average as PNG."""
    from matplotlib.figure import Figure  # takes a second, so only at the end of a run

    steps, losses = [line["step"] for line in metrics], [line["loss"] for line in metrics]
    window = np.ones(1 + len(losses) // 25)
    averages = np.convolve(losses, window, "same") / np.convolve(
        np.ones(len(losses)), window, "same"
    )
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps, averages, color="tab:blue", linewidth=2, label="moving average")
    validated = [line for line in metrics if "validation_loss" in line]
    if validated:
        points = [(line["step"], line["validation_loss"]) for line in validated]
        axes.plot(*zip(*points), color="tab:orange", marker="o", markersize=4, label="validation")
    axes.set(title=title, xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    partial = path.with_name(own_name("loss"))
    figure.savefig(partial, format="png", dpi=150)
    partial.replace(path)


class Stop:
    """Records whether a signal asked the run to stop: SIGTERM, SIGUSR1 (Slurm), SIGINT (Ctrl-C)."""

    def __init__(self) -> None:
        self.asked = False
        self.interrupted = math.inf
        signal.signal(signal.SIGTERM, self.ask)
        signal.signal(signal.SIGUSR1, self.ask)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored in a background job
            signal.signal(signal.SIGINT, self.interrupt)

    def ask(self, *_: Any) -> None:
        """Stop the run after its step."""
        self.asked = True

    def interrupt(self, *_: Any) -> None:
        """Stop the run after its step, or at once on a second Ctrl-C."""
        now = time.monotonic()
        # A launcher or a container runtime can forward a signal that the terminal has also sent.
        if now > self.interrupted + 1:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        self.interrupted = min(self.interrupted, now)
        if not self.asked and os.environ.get("RANK", "0") == "0":
            # Not print, which is not reentrant and could be the interrupted function.
            os.write(2, b"\nstopping with a checkpoint; Ctrl-C again ends without one\n")
        self.ask()


class Trainer:
    """Model, optimizer and data of a run, and the steps it takes.

    Parameters
    ----------
    args : Namespace
        The command line.
    process : Process
        This process.
    tokens, held_out : numpy.ndarray
        Training and validation data, ids of all documents in a row.
    state : dict or None
        Checkpoint to resume from.
    """

    def __init__(
        self,
        args: Namespace,
        process: Process,
        tokens: np.ndarray,
        held_out: np.ndarray,
        state: State | None,
    ) -> None:
        self.args, self.process, self.tokens, self.held_out = args, process, tokens, held_out
        self.stop = Stop()
        torch.manual_seed(args.seed)
        self.gpt = gpt = GPT(args).to(process.device)
        gains = [weight for weight in gpt.parameters() if weight.dim() < 2]
        matrices = [weight for weight in gpt.parameters() if weight.dim() == 2]
        groups: list[State] = [{"params": matrices}, {"params": gains, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, betas=(0.9, 0.95), weight_decay=args.weight_decay, fused=True
        )
        if state:
            gpt.load_state_dict(state["model"])
            # Only the moments: weight decay and all other values come from the options.
            moments = {"state": state["optimizer"]["state"]}
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), **moments})
        model = DistributedDataParallel(gpt) if process.world_size > 1 else gpt
        # Compiled with DDP's communication, so that it overlaps with the backward pass.
        self.model = torch.compile(model) if args.compile else model

    def state(self, step: int) -> State:
        """Return the content of a checkpoint."""
        return {
            "step": step,
            "model": self.gpt.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "arguments": json.loads(json.dumps(vars(self.args), default=str)),
        }

    def micro_batches(
        self, tokens: np.ndarray, ends: np.ndarray
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets, ids (micro-batch size, length), of this rank's sequences.

        The sequences of all ranks together do not depend on the world size.

        Parameters
        ----------
        tokens : numpy.ndarray
            Data that contain the sequences.
        ends : numpy.ndarray
            End of each sequence in the data.
        """
        args, process = self.args, self.process
        length = args.sequence_length + 1
        mine = ends[process.rank :: process.world_size]
        size = args.micro_batch_size or max(1, mine.size)
        for begin in range(0, mine.size, size):
            rows = np.stack([tokens[end - length : end] for end in mine[begin : begin + size]])
            wrong = rows[(rows < 0) | (rows >= args.vocab_size)]
            if wrong.size:
                message = f"--vocab-size is {args.vocab_size}, but {args.data} has token {wrong[0]}"
                fail(message, "give the vocabulary size of the tokenizer", every_rank=True)
            ids = torch.from_numpy(rows.astype(np.int64))
            if process.device.type == "cuda":
                ids = ids.pin_memory().to(process.device, non_blocking=True)
            yield ids[:, :-1], ids[:, 1:]

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, then cosine decay to a tenth."""
        args = self.args
        if step <= args.warmup_steps:
            return args.learning_rate * step / args.warmup_steps
        progress = (step - args.warmup_steps) / (args.steps - args.warmup_steps)
        return args.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))

    def autocast(self) -> torch.autocast:
        """Compute in bfloat16 on a GPU."""
        device_type = self.process.device.type
        return torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda")

    def take(self, step: int) -> tuple[dict[str, float], bool]:
        """Update the weights; return the metrics of the step, and whether any rank has to stop."""
        args, process = self.args, self.process
        draws = np.random.default_rng((args.seed, step, process.rank))
        torch.manual_seed(int(draws.integers(2**63)))
        rate = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.accumulate_gradient(step)
        norm = nn.utils.clip_grad_norm_(self.gpt.parameters(), args.clip_norm or math.inf)
        stop = torch.tensor(float(self.stop.asked), device=process.device)
        mean_loss, mean_norm, stops = process.mean(torch.stack((loss, norm, stop)))
        if not math.isfinite(mean_loss) or not math.isfinite(mean_norm):
            values = f"loss {mean_loss}, gradient norm {mean_norm}"
            fail(f"training diverged at step {step}: {values}", "reduce --learning-rate")
        self.optimizer.step()
        return {"loss": mean_loss, "grad_norm": mean_norm, "learning_rate": rate}, stops > 0

    def accumulate_gradient(self, step: int) -> Tensor:
        """Accumulate the gradient of a step over its micro-batches; return this rank's loss."""
        args, process = self.args, self.process
        ends = np.random.default_rng((args.seed, step)).integers(
            args.sequence_length + 1, self.tokens.size, size=args.batch_size, endpoint=True
        )
        batches = list(self.micro_batches(self.tokens, ends))
        share = args.batch_size // process.world_size
        total = torch.zeros((), device=process.device)
        self.optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(batches, 1):
            # The ranks average their gradients only once, in the last backward pass.
            is_synced = process.world_size == 1 or number == len(batches)
            with nullcontext() if is_synced else self.model.no_sync():
                with self.autocast():
                    loss = self.model(inputs, targets) * (len(inputs) / share)
                loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean loss on the same held-out sequences each time."""
        args, process = self.args, self.process
        first, last = args.sequence_length + 1, self.held_out.size
        ends = np.linspace(first, last, args.validation_sequences).astype(np.int64)
        total = torch.zeros(2, device=process.device)
        self.gpt.eval()
        for inputs, targets in self.micro_batches(self.held_out, ends):
            with self.autocast():
                # The plain model, because the compiled one would be compiled again for evaluation.
                loss = self.gpt(inputs, targets)
            count = torch.full_like(loss, len(inputs))
            total += torch.stack((loss * count, count))
        self.gpt.train()
        loss_sum, sequences = process.mean(total)
        return loss_sum / sequences

    def train(self, done: int, checkpoints: Checkpoints) -> int:
        """Take the remaining steps; return the last one."""
        args = self.args
        recorder = Recorder(checkpoints.directory, done, args) if self.process.rank == 0 else None
        try:
            for step in range(done + 1, args.steps + 1):
                begin = time.perf_counter()
                metrics, stops = self.take(step)
                seconds = time.perf_counter() - begin
                if self.held_out.size and (step % args.validate_every == 0 or step == args.steps):
                    metrics["validation_loss"] = self.validate()
                if recorder:
                    if checkpoints.lock.lost:
                        checkpoints.check_lock()
                    recorder.record(step, metrics, seconds)
                    if stops or step == args.steps or step % args.checkpoint_every == 0:
                        checkpoints.save(step, self.state(step))
                if stops:
                    break
            return step
        finally:
            if recorder:
                recorder.close()
            checkpoints.wait()


def summarize(step: int, checkpoints: Checkpoints, args: Namespace) -> None:
    """Print how the run ended, and draw the loss curve of a finished run."""
    checkpoint, curve = checkpoints.path(step), checkpoints.directory / "loss.png"
    if step < args.steps:
        print(f"stopped by a signal after step {step} of {args.steps}")
        print(f"run the same command to resume from {checkpoint}")
        return
    print(f"finished    step {step} of {args.steps}")
    metrics, _ = read_metrics(checkpoints.directory / "metrics.jsonl", step)
    if metrics:
        losses = [line["loss"] for line in metrics]
        last = losses[-20:]  # a single batch says little
        speed = statistics.median(line["tokens_per_s"] for line in metrics)
        draw_loss(metrics, f"Training loss of {args.run_name}", curve)
        end = f"{statistics.fmean(last):.4f} over the last {len(last)} steps"
        print(f"loss        {losses[0]:.4f} at the start, {end}")
        if "validation_loss" in metrics[-1]:
            print(f"validation  {metrics[-1]['validation_loss']:.4f} after the last step")
        print(f"speed       {speed:,.0f} tokens/s")
        print(f"loss curve  {curve}")
    print(f"checkpoint  {checkpoint}")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show the defaults, but not None, and keep the line breaks of the description."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def number(kind: type, low: float, below: float = math.inf) -> Callable[[str], float]:
    """Return a parser for an option's value: an int or a float, from `low` to below `below`."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= kind(text) < below:
                return kind(text)
        limits = f">= {low}" + (f" and < {below:,}" if below < math.inf else "")
        noun = "an integer" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"expected {noun} {limits}, got {text!r}")

    return read


def parse_arguments() -> Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.error = lambda message: fail(message, SHOW_OPTIONS, code=2)
    scratch = Path(os.environ.get("LONGSHIP_SCRATCH_DIR", "."))
    checkpoints = Path(os.environ.get("LONGSHIP_CHECKPOINT_DIR", scratch / "checkpoints"))
    has_gpu, yes_or_no = torch.cuda.is_available(), argparse.BooleanOptionalAction
    data = scratch / "data" / "corpus_text_document"
    count, positive = number(int, 0), number(int, 1)
    size, share = number(float, 0), number(float, 0, 1)

    add = parser.add_argument_group("run").add_argument
    add("--data", type=Path, default=data, metavar="PREFIX", help="dataset, without .bin and .idx")
    add("--checkpoint-dir", type=Path, default=checkpoints, help="directory of all runs")
    add("--run-name", default="gpt", help="directory of this run")
    add("--checkpoint-every", type=positive, default=100, help="steps between checkpoints")
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if has_gpu else "cpu",
        help="training device",
    )
    add("--compile", action=yes_or_no, default=has_gpu, help="compile the model")

    add = parser.add_argument_group("model").add_argument
    add("--layers", type=positive, default=4, help="transformer layers")
    add("--heads", type=positive, default=4, help="attention heads per layer")
    add("--width", type=positive, default=128, help="hidden size")
    add(
        "--vocab-size",
        type=count,
        default=0,
        help="vocabulary size; 0: that of the dataset",
    )

    add = parser.add_argument_group("training").add_argument
    # The names of checkpoints have eight digits.
    add("--steps", type=number(int, 1, 10**8), default=400, help="optimizer steps")
    about = "sequences per step over all ranks; 0: 8, or more if the number of ranks requires it"
    add("--batch-size", type=count, default=0, help=about)
    about = "sequences per rank and forward pass; below the rank's share of the batch, gradients"
    about += " are accumulated; 0: the whole share"
    add("--micro-batch-size", type=count, default=0, help=about)
    add("--sequence-length", type=positive, default=128, help="tokens per sequence")
    add("--learning-rate", type=size, default=3e-3, help="peak learning rate")
    add("--warmup-steps", type=count, default=20, help="steps until the peak is reached")
    add("--weight-decay", type=size, default=0.1, help="weight decay of the weight matrices")
    add("--clip-norm", type=size, default=1.0, help="maximum gradient norm; 0: no clipping")
    add("--dropout", type=share, default=0.0, help="dropout of each residual branch")
    seed = number(int, 0, 2**63)
    add("--seed", type=seed, default=1, help="seed of weights, batches and dropout")

    add = parser.add_argument_group("validation").add_argument
    about = "share of the documents to hold out, from the end; 0: no validation "
    about += f"(default: {HELD_OUT}, or 0 if these are shorter than a sequence)"
    add("--validation-fraction", type=share, default=None, help=about)
    add("--validate-every", type=positive, default=100, help="steps between validations")
    about = "sequences per validation, spread over the held-out documents"
    add("--validation-sequences", type=positive, default=64, help=about)
    args = parser.parse_args()
    if args.device == "cuda" and not has_gpu:
        parser.error("--device is cuda, but PyTorch finds no GPU")
    return args


def check_arguments(args: Namespace, training: int, held_out: int, world_size: int) -> None:
    """Fill in the default sizes, and refuse options that are incompatible.

    Parameters
    ----------
    args : Namespace
        The command line.
    training, held_out : int
        Tokens to train on, and tokens held out.
    world_size : int
        Number of ranks.
    """
    record = Path(f"{args.data}.record.json")
    try:
        vocab_size = json.loads(record.read_text("utf-8"))["result"]["vocab_size"]
    except (OSError, ValueError, LookupError, TypeError):  # other programs write no record
        vocab_size = args.vocab_size
    if not vocab_size:
        fail(f"the vocabulary size is unknown: cannot read {record}", "give it with --vocab-size")
    args.vocab_size = args.vocab_size or vocab_size
    if args.vocab_size < vocab_size:
        hint = f"give --vocab-size {vocab_size}, or leave it out"
        fail(f"--vocab-size is {args.vocab_size}, but {args.data} has {vocab_size} tokens", hint)
    if not args.batch_size:
        args.batch_size = math.ceil(8 / world_size) * world_size
    if args.batch_size % world_size:
        hint = f"choose a --batch-size that is a multiple of {world_size}"
        fail(f"--batch-size {args.batch_size} is not divisible by {world_size} ranks", hint)
    if args.width % (2 * args.heads):
        hint = f"choose a --width that is a multiple of {2 * args.heads}"
        fail(f"--width {args.width} is not --heads {args.heads} times an even number", hint)
    if training <= args.sequence_length:
        hint = "choose a lower --sequence-length or --validation-fraction"
        fail(f"only {training} tokens of {args.data}.bin are left for training", hint)
    if args.validation_fraction and held_out <= args.sequence_length:
        hint = "choose a higher --validation-fraction, 0 for none, or a lower --sequence-length"
        fail(f"only {held_out} tokens of {args.data}.bin are held out for validation", hint)


def main() -> None:
    """Train to the last step, from the newest checkpoint if one exists."""
    args = parse_arguments()
    if args.validation_fraction is None:
        _, held_out = open_tokens(args.data, HELD_OUT)
        args.validation_fraction = HELD_OUT if held_out.size > args.sequence_length else 0.0
    tokens, held_out = open_tokens(args.data, args.validation_fraction)
    checkpoints = Checkpoints(args.checkpoint_dir / args.run_name)
    process = Process.join(args.device)
    check_arguments(args, tokens.size, held_out.size, process.world_size)
    owner = ""
    if process.rank == 0:
        checkpoints.make_directory()
        owner = checkpoints.take_lock()
    owner = process.from_rank_0(owner)
    if owner:
        if process.rank == 0:
            fail(
                f"another process already trains the run in {checkpoints.directory}: {owner}",
                "wait until it ends, or choose another --run-name; if it no longer exists, run: "
                f"rm -r {shlex.quote(str(checkpoints.lock.path))}",
            )
        sys.exit(1)
    newest = process.from_rank_0(checkpoints.newest() if process.rank == 0 else None)
    state = load_checkpoint(newest, args) if newest else None
    step = state["step"] if state else 0
    if step < args.steps:
        if process.rank == 0:
            place = f"{process.world_size} x {process.device.type}"
            start = newest or "the beginning"
            print(f"training from {start} to step {args.steps} on {place}", flush=True)
            if state:
                warn_of_changes(state, args)
        step = Trainer(args, process, tokens, held_out, state).train(step, checkpoints)
    if process.rank == 0:
        summarize(step, checkpoints, args)
        checkpoints.lock.release()
    if process.world_size > 1:
        dist.destroy_process_group()
        # Everything is written. The interpreter's shutdown would race with gloo's threads, which a
        # data-parallel module keeps alive: one that frees a tensor then aborts the process.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        hint = "check permissions and free space"
        fail(f"cannot read or write: {error}", hint, every_rank=True)
