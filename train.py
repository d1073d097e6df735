"""Train a small GPT on the tokens that `preprocess_data.py` makes.

    python3 container_run.py python train.py     one process, on a GPU where there is one
    torchrun --nproc-per-node=4 train.py        data parallel; see stacks/pytorch/run_training.sh

All of a run is in one folder, CHECKPOINT_DIR/RUN_NAME: checkpoints, metrics.jsonl, TensorBoard
events and the loss curve. The same command again goes on from the newest checkpoint, with the
losses of a run that was never stopped: batch and random numbers of a step follow from seed, step
and rank, so there is no state of a sampler or a generator to restore. On SIGTERM or SIGUSR1,
which Slurm sends before the time limit, a run finishes its step, writes a checkpoint and ends.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import statistics
import struct
import sys
import threading
import time
from argparse import Namespace
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

# Read when PyTorch is loaded. Threads that wait by spinning, the default, take the cores from those
# that work, on a laptop or login node with other work to do.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

State = dict[str, Any]
MODEL_OPTIONS = ("vocab_size", "layers", "heads", "width")
CHECKSUM_BYTES = hashlib.sha256().digest_size
MAKE_DATA = "make it with: python3 container_run.py python preprocess_data.py"


def fail(message: str, hint: str) -> NoReturn:
    """End with one line that says what is wrong and one that says what to do, once per node."""
    sys.exit(f"error: {message}\nhint: {hint}" if os.environ.get("LOCAL_RANK", "0") == "0" else 1)


class Block(nn.Module):
    """Transformer layer: causal self-attention with rotary positions, then SwiGLU."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        # Two thirds of the usual four widths, as SwiGLU has three matrices and not two.
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
        """Let every position read itself and those before; x is (batch, length, width)."""
        heads = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (batch, heads, length, head width) each
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of features by angles that grow with the position.

    Parameters
    ----------
    x : Tensor
        Queries or keys, (batch, heads, length, head width).
    cos, sin : Tensor
        Of the angles, (length, head width / 2).
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(x)


class GPT(nn.Module):
    """Decoder-only transformer with tied embeddings.

    Parameters
    ----------
    args : Namespace
        Vocabulary size, layers, heads, width, sequence length (the longest, in tokens), dropout.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, args: Namespace) -> None:
        super().__init__()
        layers, heads, width = args.layers, args.heads, args.width
        # Matrix units want multiples of 64; no token has the ids that this adds.
        self.embedding = nn.Embedding(64 * math.ceil(args.vocab_size / 64), width)
        self.blocks = nn.ModuleList(Block(width, heads, args.dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        frequencies = 1e4 ** -torch.arange(0, 1, 2 * heads / width)
        angles = torch.outer(torch.arange(args.sequence_length), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Two branches per layer add to the residual stream, and its variance is to stay 1.
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


def open_tokens(prefix: Path) -> np.ndarray:
    """Map the tokens of a dataset in Megatron's format, all documents in a row, into memory.

    Training wants the row alone, so it reads the index itself: megatron-core's IndexedDataset
    opens the same files, but takes several seconds to import, on every rank.

    Parameters
    ----------
    prefix : Path
        The .bin and the .idx file, without the ending.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, data):
        if not path.is_file():
            fail(f"there is no training data: {path} is missing", MAKE_DATA)
    header = struct.Struct("<9sQBQQ")  # magic, version, type of the ids, sequences, documents
    try:
        with index.open("rb") as file:
            magic, version, type_code, sequences, _ = header.unpack(file.read(header.size))
            lengths = np.fromfile(file, np.int32, sequences)
        tokens = np.memmap(data, {4: np.int32, 8: np.uint16}[type_code], mode="r")
        is_whole = (magic, version) == (b"MMIDIDX\0\0", 1) and lengths.sum() == tokens.size
    except (struct.error, KeyError, ValueError):
        is_whole = False
    if not is_whole:
        fail(f"{index} and .bin are not a whole dataset in Megatron's format", MAKE_DATA)
    return tokens


