"""Execute Megatron-LM's training script, and write `metrics.jsonl` in the form of all stacks.

    python record_metrics.py SCRIPT [ARGUMENT...]

Megatron-LM writes TensorBoard's events with PyTorch's SummaryWriter, in its last rank. There, this
script replaces the writer by one that also writes the lines, in the parent of --tensorboard-dir.
The first rank writes the cache of indices. All other ranks become the training script.
"""

import atexit
import os
import runpy
import sys
from pathlib import Path
from typing import Any

# The tags of Megatron-LM's events; those with "vs samples" count samples instead of steps.
NAMES = {
    "lm loss": "loss",
    "lm loss validation": "validation_loss",
    "grad-norm": "grad_norm",
    "learning-rate": "learning_rate",
    "iteration-time": "seconds",  # at every --log-interval, as the next one
    "throughput": "tflops",  # of a GPU
}


def replace_writer() -> None:
    """Let PyTorch's SummaryWriter also write the lines."""
    import torch
    from torch.utils import tensorboard

    from training_run.metrics import MetricsFile, peak_flops

    class Writer(tensorboard.SummaryWriter):
        def __init__(self, log_dir: str, **options: Any) -> None:
            super().__init__(log_dir, **options)
            self.file = MetricsFile(Path(log_dir).parent)
            self.step, self.line = 0, {}
            atexit.register(self.write_line)

        def add_scalar(self, tag: str, value: Any, step: int, *more: Any, **options: Any) -> None:
            super().add_scalar(tag, value, step, *more, **options)
            if tag not in NAMES:
                return
            if step != self.step:  # an evaluation completes the line of its step
                self.write_line()
                self.step = step
            self.line.setdefault(NAMES[tag], float(value))  # the test set's loss comes last

        def write_line(self) -> None:
            line, self.line = self.line, {}
            tflops = line.pop("tflops", None)
            if "seconds" in line:
                from megatron.training import get_args

                tokens = get_args().global_batch_size * get_args().seq_length
                line["tokens_per_s"] = tokens / line["seconds"]
            peak = peak_flops(torch.cuda.get_device_name()) if tflops else None
            if peak:
                line["mfu"] = tflops * 1e12 / peak
            if "loss" in line:
                self.file.write(self.step, line)

    tensorboard.SummaryWriter = Writer


def main() -> None:
    """Become the script, or run it with the other writer."""
    del sys.argv[0]
    rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    if rank not in (0, last):
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
    from training_run.megatron_data import save_whole_files

    save_whole_files()
    if rank == last:
        replace_writer()
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
