"""The directory of a run: its lock and its checkpoints.

A checkpoint is `step-00000100.pt`: the state after this step in PyTorch's own format, and then a
checksum, which torch.load ignores. It has this name only when it is complete. If it is damaged, the
run resumes from the one before.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training_run import fail, unfinished
from training_run.directory_lock import DirectoryLock, lock_run

KEPT = 2  # checkpoints
CHECKSUM_BYTES = hashlib.sha256().digest_size


class RunDirectory:
    """The directory of a run; rank 0 opens it and writes to it.

    Parameters
    ----------
    path : Path
        The directory; it is created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: DirectoryLock  # only on the rank that calls open()
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def open(self) -> Path | None:
        """Create and lock the directory; return the newest intact checkpoint."""
        self.lock = lock_run(self.path, "another --checkpoint-dir or --run-name")
        for left in self.path.glob("*.partial"):  # from killed processes
            if not left.is_dir():  # which is of an export
                left.unlink(missing_ok=True)
        for path in reversed(self._checkpoints()):
            if is_intact(path):
                return path
            damaged = path.replace(path.with_suffix(".damaged"))
            print(f"warning: skipping a damaged checkpoint: {damaged}", file=sys.stderr)
        return None

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint after a step."""
        return self.path / f"step-{step:08d}.pt"

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy a state and write it in the background, after the previous one."""
        self.wait()
        self._pending = self._writer.submit(self._write, self.checkpoint(step), host_copy(state))

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        try:
            if self._pending:
                self._pending.result()
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            fail(f"cannot write a checkpoint: {error}", f"free some space in {self.path}")
        self.lock.check()

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("step-*.pt"))

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        partial = unfinished(path)
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            file.write(hashlib.sha256(np.memmap(partial, mode="r")).digest())
            file.flush()
            os.fsync(file.fileno())
        if not self.lock.is_held():  # lost to another process during a slow write
            partial.unlink()
            return
        partial.replace(path)
        for old in self._checkpoints()[:-KEPT]:
            old.unlink()


def is_intact(checkpoint: Path) -> bool:
    """Compare a checkpoint with the checksum at its end."""
    if not checkpoint.stat().st_size:
        return False
    content = np.memmap(checkpoint, mode="r")
    checksum = content[-CHECKSUM_BYTES:].tobytes()
    return hashlib.sha256(content[:-CHECKSUM_BYTES]).digest() == checksum


def host_copy(value: Any) -> Any:
    """Copy a nested state with its tensors to host memory, because training changes it."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: host_copy(item) for key, item in value.items()}
    return [host_copy(item) for item in value] if isinstance(value, list) else value