@dataclass(frozen=True)
class Process:
    """One of the processes that train together."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def join(cls, device_type: str) -> Process:
        """Join the process group that torchrun's variables describe; one process needs none."""
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        device = torch.device(device_type)
        if device_type == "cuda":
            # Some launchers show a process no GPU but its own.
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
    """Checkpoints of a run, of which the newest two are kept; a thread writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def path(self, step: int) -> Path:
        """Name of the checkpoint after so many steps."""
        return self.folder / f"step-{step:08d}.pt"

    def newest(self) -> Path | None:
        """Return the newest whole checkpoint; put damaged ones out of the way."""
        for path in sorted(self.folder.glob("step-*.pt"), reverse=True):
            if is_whole(path):
                return path
            damaged = path.replace(path.with_suffix(".damaged"))
            print(f"warning: a checkpoint is damaged and not used: {damaged}", file=sys.stderr)
        return None

    def save(self, step: int, state: State) -> None:
        """Copy a state and have it written, after the one before is."""
        self.wait()
        self._pending = self._thread.submit(self._write, self.path(step), host_copy(state))

    def wait(self) -> None:
        """Wait until what was saved is on the disk."""
        try:
            if self._pending:
                self._pending.result()
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            fail(f"a checkpoint could not be written: {error}", f"is there room in {self.folder}?")

    def _write(self, path: Path, state: State) -> None:
        partial = self.folder / "checkpoint.partial"
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            # torch.load takes no notice of what follows the state.
            file.write(checksum(np.memmap(partial, mode="r")))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        for old in sorted(self.folder.glob("step-*.pt"))[:-2]:
            old.unlink()


def checksum(content: np.ndarray) -> bytes:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(memoryview(content)).digest()


def is_whole(checkpoint: Path) -> bool:
    """Compare a checkpoint with the checksum at its end."""
    if not checkpoint.stat().st_size:
        return False
    content = np.memmap(checkpoint, mode="r")
    return checksum(content[:-CHECKSUM_BYTES]) == content[-CHECKSUM_BYTES:].tobytes()


def host_copy(value: Any) -> Any:
    """Copy a nested state with its tensors to host memory, as training goes on to change it."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: host_copy(item) for key, item in value.items()}
    return [host_copy(item) for item in value] if isinstance(value, list) else value


def load_checkpoint(path: Path, args: Namespace) -> State:
    """Read a checkpoint to host memory, unless the options ask for another model."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name in MODEL_OPTIONS:
        asked, has, option = getattr(args, name), state["arguments"][name], name.replace("_", "-")
        if asked != has:
            fail(
                f"--{option} is {asked}, but {has} in the checkpoint {path}",
                f"give --{option} {has}, or another --run-name",
            )
    return state


def read_metrics(path: Path, last_step: int) -> list[dict[str, float]]:
    """Return the metrics up to a step; a crash may have left more, and half a line."""
    metrics: list[dict[str, float]] = []
    with suppress(FileNotFoundError, ValueError), path.open(encoding="utf-8") as lines:
        for line in lines:
            metrics.append(json.loads(line))
    return [line for line in metrics if line["step"] <= last_step]


class Recorder:
    """Each step's metrics as JSON lines, for TensorBoard, and as a line of progress."""

    def __init__(self, folder: Path, done: int, args: Namespace) -> None:
        self.steps = args.steps
        self.tokens_per_step = args.batch_size * args.sequence_length
        path, partial = folder / "metrics.jsonl", folder / "metrics.partial"
        folder.mkdir(parents=True, exist_ok=True)
        kept = read_metrics(path, done)
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        self.lines = partial.replace(path).open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
        self.first: tuple[int, float] | None = None
        self.shown = -math.inf

    def record(self, step: int, loss: float, rate: float, seconds: float) -> None:
        """Record a step: loss in nats per token, learning rate, and the time it took."""
        speed = self.tokens_per_step / seconds
        metrics = {"loss": loss, "learning_rate": rate, "tokens_per_s": speed, "seconds": seconds}
        self.lines.write(json.dumps({"step": step, **metrics}) + "\n")
        self.lines.flush()
        for name, value in metrics.items():
            self.board.add_scalar(name, value, step)
        now = time.monotonic()
        # The first step tells nothing about the others: it compiles and warms up.
        first_step, first_time = self.first = self.first or (step, now)
        left = (self.steps - step) * (now - first_time) / max(1, step - first_step)
        line = f"step {step}/{self.steps}  loss {loss:.4f}  {speed:,.0f} tokens/s"
        line += f"  {timedelta(seconds=round(left))} left" if step > first_step else ""
        if sys.stdout.isatty():
            print(f"\r\033[K{line}", end="", flush=True)
        elif now - self.shown >= 10 or step == self.steps:
            print(line, flush=True)
            self.shown = now

    def close(self) -> None:
        """End the line of progress and write what is buffered."""
        if sys.stdout.isatty():
            print()
        self.lines.close()
        self.board.close()


