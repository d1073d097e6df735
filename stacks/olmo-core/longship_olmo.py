"""What all stacks do and OLMo-core 3.0.0 does not: `metrics.jsonl`, and a stop on SIGUSR1.

A configuration of OLMo-core names the callback by its class, as on the command line of any of its
training scripts: `--trainer.callbacks.longship={"_CLASS_":"longship_olmo.RunCallback"}`.
"""

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from olmo_core.distributed.utils import all_reduce_value, get_rank, get_world_size
from olmo_core.train.callbacks import Callback
from torch.distributed import ReduceOp

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.metrics import MetricsFile, peak_flops  # noqa: E402


@dataclass
class RunCallback(Callback):
    """Write the metrics of each step, and end the run with a checkpoint if a rank gets SIGUSR1."""

    def post_attach(self) -> None:
        """Handle the signal from now on."""
        self._stop = False
        self._line_step, self._line = 0, {}
        if get_rank() == 0:
            self._file = MetricsFile(Path(self.trainer.save_folder))
        signal.signal(signal.SIGUSR1, self._handle)

    def _handle(self, *_: Any) -> None:
        self._stop = True

    def pre_train(self) -> None:
        """Keep the checkpoint of a finished run, which OLMo-core would clear and write again."""
        if self.trainer.checkpoint_loaded:
            self.trainer.callbacks["checkpointer"]._latest_checkpoint_step = self.step

    def post_step(self) -> None:
        """End the run if any rank has the signal, which reaches the ranks in different steps.

        OLMo-core's own check, for SIGTERM, ends after a step that can differ between the ranks.
        """
        device = self.trainer.bookkeeping_device
        if all_reduce_value(int(self._stop), device, ReduceOp.MAX):
            self.trainer.cancel_run("SIGUSR1 received", no_sync=True)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Collect the metrics of a step, which come in two parts if it writes a checkpoint."""
        if step != self._line_step:
            self._write()
            self._line_step, self._line = step, {"time": time.time()}
        self._line.update(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the line that is not yet written."""
        return {"step": self._line_step, "line": self._line}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the line of the step that wrote the checkpoint."""
        self._line_step, self._line = state["step"], state["line"]

    def close(self) -> None:
        """Write the last line."""
        self._write()
        if get_rank() == 0:
            self._file.close()

    def _write(self) -> None:
        found, self._line = self._line, {}
        if get_rank() != 0 or "train/CE loss" not in found:
            return
        speed = found.get("throughput/device/TPS")  # of a device, from the second step of a job on
        flops = found.get("throughput/device/flopsPS")
        device = self.trainer.device
        peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        line = {
            "time": found["time"],
            "loss": found["train/CE loss"],
            "grad_norm": found.get("optim/total grad norm"),
            "learning_rate": found.get("optim/LR (group 0)"),
            "tokens_per_s": speed and speed * get_world_size(),
            "seconds": speed and 1 / found["throughput/device/BPS"],
            "mfu": flops / peak if flops and peak else None,
            "validation_loss": found.get("eval/lm/validation/CE loss"),
        }
        self._file.write(self._line_step, line)
