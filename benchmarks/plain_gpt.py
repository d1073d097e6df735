"""A plain version of train.py's model, for comparison: no checkpoints, no metrics files.

Sizes, data, batches, optimizer and clipping are those of train.py; attention, rotary positions,
SwiGLU and the loss are the same formulas in plain PyTorch. Prints the median tokens per second.

    python benchmarks/plain_gpt.py DATASET --vocab-size N [sizes as in train.py]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

WARM_UP = 5  # steps that do not count


class Layer(nn.Module):
    """Attention, then SwiGLU, each with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        hidden = 64 * math.ceil(8 * width / 3 / 64)
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Map activations to activations, both (batch, length, width)."""
        h = self.norms[0](x)
        parts = (part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.parts)
        query, key, value = parts
        query, key = (rotated(each, turn) for each in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """Query, key and value."""
        return self.query, self.key, self.value


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the two halves of each head; `turn` contains cosines and sines."""
    (cos, sin), (one, two) = turn, x.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1).type_as(x)


class Plain(nn.Module):
    """Embedding, layers, tied output."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64 * math.ceil(args.vocab_size / 64), args.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        frequencies = 1e4 ** -torch.arange(0, 1, 2 * args.heads / args.width)
        angles = torch.outer(torch.arange(args.sequence_length), frequencies)
        self.register_buffer("turn", torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.turn)
        logits = self.norm(x) @ self.embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main() -> None:
    """Train for some steps and print the speed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    for name in ("vocab-size", "layers", "heads", "width", "sequence-length"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("batch-size", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = np.memmap(f"{args.data}.bin", np.uint16, mode="r")
    torch.manual_seed(1)
    with torch.device(device):
        model = Plain(args)
    step_model = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    random, length, seconds = np.random.default_rng(1), args.sequence_length + 1, []
    for _ in range(args.steps):
        begin = time.perf_counter()
        starts = random.integers(tokens.size - length, size=args.batch_size)
        rows = np.stack([tokens[start : start + length] for start in starts])
        ids = torch.from_numpy(rows.astype(np.int64)).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = step_model(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()  # waits for the device, like train.py
        seconds.append(time.perf_counter() - begin)
    print(args.batch_size * args.sequence_length / statistics.median(seconds[WARM_UP:]))


if __name__ == "__main__":
    main()
