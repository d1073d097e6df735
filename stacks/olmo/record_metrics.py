"""Execute OLMo's training script, and write `metrics.jsonl` in the form of all stacks.

    python record_metrics.py SCRIPT [ARGUMENT...]

OLMo writes its metrics only to its log and to Weights & Biases. On the first rank, this script
replaces its trainer by one that also writes the lines. All other ranks become the training script.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def replace_trainer() -> None:
    """Let OLMo's trainer also write the lines."""
    import torch
    from olmo import OLMo, train
    from olmo.torch_util import get_world_size

    sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
    from training_run.metrics import MetricsFile, peak_flops

    class Trainer(train.Trainer):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.file = MetricsFile(Path(self.cfg.save_folder))
            self.step, self.logged, self.line = 0, {}, {}
            name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
            self.peak = peak_flops(name)
            # of the whole model: FSDP has left the model here a share of the weights
            config = self.cfg.model.update_with(init_device="meta")
            whole = OLMo(config, init_params=False)
            self.flops = whole.num_fwd_flops + whole.num_bck_flops  # of a token

        def train_step(self, batch: Any, reduce_global_loss: bool = True) -> dict[str, float]:
            self.write_line()
            metrics = super().train_step(batch, reduce_global_loss=reduce_global_loss)
            if reduce_global_loss:  # otherwise the loss is only that of this rank
                self.step, self.line = self.global_step, {"time": time.time()}
                self.logged = metrics  # fit() then adds learning rate and speed
            return metrics

        def eval(self) -> dict[str, Any]:
            metrics = super().eval()
            losses = [each for name, each in metrics.items() if name.endswith("/CrossEntropyLoss")]
            if len(losses) == 1:  # of several datasets, none is the validation's
                self.line["validation_loss"] = losses[0]
            return metrics

        def write_line(self) -> None:
            logged, line, self.logged, self.line = self.logged, self.line, {}, {}
            if not logged:
                return
            speed = logged.get("throughput/device/tokens_per_second")
            line["loss"] = logged["train/CrossEntropyLoss"]
            line["grad_norm"] = logged.get("optim/total_grad_norm")
            line["learning_rate"] = logged.get("optim/learning_rate_group0")
            if speed:  # not of the first step of a job, nor of the one after a checkpoint
                line["tokens_per_s"] = speed * get_world_size()
                line["seconds"] = 1 / logged["throughput/device/batches_per_second"]
                line["mfu"] = self.flops * speed / self.peak if self.peak else None
            self.file.write(self.step, line)

        def close(self, exit_code: int = 0) -> None:
            self.write_line()
            self.file.close()
            super().close(exit_code)

    train.Trainer = Trainer


def main() -> None:
    """Become the script, or run it with the other trainer."""
    del sys.argv[0]
    if os.environ["RANK"] != "0":
        os.execv(sys.executable, [sys.executable, *sys.argv])
    replace_trainer()
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
