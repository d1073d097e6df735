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
import json
import math
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

# PyTorch reads these when it is loaded. By default waiting threads spin for 3 ms, which takes the
# cores from other work on a laptop or login node; if they sleep at once, an idle CPU trains at two
# thirds of its speed. GNU's OpenMP lets them spin for 0.1 ms; others only know to sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
# Until there is a step to save, Ctrl-C ends the program without a traceback.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from training_run import fail, lacks_package

try:
    import numpy as np
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel
except ModuleNotFoundError as error:
    lacks_package("train.py", error)

from training_run.megatron_data import checksum_of, open_tokens, record_files, recorded
from training_run.metrics import Recorder, peak_flops, summarize
from training_run.process import Process, Stop
from training_run.run_directory import RunDirectory

State = dict[str, Any]
Data = tuple[np.ndarray, np.ndarray]
HELD_OUT = 0.05  # of the documents
MODEL_OPTIONS = ("vocab_size", "layers", "heads", "width")
TRAINING_OPTIONS = (
    *("batch_size", "sequence_length", "learning_rate", "warmup_steps", "weight_decay"),
    *("clip_norm", "dropout", "seed", "validation_fraction"),
)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show the defaults, and keep the line breaks of the description."""


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
    hint = "list all options: python3 container_run.py python train.py --help"
    parser.error = lambda message: fail(message, hint, code=2)
    scratch = Path(os.environ.get("LONGSHIP_SCRATCH_DIR", "."))
    checkpoints = Path(os.environ.get("LONGSHIP_CHECKPOINT_DIR", scratch / "checkpoints"))
    data = scratch / "data" / "corpus_text_document"
    has_gpu, yes_or_no = torch.cuda.is_available(), argparse.BooleanOptionalAction
    devices, device = ("cpu", "cuda"), "cuda" if has_gpu else "cpu"
    count, positive = number(int, 0), number(int, 1)
    size, share = number(float, 0), number(float, 0, 1)

    add = parser.add_argument_group("run").add_argument
    add("--data", type=Path, default=data, metavar="PREFIX", help="dataset, without .bin and .idx")
    add("--checkpoint-dir", type=Path, default=checkpoints, help="directory of all runs")
    add("--run-name", default="gpt", help="directory of this run")
    add("--checkpoint-every", type=positive, default=100, help="steps between checkpoints")
    add("--device", choices=devices, default=device, help="training device")
    add("--compile", action=yes_or_no, default=has_gpu, help="compile the model")

    add = parser.add_argument_group("model").add_argument
    add("--layers", type=positive, default=4, help="transformer layers")
    add("--heads", type=positive, default=4, help="attention heads per layer")
    add("--width", type=positive, default=128, help="hidden size")
    add("--vocab-size", type=count, default=0, help="vocabulary size; 0: that of the dataset")

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
    add("--seed", type=number(int, 0, 2**63), default=1, help="seed of weights, batches, dropout")

    add = parser.add_argument_group("validation").add_argument
    about = "share of the documents to hold out, from the end; 0: no validation "
    about += f"(default: {HELD_OUT}, or 0 if these are shorter than a sequence)"
    add("--validation-fraction", type=share, default=argparse.SUPPRESS, help=about)
    add("--validate-every", type=positive, default=100, help="steps between validations")
    about = "sequences per validation, spread over the held-out documents"
    add("--validation-sequences", type=positive, default=64, help=about)
    args = parser.parse_args(namespace=Namespace(validation_fraction=None))
    if args.device == "cuda" and not has_gpu:
        parser.error("--device is cuda, but PyTorch finds no GPU")
    return args


def check_arguments(args: Namespace, training: int, held_out: int, world_size: int) -> None:
    """Fill in the default sizes, and refuse incompatible options.

    `training` and `held_out` are the numbers of tokens to train on, and to validate on.
    """
    args.tokenizer_sha256 = recorded(args.data, "made_from", "tokenizer_sha256")
    vocab_size = recorded(args.data, "result", "vocab_size") or args.vocab_size
    if not vocab_size:
        message = f"the vocabulary size is unknown: cannot read {args.data}.record.json"
        fail(message, "give it with --vocab-size")
    args.vocab_size = args.vocab_size or vocab_size
    if args.vocab_size < vocab_size:
        hint = f"give --vocab-size {vocab_size}, or leave it out"
        fail(f"--vocab-size is {args.vocab_size}, but {args.data} has {vocab_size} tokens", hint)
    args.batch_size = args.batch_size or math.ceil(8 / world_size) * world_size
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
        gate, up = split_linear(self.gate_and_up, self.mlp_norm(x), 2)
        return x + self.dropout(self.mlp_out(F.silu(gate) * up))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Let every position attend to itself and earlier ones; x is (batch, length, width)."""
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in split_linear(self.query_key_value, x, 3)
        )  # (batch, heads, length, head width) each
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


