"""Keep between runs what is slow to make: a file under its final name is complete."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path


def cache_folder():
    """Give ``$LONGSHIP_TEST_CACHE``, or ``~/.cache/longship-tests``."""
    folder = os.environ.get("LONGSHIP_TEST_CACHE") or Path.home() / ".cache/longship-tests"
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fingerprint(*parts):
    """Give 12 hexadecimal digits that change when any part does: strings, lists, file contents.

    They change with the week too, so that updates of Debian and PyPI arrive.
    """
    digest = hashlib.sha256(time.strftime("%G-%V").encode())
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else json.dumps(part).encode()
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:12]


def cached(name, build):
    """Give the path of the cached file or folder `name`; make it by ``build(path)`` if need be.

    Two runs at once make it once. What is being made has another name, so that an interrupted
    run leaves nothing that looks complete.
    """
    final = cache_folder() / name
    with locked(name):
        if not final.exists():
            _remove_unused(final.parent)
            partial = final.with_name(f"partial-{final.name}")
            _remove(partial)
            build(partial)
            os.replace(partial, final)
    return final


@contextlib.contextmanager
def locked(name):
    """Let one process at a time into the block; the system lets go when the process ends.

    The time of the lock file says when `name` was last used: what was not for two weeks goes.
    """
    with open(cache_folder() / f"{name}.lock", "w") as lock:
        os.utime(lock.fileno())
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unused(folder):
    for lock in folder.glob("*.lock"):
        if lock.stat().st_mtime < time.time() - 14 * 24 * 3600:
            _remove(lock.with_suffix(""))
            _remove(lock)


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists() or path.is_symlink():
        path.unlink()
