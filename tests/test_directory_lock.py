"""The lock of training runs and datasets: one owner at a time, on any file system."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.processes import PATIENCE

from training_run import directory_lock
from training_run.directory_lock import DirectoryLock

ROOT = Path(__file__).resolve().parents[1]
OTHER = (
    "import sys; sys.path.insert(0, sys.argv[2]); import pathlib; "
    "from training_run.directory_lock import *; "
)
HOLD = "lock = DirectoryLock(pathlib.Path(sys.argv[1])); print(lock.acquire(), flush=True); "


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.lock"


def other(path, text, **options):
    """Start a process that takes the lock and then does something."""
    command = [sys.executable, "-c", OTHER + text, path, ROOT]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, **options)


def write_owner(path, **owner):
    """Leave the lock of a process on another machine."""
    path.mkdir()
    known = {"host": "node9", "machine": "b", "pid": 7, "started": "1", "job": "", "restarts": 0}
    (path / "owner").write_text(json.dumps({**known, "token": "other", **owner}))


def left(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_lock_is_taken_and_given_back(path):
    lock = DirectoryLock(path)
    assert lock.acquire() == "" and lock.is_held() and left(path) == ["run.lock"]
    assert path.stat().st_mode & 0o777 == 0o755
    assert (path / "owner").stat().st_mode & 0o777 == 0o644
    lock.release()
    assert not lock.is_held() and left(path) == []


def test_second_process_is_told_who_holds_it(path):
    lock = DirectoryLock(path)
    lock.acquire()
    second = other(path, HOLD)
    said = second.communicate(timeout=PATIENCE)[0].decode()
    assert said == f"process {os.getpid()} on {os.uname().nodename}\n"
    assert lock.is_held() and left(path) == ["run.lock"]
    lock.release()


def test_lock_of_a_killed_process_is_taken_over_at_once(path):
    first = other(path, HOLD + "sys.stdin.read()")
    assert first.stdout.readline() == b"\n"
    first.kill()
    first.communicate()
    assert path.exists()
    begin = time.monotonic()
    lock = DirectoryLock(path)
    assert lock.acquire() == "" and time.monotonic() - begin < 30
    lock.release()
    assert left(path) == []


def test_end_of_a_process_gives_the_lock_back(path):
    first = other(path, HOLD)
    assert first.communicate(timeout=PATIENCE)[0] == b"\n" and left(path) == []


def test_silent_owner_of_another_machine_has_ended(path):
    write_owner(path)
    ahead = time.time() + 1e6
    os.utime(path / "owner", (ahead, ahead))  # its clock is another one
    lock = DirectoryLock(path, beat=0.05, patience=0.5)
    assert lock.acquire() == ""
    lock.release()
    assert left(path) == []


def test_owner_of_another_machine_that_gives_signs_is_alive(path):
    write_owner(path, job="4711")
    ended = threading.Event()

    def give_signs():
        while not ended.wait(0.1):
            os.utime(path / "owner")

    thread = threading.Thread(target=give_signs)
    thread.start()
    try:
        lock = DirectoryLock(path, beat=0.05, patience=3600)
        assert lock.acquire() == "job 4711, process 7 on node9"
        assert left(path) == ["run.lock"]
    finally:
        ended.set()
        thread.join()


def test_owner_is_alive_whose_signs_a_file_system_has_held_up(path, monkeypatch):
    """It answers the waiting process before it writes the owner's sign of life."""
    write_owner(path)
    lock, read, reads = DirectoryLock(path, beat=0.05, patience=1), DirectoryLock._sign, []

    def hold_up(self):
        reads.append(1)
        if len(reads) == 2:
            time.sleep(1.5)
        if len(reads) == 4:
            os.utime(path / "owner")
        return read(self)

    monkeypatch.setattr(DirectoryLock, "_sign", hold_up)
    assert lock.acquire() == "process 7 on node9"
    assert left(path) == ["run.lock"]


def test_requeued_job_outlives_its_earlier_start(path, monkeypatch):
    """Slurm has ended that one; where its node is cut off, it may give signs for ever."""
    write_owner(path, job="4711", restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    ended = threading.Event()

    def give_signs():
        while not ended.wait(0.02):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path / "owner")

    thread = threading.Thread(target=give_signs)
    thread.start()
    try:
        lock = DirectoryLock(path, beat=0.05, patience=0.3)
        assert lock.acquire() == ""
        lock.release()
    finally:
        ended.set()
        thread.join()


def test_owner_sees_that_it_has_lost_the_lock(path):
    paused = DirectoryLock(path, beat=0.05)
    paused.acquire()
    path.rename(path.with_name("taken over"))
    next_owner = DirectoryLock(path, beat=0.05)
    assert next_owner.acquire() == ""
    before = (path / "owner").read_text()
    while not paused.lost:
        time.sleep(0.05)
    paused.release()
    assert next_owner.is_held() and (path / "owner").read_text() == before
    next_owner.release()


def test_owner_that_cannot_be_read_for_a_moment_is_no_other(path, monkeypatch):
    lock = DirectoryLock(path)
    lock.acquire()

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(directory_lock, "open", fail, raising=False)
        assert lock.is_held() and not lock.lost
    assert lock.is_held()
    lock.release()
    assert left(path) == []


def test_signs_of_life_are_given(path):
    lock = DirectoryLock(path, beat=0.05)
    lock.acquire()
    os.utime(path / "owner", (0, 0))
    while (path / "owner").stat().st_mtime == 0:
        time.sleep(0.05)
    assert lock.is_held()
    lock.release()


@pytest.mark.parametrize("content", ["", "[]", "{half", '{"pid": 1}'])
def test_damaged_owner_is_waited_for_and_taken_over_or_told(content, path):
    path.mkdir()
    (path / "owner").write_text(content)
    lock = DirectoryLock(path, beat=0.05, patience=0.3)
    owner = lock.acquire()
    assert owner in ("", "an unknown process")
    assert left(path) == ["run.lock"]
    lock.release()


def test_another_process_id_namespace_says_nothing_about_ours(monkeypatch):
    mine = directory_lock.identity()
    assert directory_lock.runs_here(mine) and not directory_lock.has_ended(mine)
    assert directory_lock.has_ended({**mine, "started": "1"})
    other_container = {**mine, "machine": f"{mine['machine']}0", "started": "1"}
    assert not directory_lock.has_ended(other_container)


def test_many_at_once_hold_it_in_turn(path):
    """Each counts on in a file that only the owner may write."""
    counter = path.with_name("counter")
    counter.write_text("0")
    count = (
        "lock = DirectoryLock(pathlib.Path(sys.argv[1])); lock.acquire(wait=True); "
        f"file = pathlib.Path({str(counter)!r}); number = int(file.read_text()); "
        "time.sleep(0.02); file.write_text(str(number + 1)); lock.release()"
    )
    many = [other(path, count) for _ in range(8)]
    assert [each.communicate(timeout=PATIENCE) and each.returncode for each in many] == [0] * 8
    assert counter.read_text() == "8" and left(path) == ["counter"]