def draw_loss(metrics: list[dict[str, float]], title: str, path: Path) -> None:
    """Draw the loss of each step and their moving average as PNG."""
    from matplotlib.figure import Figure  # only the end of a run needs the second that it takes

    steps, losses = [line["step"] for line in metrics], [line["loss"] for line in metrics]
    window = np.ones(1 + len(losses) // 25)
    averages = np.convolve(losses, window, "same") / np.convolve(
        np.ones(len(losses)), window, "same"
    )
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps, averages, color="tab:blue", linewidth=2, label="moving average")
    axes.set(title=title, xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    partial = path.with_suffix(".partial")
    figure.savefig(partial, format="png", dpi=150)
    partial.replace(path)


class Trainer:
    """Model, optimizer and data of a run, and the steps it takes.

    Parameters
    ----------
    args : Namespace
        The command line.
    process : Process
        This process among all.
    tokens : numpy.ndarray
        Training data, ids of all documents in a row.
    state : dict or None
        Checkpoint to go on from.
    """

    def __init__(
        self, args: Namespace, process: Process, tokens: np.ndarray, state: State | None
    ) -> None:
        self.args, self.process, self.tokens = args, process, tokens
        self.stop = stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: stop.set())
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
            self.optimizer.load_state_dict(state["optimizer"])
        model = DistributedDataParallel(gpt) if process.world_size > 1 else gpt
        # Compiled with its messages, so that they overlap with the backward pass.
        self.model = torch.compile(model) if args.compile else model

    def state(self, step: int) -> State:
        """Return what a checkpoint holds."""
        return {
            "step": step,
            "model": self.gpt.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "arguments": json.loads(json.dumps(vars(self.args), default=str)),
        }

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this rank's inputs and targets, ids (batch size / world size, length).

        All ranks together have the same batch whatever the world size.
        """
        args, process = self.args, self.process
        length = args.sequence_length + 1
        ends = np.random.default_rng((args.seed, step)).integers(
            length, self.tokens.size, size=args.batch_size, endpoint=True
        )
        mine = ends[process.rank :: process.world_size]
        rows = np.stack([self.tokens[end - length : end] for end in mine])
        ids = torch.from_numpy(rows.astype(np.int64))
        if process.device.type == "cuda":
            ids = ids.pin_memory().to(process.device, non_blocking=True)
        return ids[:, :-1], ids[:, 1:]

    def learning_rate(self, step: int) -> float:
        """Return a step's rate: a linear warm-up, then half a cosine, down to a tenth."""
        args = self.args
        if step <= args.warmup_steps:
            return args.learning_rate * step / args.warmup_steps
        progress = (step - args.warmup_steps) / (args.steps - args.warmup_steps)
        return args.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))

    def take(self, step: int) -> tuple[float, bool]:
        """Update the weights; return the loss before it, and whether any rank is to stop."""
        process = self.process
        draws = np.random.default_rng((self.args.seed, step, process.rank))
        torch.manual_seed(int(draws.integers(2**63)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        is_gpu = process.device.type == "cuda"
        with torch.autocast(process.device.type, torch.bfloat16, enabled=is_gpu):
            loss = self.model(*self.batch(step))
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.gpt.parameters(), self.args.clip_norm)
        stop = torch.tensor(float(self.stop.is_set()), device=process.device)
        mean_loss, mean_norm, stops = process.mean(torch.stack((loss.detach(), norm, stop)))
        if not math.isfinite(mean_loss) or not math.isfinite(mean_norm):
            what = f"loss {mean_loss}, norm of the gradient {mean_norm}"
            fail(f"training diverged at step {step}: {what}", "lower the --learning-rate")
        self.optimizer.step()
        return mean_loss, stops > 0

    def train(self, done: int, checkpoints: Checkpoints) -> int:
        """Take the steps that are left; return the last one taken."""
        args = self.args
        recorder = Recorder(checkpoints.folder, done, args) if self.process.rank == 0 else None
        try:
            for step in range(done + 1, args.steps + 1):
                begin = time.perf_counter()
                loss, stops = self.take(step)
                if recorder:
                    seconds = time.perf_counter() - begin
                    recorder.record(step, loss, self.learning_rate(step), seconds)
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
    """Say what came of the run, and draw the loss curve of a finished one."""
    checkpoint, curve = checkpoints.path(step), checkpoints.folder / "loss.png"
    if step < args.steps:
        print(f"stopped by a signal after step {step} of {args.steps}")
        print(f"the same command goes on from {checkpoint}")
        return
    print(f"finished    step {step} of {args.steps}")
    metrics = read_metrics(checkpoints.folder / "metrics.jsonl", step)
    if metrics:
        losses = [line["loss"] for line in metrics]
        last = losses[-20:]  # one batch alone says little
        speed = statistics.median(line["tokens_per_s"] for line in metrics)
        draw_loss(metrics, f"Training loss of {args.run_name}", curve)
        end = f"{statistics.fmean(last):.4f} over the last {len(last)} steps"
        print(f"loss        {losses[0]:.4f} at first, {end}")
        print(f"speed       {speed:,.0f} tokens/s")
        print(f"loss curve  {curve}")
    print(f"checkpoint  {checkpoint}")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show each option's default, and the description as it is written."""


def parse_arguments() -> Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    scratch = Path(os.environ.get("LONGSHIP_SCRATCH_DIR", "."))
    checkpoints = Path(os.environ.get("LONGSHIP_CHECKPOINT_DIR", scratch / "checkpoints"))
    has_gpu, yes_or_no = torch.cuda.is_available(), argparse.BooleanOptionalAction
    data = scratch / "data" / "corpus_text_document"

    add = parser.add_argument_group("run").add_argument
    add("--data", type=Path, default=data, metavar="PREFIX", help="dataset, without .bin and .idx")
    add("--checkpoint-dir", type=Path, default=checkpoints, help="folder of all runs")
    add("--run-name", default="gpt", help="folder of this run")
    add("--checkpoint-every", type=int, default=100, help="steps from checkpoint to checkpoint")
    add("--device", choices=("cpu", "cuda"), default="cuda" if has_gpu else "cpu", help="cuda: GPU")
    add("--compile", action=yes_or_no, default=has_gpu, help="compile the model")

    add = parser.add_argument_group("model").add_argument
    add("--layers", type=int, default=4, help="transformer layers")
    add("--heads", type=int, default=4, help="attention heads per layer")
    add("--width", type=int, default=128, help="features per token")
    add("--vocab-size", type=int, default=0, help="tokens in the vocabulary; 0: as the data has")

    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, default=400, help="updates of the weights")
    about = "sequences per step, of all ranks together; 0: 8, or more where the ranks want it"
    add("--batch-size", type=int, default=0, help=about)
    add("--sequence-length", type=int, default=128, help="tokens per sequence")
    add("--learning-rate", type=float, default=3e-3, help="highest, at the end of the warm-up")
    add("--warmup-steps", type=int, default=20, help="steps of the warm-up")
    add("--weight-decay", type=float, default=0.1, help="of matrices")
    add("--clip-norm", type=float, default=1.0, help="longest gradient")
    add("--dropout", type=float, default=0.0, help="probability in each residual branch")
    add("--seed", type=int, default=1, help="of weights, batches and dropout")
    return parser.parse_args()


