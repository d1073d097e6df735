"""Lock an output directory, so that two jobs cannot write to it at once.

The trainings of all stacks but `nemo` use it, and `preprocess_data.py`. The lock is a directory
that gets its name by one rename, which is atomic on every shared file system; `flock` does not work
on all of them. Its file `owner` names the process that holds the lock, and its modification time is
refreshed every few seconds. An owner that has not refreshed it for a minute counts as ended,
independent of the clocks of the nodes; if it was only paused, it notices afterwards that it has
lost the lock.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import platform
import shlex
import shutil
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from training_run import fail

BEAT = 5.0  # seconds between refreshes
PATIENCE = 60.0  # seconds without a refresh until an owner counts as ended
UNREADABLE = "", 0  # sign of an owner that cannot be read, and so counts as alive


class DirectoryLock:
    """A lock that lasts as long as its owner refreshes it.

    Parameters
    ----------
    path : Path
        The directory to create; its parent must exist.
    beat, patience : float
        Seconds between refreshes, and without one until the owner counts as ended.
    """

    def __init__(self, path: Path, beat: float = BEAT, patience: float = PATIENCE) -> None:
        self.path = path
        self.beat, self.patience = beat, patience
        self.lost = False
        self._token = uuid.uuid4().hex
        self._own = path.with_name(f"{path.name}.{self._token}")
        self._directory = -1
        self._ended = threading.Event()

    def acquire(self, *, wait: bool = False) -> str:
        """Take the lock.

        Parameters
        ----------
        wait : bool
            Wait for any owner to end; otherwise only a requeued job waits, for its earlier start.

        Returns
        -------
        str
            The owner of the lock, or an empty string if this process now holds it.
        """
        self._make()
        begin = since = last = time.monotonic()
        before: tuple[str, int] | None = None
        is_announced = False
        try:
            while not self._move():
                sign = self._sign()
                now = time.monotonic()
                owner = parse(sign[0]) if sign else {}
                waits = wait or is_earlier_start(owner)
                if sign != before:
                    is_alive = before is not None or not owner or runs_here(owner)
                    if sign and is_alive and not waits:
                        return describe(owner)
                    before, since = sign, now
                if now - last > self.patience / 2:
                    since = now  # the file system did not answer, and so not the owner either
                last = now
                silent = now - since > self.patience
                overdue = is_earlier_start(owner) and now - begin > 2 * self.patience
                if sign and owner and (has_ended(owner) or silent or overdue):
                    self._take_over(sign[0])
                    continue
                if not is_announced and now - begin > 1:
                    text = f"waiting for the lock held by {describe(owner)}; if that process no "
                    text += f"longer exists, run: rm -r {shlex.quote(str(self.path))}"
                    print(f"note: {text}", file=sys.stderr, flush=True)
                    is_announced = True
                time.sleep(min(0.5, self.beat))
        finally:
            if self._directory < 0:
                shutil.rmtree(self._own, ignore_errors=True)
        atexit.register(self.release)
        threading.Thread(target=self._refresh, daemon=True).start()
        return ""

    def is_held(self) -> bool:
        """Check whether this process still holds the lock; an unreadable owner changes nothing."""
        sign = self._sign()
        if sign != UNREADABLE:  # a shared file system can fail for a moment
            self.lost = self.lost or sign is None or parse(sign[0]).get("token") != self._token
        return not self.lost

    def check(self) -> None:
        """Fail if another process has taken over the run, for example while this one was paused."""
        if self.lost:
            fail(
                f"another process has taken over the run in {self.path.parent}",
                "do nothing: that process resumes from the newest checkpoint",
                every_rank=True,
            )

    def release(self) -> None:
        """Release the lock if this process holds it."""
        self._ended.set()
        if self._directory >= 0 and self.is_held():
            with suppress(OSError):
                self.path.rename(self._own)
                shutil.rmtree(self._own, ignore_errors=True)
        self.lost = True
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _make(self) -> None:
        self._own.mkdir()
        self._own.chmod(0o755)  # readable for others, whatever the umask
        file = self._own / "owner"
        file.write_text(json.dumps({**identity(), "token": self._token}), "utf-8")
        file.chmod(0o644)

    def _move(self) -> bool:
        try:
            self._own.rename(self.path)  # fails if the target is a non-empty directory
        except OSError as error:
            # the owner can have released it since
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not self.path.exists():
                raise
            return False
        self._directory = os.open(self.path, os.O_RDONLY)
        return True

    def _sign(self) -> tuple[str, int] | None:
        """Read the owner and the time of its last refresh; return None without an owner."""
        try:
            with open(self.path / "owner", encoding="utf-8", errors="replace") as file:
                return file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError:
            return UNREADABLE

    def _refresh(self) -> None:
        while not self._ended.wait(self.beat) and self.is_held():
            # In this process's own directory, even if it was moved, and not in a successor's.
            with suppress(OSError):
                os.utime("owner", dir_fd=self._directory)

    def _take_over(self, text: str) -> None:
        """Remove the lock of an ended owner."""
        stale = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")
        try:
            self.path.rename(stale)
        except FileNotFoundError:
            return
        if (stale / "owner").read_text("utf-8", "replace") != text:
            with suppress(OSError):  # another process was faster, and holds the lock now
                stale.rename(self.path)
            return
        shutil.rmtree(stale, ignore_errors=True)


_runs: dict[Path, DirectoryLock] = {}


def lock_run(directory: Path, elsewhere: str = "another run name") -> DirectoryLock:
    """Create the directory of a training's results, and lock it for this process.

    Exit if another process trains there; the hint is to choose `elsewhere`. One rank calls it, as
    often as it likes.
    """
    path = directory.absolute() / "run.lock"
    if path in _runs and not _runs[path].lost:
        return _runs[path]
    lock = DirectoryLock(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        owner = lock.acquire()
    except OSError as error:
        hint = f"make it writable, or choose {elsewhere}"
        fail(f"cannot write to {directory}: {error.strerror}", hint, every_rank=True)
    if owner:
        fail(
            f"another process already trains the run in {directory}: {owner}",
            f"wait until it ends, or choose {elsewhere}; if it no longer exists, run: "
            f"rm -r {shlex.quote(str(path))}",
            every_rank=True,
        )
    _runs[path] = lock
    return lock


def identity() -> dict[str, Any]:
    """Identify this process: its machine with its PID namespace, and its Slurm job."""
    pid = os.getpid()
    return {
        "host": platform.node(),
        "machine": machine(),
        "pid": pid,
        "started": start_time(pid),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    }


def machine() -> str:
    """Identify the machine and the PID namespace, because containers can have their own PIDs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def parse(text: str) -> dict[str, Any]:
    """Parse an owner file; return an empty dictionary if it is invalid."""
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def runs_here(owner: dict[str, Any]) -> bool:
    """Tell whether the owner is a running process of this machine."""
    is_here = owner.get("machine") and owner["machine"] == machine()
    return bool(is_here) and start_time(owner.get("pid", 0)) == owner.get("started")


def has_ended(owner: dict[str, Any]) -> bool:
    """Tell whether the owner has certainly ended, which is known only on its own machine."""
    return owner.get("machine") == machine() != "" and not runs_here(owner)


def is_earlier_start(owner: dict[str, Any]) -> bool:
    """Tell whether the owner is an earlier start of this Slurm job, which was then requeued."""
    mine = identity()
    return (
        bool(mine["job"])
        and owner.get("job") == mine["job"]
        and owner.get("restarts", 0) < mine["restarts"]
    )


def describe(owner: dict[str, Any]) -> str:
    """Describe an owner for a message."""
    if not owner:
        return "an unknown process"
    job = f"job {owner['job']}, " if owner.get("job") else ""
    return f"{job}process {owner.get('pid')} on {owner.get('host')}"
