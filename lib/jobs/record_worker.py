"""The worker that records the code of a job; code_record.bash starts it.

python3 -I -X utf8 record_worker.py record RUN [NAME DIR]...
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python imports: no traceback

# ruff: noqa: E402
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from lib.jobs.working_tree import WorkingTree
from lib.repositories.git import GitError
from lib.script.errors import LongshipError, print_messages
from lib.script.execute import make_directory


def record(run: str, *words: str) -> None:
    """Record commit and changes of each repository in a run."""
    directory = Path(run, "repositories")
    make_directory(directory)
    for name, top in zip(words[::2], words[1::2]):
        with suppress(OSError, GitError, LongshipError):
            WorkingTree(Path(top)).describe(directory / name)


def main(actions: Mapping[str, Callable[..., None]]) -> None:
    """Do what the first argument says; a signal removes git's directory."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: sys.exit(130))
    try:
        with tempfile.TemporaryDirectory(prefix="longship-git.", dir="/tmp") as tempfile.tempdir:
            actions[sys.argv[1]](*sys.argv[2:])
    except LongshipError as error:
        error.print()
        sys.exit(1)
    except OSError as error:
        hint = "free some space in /tmp"
        print_messages(error=f"cannot write temporary files: {error.strerror}", hint=hint)
        sys.exit(1)


if __name__ == "__main__":
    main({"record": record})
