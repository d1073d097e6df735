"""The metrics of a run: one line of JSON per step, TensorBoard, a progress line, a loss curve.

A line of `metrics.jsonl` has `step` and `time`, and where it is known `loss` (nats per token),
`tokens_per_s` of all ranks, `seconds` of the step, `grad_norm`, `learning_rate`, `validation_loss`
and `mfu`, the share of the GPUs' peak that the model's own FLOPs need. All stacks write this form.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from training_run import unfinished
from training_run.directory_lock import lock_run

# FLOP/s of a device, as PyTorch names it: bfloat16, dense, by the vendors' data sheets. PyTorch
# sees each half (GCD) of an MI250X as a device.
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "MI250X": 191.5e12,
}


def peak_flops(device: str) -> float | None:
    """Return the peak of a device in FLOP/s, by its name; None if it is not known."""
    return next((peak for name, peak in PEAK_FLOPS.items() if name in device), None)


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
                if found["step"] <= last_step and math.isfinite(found.get("loss", 0)):
                    metrics.append(found)
            except (ValueError, LookupError, TypeError):
                damaged += line.endswith("\n")
    return metrics, damaged


class MetricsFile:
    """`metrics.jsonl` in a run's directory; it has a line for every recorded step.

    Only the rank that writes it opens it, before the training begins: the directory is locked then.
    Nothing is written before the first step: what it shows of steps that a resumed run takes again
    is removed then.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = lock_run(directory)
        self.path = directory / "metrics.jsonl"
        self._lines: TextIO | None = None

    def write(self, step: int, metrics: dict[str, float | None]) -> None:
        """Write the metrics of a step without those that are None, infinite or not a number."""
        self._lock.check()
        if not self._lines:
            self._lines = self._open(step)
        known = {
            name: value
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)  # JSON has no NaN
        }
        self._lines.write(json.dumps({"step": step, "time": time.time(), **known}) + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Close the file."""
        if self._lines:
            self._lines.close()

    def _open(self, step: int) -> TextIO:
        if job := os.environ.get("RUN_DIR"):  # for submit.py report
            link = Path(job, "outputs")
            with suppress(OSError):
                link.unlink(missing_ok=True)
                link.symlink_to(self.path.parent.absolute())
        kept, damaged = read_metrics(self.path, step - 1)
        if damaged:
            copy = shutil.copy(self.path, self.path.with_suffix(".damaged"))
            warning = f"cannot read {damaged} lines of {self.path}; all lines are kept in {copy}"
            print(f"warning: {warning}", file=sys.stderr)
        partial = unfinished(self.path)
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        return partial.replace(self.path).open("a", encoding="utf-8")


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
    mfu_per_token : float or None
        MFU of a speed of one token per second; None on a device whose peak is not known.
    """

    def __init__(
        self,
        directory: Path,
        done: int,
        steps: int,
        tokens_per_step: int,
        mfu_per_token: float | None,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # other stacks may not have it

        self.steps, self.tokens_per_step, self.mfu_per_token = steps, tokens_per_step, mfu_per_token
        self.file = MetricsFile(directory)
        self.board = SummaryWriter(str(directory / "tensorboard"), purge_step=done + 1)
        self.first: tuple[int, float] | None = None
        self.shown = -math.inf

    def record(self, step: int, metrics: dict[str, float], seconds: float) -> None:
        """Record a step: its metrics, losses in nats per token, and the time it took."""
        speed = self.tokens_per_step / seconds
        metrics = {**metrics, "tokens_per_s": speed, "seconds": seconds}
        if self.mfu_per_token:
            metrics["mfu"] = speed * self.mfu_per_token
        self.file.write(step, metrics)
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
        self.file.close()
        self.board.close()


def summarize(directory: Path, last_step: int) -> None:
    """Print losses and speed of a finished run, and draw its loss curve."""
    metrics, _ = read_metrics(directory / "metrics.jsonl", last_step)
    metrics = [line for line in metrics if "loss" in line]
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
    # These take a second, so only at the end of a run.
    import numpy as np
    from matplotlib.figure import Figure

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