def check_arguments(args: Namespace, tokens: np.ndarray, world_size: int) -> None:
    """Fill in the data's vocabulary size, and refuse what cannot work together."""
    record = Path(f"{args.data}.record.json")
    if not args.vocab_size and not record.is_file():
        fail(f"the vocabulary size is unknown: {record} is missing", "give it with --vocab-size")
    if not args.vocab_size:
        args.vocab_size = json.loads(record.read_text("utf-8"))["result"]["vocab_size"]
    if not args.batch_size:
        args.batch_size = math.ceil(8 / world_size) * world_size
    if args.batch_size % world_size:
        hint = f"choose a --batch-size that {world_size} divides"
        fail(f"a batch of {args.batch_size} does not divide among {world_size} ranks", hint)
    if args.width % (2 * args.heads):
        hint = "choose a --width that twice the --heads divides"
        fail(f"a width of {args.width} is not {args.heads} heads of an even width", hint)
    if tokens.size <= args.sequence_length:
        fail(f"{args.data}.bin has only {tokens.size} tokens", "choose a lower --sequence-length")


def main() -> None:
    """Train to the last step, from the newest checkpoint where there is one."""
    args = parse_arguments()
    tokens = open_tokens(args.data)
    process = Process.join(args.device)
    check_arguments(args, tokens, process.world_size)
    checkpoints = Checkpoints(args.checkpoint_dir / args.run_name)
    newest = process.from_rank_0(checkpoints.newest() if process.rank == 0 else None)
    state = load_checkpoint(newest, args) if newest else None
    step = state["step"] if state else 0
    if step < args.steps:
        if process.rank == 0:
            place = f"{process.world_size} x {process.device.type}"
            print(f"from {newest or 'the beginning'} to step {args.steps} on {place}", flush=True)
        step = Trainer(args, process, tokens, state).train(step, checkpoints)
    if process.rank == 0:
        summarize(step, checkpoints, args)
    if process.world_size > 1:
        dist.destroy_process_group()
        # All is written. The interpreter's own end would race with gloo's threads, which a data
        # parallel module keeps alive: one that frees a tensor then aborts the process.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
