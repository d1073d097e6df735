"""What each method does besides training: record metrics and method, and stop on a signal."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState
from trl import GRPOConfig

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.metrics import MetricsFile, peak_flops  # noqa: E402


def any_has(stop: threading.Event, training: TrainingArguments) -> bool:
    """Agree with all ranks whether one has the signal, which reaches them at different times."""
    found = torch.tensor(float(stop.is_set()), device=training.device)
    if training.world_size > 1:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())


class StopAtSignal(TrainerCallback):
    """Write a checkpoint and end the training after the step in which a rank received a signal."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """End after this step if a rank has the signal."""
        if any_has(self.stop, args):
            self.stop.set()
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Skip the work at the end of an epoch, because a signal cut this epoch short."""
        if control.should_training_stop and self.stop.is_set():
            control.should_save = control.should_evaluate = False


class RecordMethod(TrainerCallback, ExportableState):
    """Record the method in the state of each checkpoint, which only the same method may resume."""

    def __init__(self, method: str) -> None:
        self.method = method

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what the trainer writes to `trainer_state.json`."""
        return {"args": {"method": self.method}, "attributes": {}}

    @staticmethod
    def read(state: TrainerState) -> str:
        """Return the method of a checkpoint; without a record it is supervised fine-tuning."""
        record = state.stateful_callbacks.get("RecordMethod")
        return record["args"]["method"] if record else "sft"


class RecordMetrics(TrainerCallback):
    """Write `metrics.jsonl`, in the form of all stacks: a line for each logged step.

    Parameters
    ----------
    directory : Path
        The run's directory.
    weights : int
        Number of trained parameters outside the embeddings, for the MFU; 0: the run has none.
    """

    def __init__(self, directory: Path, weights: int) -> None:
        self.directory, self.weights = directory, weights
        self.line: dict[str, float | None] = {}
        # The trainer's count of tokens; None after a pause between two logged steps.
        self.tokens: float | None = 0
        self.step, self.since = 0, 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock."""
        if state.is_world_process_zero:
            self.file = MetricsFile(self.directory)
        if isinstance(args, GRPOConfig):  # its count goes on; the others' begins anew
            self.tokens = state.num_input_tokens_seen
        self.step, self.since = state.global_step, time.perf_counter()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the line of the step before, which an evaluation may have completed."""
        self._write(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the last line."""
        self._write(state)
        if state.is_world_process_zero:
            self.file.close()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Leave the time of writing a checkpoint out."""
        self._pause(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **_: Any,
    ) -> None:
        """Collect what belongs to one line; leave the time of an evaluation out."""
        if "eval_loss" in logs:
            self.line["validation_loss"] = logs["eval_loss"]
        if "loss" in logs:
            self.line = self._measured(args, state, logs)
            self.step, self.tokens = state.global_step, logs.get("num_tokens")
        self._pause(state)

    def _measured(
        self, args: TrainingArguments, state: TrainerState, logs: dict[str, float]
    ) -> dict[str, float | None]:
        seconds, speed = time.perf_counter() - self.since, None
        # GRPO counts none in a step that generates none.
        if self.tokens is not None and "num_tokens" in logs:
            speed = (logs["num_tokens"] - self.tokens) / seconds
        peak = peak_flops(torch.cuda.get_device_name()) if args.device.type == "cuda" else None
        is_known = speed and peak and self.weights
        return {
            "loss": logs["loss"],
            "grad_norm": logs.get("grad_norm"),
            "learning_rate": logs["learning_rate"],
            "tokens_per_s": speed,
            "seconds": seconds / (state.global_step - self.step),
            "reward": logs.get("reward"),
            "reward_margin": logs.get("rewards/margins"),
            "reward_accuracy": logs.get("rewards/accuracies"),
            "mfu": 6 * self.weights * speed / (peak * args.world_size) if is_known else None,
        }

    def _pause(self, state: TrainerState) -> None:
        if state.global_step != self.step:
            self.tokens = None
        self.step, self.since = state.global_step, time.perf_counter()

    def _write(self, state: TrainerState) -> None:
        if "loss" in self.line and state.is_world_process_zero:
            self.file.write(state.global_step, self.line)
            print(f"step {state.global_step}", flush=True)  # by which a chain sees progress
        self.line = {}
