"""A process of a training run: its rank, its device, and the signals that stop the run."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


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
        else:
            keep_memory()
        if world_size > 1 and device_type == "cuda":
            dist.init_process_group("nccl", device_id=device)
        elif world_size > 1:
            dist.init_process_group("gloo")
        return cls(rank, world_size, device)

    def mean(self, values: torch.Tensor) -> list[float]:
        """Average a few numbers over all ranks, in one small message."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return (values / self.world_size).tolist()

    def on_rank_0(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0; return its value on every rank, or exit if it exits."""
        value, exits = None, False
        if self.rank == 0:
            try:
                value = function()
            except SystemExit:
                exits = True
        if self.world_size > 1:
            box = [value, exits]
            dist.broadcast_object_list(box)
            value, exits = box
        if exits:
            sys.exit(1)
        return value

    def leave(self) -> None:
        """End the process, after everything is written."""
        if self.world_size > 1:
            dist.destroy_process_group()
            # The interpreter's shutdown would race with gloo's threads, which a data-parallel
            # module keeps alive: one that frees a tensor then aborts the process.
            sys.stdout.flush()
            os._exit(0)


def keep_memory() -> None:
    """Let glibc keep what a step frees, up to a gigabyte.

    By default the kernel gets it back, and zeroes it again for the next step, page by page.
    """
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    with suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 2**30)
        # no longer adapted once the other is set; this is the most that older versions take
        mallopt(mmap_threshold, 2**25)


class Stop:
    """Asks a run to stop after its step: SIGTERM, SIGUSR1 (Slurm), or SIGINT (Ctrl-C)."""

    def __init__(self) -> None:
        self.since = math.inf  # when the first signal came
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            # Ctrl-C is ignored in a background job, and stays so.
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.since < math.inf

    def _handle(self, number: int, _: Any) -> None:
        if number == signal.SIGINT and not self.asked and os.environ.get("RANK", "0") == "0":
            # Not print, which is not reentrant and could be the interrupted function.
            os.write(2, b"\nstopping with a checkpoint; Ctrl-C again ends without one\n")
        # A launcher or a container runtime can forward a signal that the terminal has also sent.
        elif number == signal.SIGINT and time.monotonic() > self.since + 1:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        self.since = min(self.since, time.monotonic())