def split_linear(linear: nn.Linear, x: Tensor, parts: int) -> list[Tensor]:
    """Return the output of a layer in equal parts of its features.

    Each is a product of its own: the gradient of a single one would have to be joined from parts.
    """
    return [F.linear(x, weight) for weight in linear.weight.chunk(parts)]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of features of x, (batch, heads, length, head width), by each position's angles.

    `cos` and `sin` are those of the angles, (length, head width / 2).
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(x)


class GPT(nn.Module):
    """Decoder-only transformer with tied embeddings; the options give its sizes."""

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


class Trainer:
    """Model, optimizer and data of a run, and its steps.

    `data` are the training and the held-out tokens; `state` is the checkpoint to resume from.
    """

    def __init__(self, args: Namespace, process: Process, data: Data, state: State | None) -> None:
        self.args, self.process = args, process
        self.tokens, self.held_out = data
        self.upcoming: list[tuple[Tensor, Tensor]] = []  # micro-batches of the next step
        self.stop = Stop()
        device_type = process.device.type
        self.bfloat16 = torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda")
        torch.manual_seed(args.seed)
        with process.device:  # a GPU draws billions of weights in a moment
            self.gpt = gpt = GPT(args)
        gains = [weight for weight in gpt.parameters() if weight.dim() < 2]
        matrices = [weight for weight in gpt.parameters() if weight.dim() == 2]
        groups = [{"params": matrices}, {"params": gains, "weight_decay": 0.0}]
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

    def micro_batches(self, data: np.ndarray, ends: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets, ids (micro-batch size, length), of this rank's sequences.

        `ends` are the ends in `data` of the sequences of all ranks, whatever their number.
        """
        args, process = self.args, self.process
        length = args.sequence_length + 1
        mine = ends[process.rank :: process.world_size]
        size = args.micro_batch_size or args.batch_size // process.world_size
        for begin in range(0, mine.size, size):
            rows = np.stack([data[end - length : end] for end in mine[begin : begin + size]])
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

    def take(self, step: int) -> tuple[dict[str, float], bool]:
        """Update the weights; return the metrics of the step, and whether any rank has to stop."""
        args, process = self.args, self.process
        draws = np.random.default_rng((args.seed, step, process.rank))
        torch.manual_seed(int(draws.integers(2**63)))
        rate = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.accumulate_gradient(self.upcoming or self.batches(step))
        norm = nn.utils.clip_grad_norm_(self.gpt.parameters(), args.clip_norm or math.inf)
        self.optimizer.step()
        # Read while a GPU works: the next line waits for it.
        self.upcoming = self.batches(step + 1) if step < args.steps else []
        stop = torch.tensor(float(self.stop.asked), device=process.device)
        mean_loss, mean_norm, stops = process.mean(torch.stack((loss, norm, stop)))
        if not math.isfinite(mean_loss) or not math.isfinite(mean_norm):  # nothing is saved then
            values = f"loss {mean_loss}, gradient norm {mean_norm}"
            fail(f"training diverged at step {step}: {values}", "reduce --learning-rate")
        return {"loss": mean_loss, "grad_norm": mean_norm, "learning_rate": rate}, stops > 0

    def batches(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """Return the micro-batches of a step of this rank, on its device."""
        args = self.args
        ends = np.random.default_rng((args.seed, step)).integers(
            args.sequence_length + 1, self.tokens.size, size=args.batch_size, endpoint=True
        )
        return list(self.micro_batches(self.tokens, ends))

    def accumulate_gradient(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Accumulate the gradient of a step over its micro-batches; return this rank's loss."""
        args, process = self.args, self.process
        share = args.batch_size // process.world_size
        total = torch.zeros((), device=process.device)
        self.optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(batches, 1):
            # The ranks average their gradients only once, in the last backward pass.
            is_synced = process.world_size == 1 or number == len(batches)
            with nullcontext() if is_synced else self.model.no_sync():
                with self.bfloat16:
                    loss = self.model(inputs, targets) * (len(inputs) / share)
                loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean loss on the same held-out sequences each time."""
        first, last = self.args.sequence_length + 1, self.held_out.size
        ends = np.linspace(first, last, self.args.validation_sequences).astype(np.int64)
        total = torch.zeros(2, device=self.process.device)
        self.gpt.eval()
        for inputs, targets in self.micro_batches(self.held_out, ends):
            with self.bfloat16:
                # The plain model, because the compiled one would be compiled again for evaluation.
                loss = self.gpt(inputs, targets)
            count = torch.full_like(loss, len(inputs))
            total += torch.stack((loss * count, count))
        self.gpt.train()
        loss_sum, sequences = self.process.mean(total)
        return loss_sum / sequences

    def mfu_per_token(self) -> float | None:
        """Return the MFU of a speed of one token per second; None if the device is not known."""
        args, process = self.args, self.process
        peak = peak_flops(torch.cuda.get_device_name()) if process.device.type == "cuda" else None
        # Forward and backward: 6 per weight, and half of attention's products, which is causal.
        weights = sum(weight.numel() for weight in self.gpt.parameters())
        flops = 6 * weights + 6 * args.layers * args.width * args.sequence_length
        return flops / (peak * process.world_size) if peak else None


def load_checkpoint(path: Path, args: Namespace) -> tuple[State, list[str]]:
    """Read a checkpoint to host memory; return it, and the options that have changed since.

    Fails if the options describe another model, or the data are of another tokenizer.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    changes = []
    tokenizers = {args.tokenizer_sha256, state["arguments"].get("tokenizer_sha256")} - {None}
    if len(tokenizers) > 1:
        message = f"{args.data} was made with another tokenizer than the data of {path}"
        fail(message, "give --data of the first tokenizer, or another --run-name")
    for name in (*MODEL_OPTIONS, *TRAINING_OPTIONS):
        option, given = f"--{name.replace('_', '-')}", getattr(args, name)
        saved = state["arguments"].get(name, given)  # missing in a checkpoint of an older train.py
        if given != saved and name in MODEL_OPTIONS:
            message = f"{option} is {given}, but {saved} in the checkpoint {path}"
            fail(message, f"give {option} {saved}, or another --run-name")
        if given != saved:
            changes.append(f"{option} {given} (was {saved})")
    if state["arguments"].get("data_checksum", args.data_checksum) != args.data_checksum:
        changes.append(f"--data {args.data} has other data (was {state['arguments']['data']})")
    return state, changes


def train(trainer: Trainer, run: RunDirectory, done: int) -> int:
    """Take the steps after `done`, and record them; return the last one."""
    args, recorder = trainer.args, None
    if trainer.process.rank == 0:
        record_files(args.data)
        tokens = args.batch_size * args.sequence_length
        recorder = Recorder(run.path, done, args.steps, tokens, trainer.mfu_per_token())
    try:
        for step in range(done + 1, args.steps + 1):
            begin = time.perf_counter()
            metrics, stops = trainer.take(step)
            seconds = time.perf_counter() - begin
            is_last = stops or step == args.steps
            if trainer.held_out.size and (step % args.validate_every == 0 or step == args.steps):
                metrics["validation_loss"] = trainer.validate()
            if recorder:
                recorder.record(step, metrics, seconds)
                if is_last or step % args.checkpoint_every == 0:
                    run.save(step, trainer.state(step))
            if is_last:
                break
    finally:
        if recorder:
            recorder.close()
    if recorder:
        run.wait()
    return step


def main() -> None:
    """Train to the last step, from the newest checkpoint if one exists."""
    args = parse_arguments()
    if args.validation_fraction is None:
        held_out = open_tokens(args.data, HELD_OUT)[1].size
        args.validation_fraction = HELD_OUT if held_out > args.sequence_length else 0.0
    data = open_tokens(args.data, args.validation_fraction)
    process = Process.join(args.device)
    check_arguments(args, data[0].size, data[1].size, process.world_size)
    run = RunDirectory(args.checkpoint_dir / args.run_name)
    newest = process.on_rank_0(run.open)
    args.data_checksum = process.on_rank_0(lambda: checksum_of(args.data))
    state, changes = load_checkpoint(newest, args) if newest else (None, [])
    step = state["step"] if state else 0
    if step >= args.steps and process.rank == 0:
        print(f"nothing to train: {newest} has step {step} of {args.steps}")
        print("to train from the beginning, choose another --run-name", flush=True)
    if step < args.steps:
        if process.rank == 0:
            start = newest or "the beginning"
            place = f"{process.world_size} x {process.device.type}"
            print(f"training from {start} to step {args.steps} on {place}", flush=True)
            if changes:
                warning = f"the run continues with other options: {', '.join(changes)}"
                hint = "to start from the beginning, choose another --run-name"
                print(f"warning: {warning}\nhint: {hint}", file=sys.stderr)
        step = train(Trainer(args, process, data, state), run, step)
    if process.rank == 0:
        if step < args.steps:
            print(f"stopped by a signal after step {step} of {args.steps}")
            print(f"run the same command to resume from {run.checkpoint(step)}")
        else:
            print(f"finished    step {step} of {args.steps}")
            summarize(run.path, step)
            print(f"checkpoint  {run.checkpoint(step)}")
        run.lock.release()
    process.leave()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        hint = "check permissions and free space"
        fail(f"cannot read or write: {error}", hint, every_rank=True)
