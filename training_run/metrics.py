"""The metrics of a run: one line of JSON per step, TensorBoard, a progress line, a loss curve."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from training_run import unfinished


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
    """Writes the metrics of each step as JSON Lines, for TensorBoard, and as a progress line.

    Parameters
    ----------
    directory : Path
        The run's directory.
    done, steps : int
        Step that the run resumes from, and its last one.
    tokens_per_step : int
        Tokens of all ranks.
    """

    def __init__(self, directory: Path, done: int, steps: int, tokens_per_step: int) -> None:
        self.steps, self.tokens_per_step = steps, tokens_per_step
        path = directory / "metrics.jsonl"
        kept, damaged = read_metrics(path, done)
        if damaged:
            copy = shutil.copy(path, directory / "metrics.damaged")
            warning = f"cannot read {damaged} lines of {path}; all lines are kept in {copy}"
            print(f"warning: {warning}", file=sys.stderr)
        partial = unfinished(path)
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
        self._show(step, metrics)

    def _show(self, step: int, metrics: dict[str, float]) -> None:
        now = time.monotonic()
        # The first step is not representative: it compiles and warms up.
        first_step, first_time = self.first = self.first or (step, now)
        left = (self.steps - step) * (now - first_time) / max(1, step - first_step)
        validation = metrics.get("validation_loss")
        line = f"step {step}/{self.steps}  loss {metrics['loss']:.4f}"
        line += f"  validation {validation:.4f}" if validation else ""
        line += f"  {metrics['tokens_per_s']:,.0f} tokens/s"
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


def summarize(directory: Path, last_step: int) -> None:
    """Print losses and speed of a finished run, and draw its loss curve."""
    metrics, _ = read_metrics(directory / "metrics.jsonl", last_step)
    if not metrics:
        return
    losses = [line["loss"] for line in metrics]
    last = losses[-20:]  # a single batch says little
    end = f"{statistics.fmean(last):.4f} over the last {len(last)} steps"
    print(f"loss        {losses[0]:.4f} at the start, {end}")
    if "validation_loss" in metrics[-1]:
        print(f"validation  {metrics[-1]['validation_loss']:.4f} after the last step")
    speed = statistics.median(line["tokens_per_s"] for line in metrics)
    print(f"speed       {speed:,.0f} tokens/s")
    curve = directory / "loss.png"
    draw_loss(metrics, f"Training loss of {directory.name}", curve)
    print(f"loss curve  {curve}")


def draw_loss(metrics: list[dict[str, float]], title: str, path: Path) -> None:
    """Draw the loss of each step and their moving average as PNG."""
    from matplotlib.figure import Figure  # takes a second, so only at the end of a run

    steps, losses = [line["step"] for line in metrics], [line["loss"] for line in metrics]
    window = 1 + len(losses) // 25
    averages = np.convolve(losses, np.full(window, 1 / window), "valid")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps[window - 1 :], averages, color="tab:blue", linewidth=2, label="moving average")
    validated = [line for line in metrics if "validation_loss" in line]
    if validated:
        points = [(line["step"], line["validation_loss"]) for line in validated]
        axes.plot(*zip(*points), color="tab:orange", marker="o", markersize=4, label="validation")
    axes.set(title=title, xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    partial = unfinished(path)
    figure.savefig(partial, format="png", dpi=150)
    partial.replace(path)
