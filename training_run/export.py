"""What the programs share that write the newest checkpoint of a run in Hugging Face's format."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError

from training_run import fail, unfinished
from training_run.directory_lock import DirectoryLock

FILES = "exported_files.json"  # their sizes


def read_run(parser: ArgumentParser) -> tuple[Path, Namespace]:
    """Parse the arguments; return the directory of the run, which can be a name, and all."""
    scratch = Path(os.environ.get("LONGSHIP_SCRATCH_DIR", "."))
    default = Path(os.environ.get("LONGSHIP_CHECKPOINT_DIR", scratch / "checkpoints"))
    parser.add_argument("run", type=Path, help=f"directory of the run, or its name in {default}")
    arguments = parser.parse_args()
    return default / arguments.run, arguments


def fail_without_checkpoint(run: Path) -> NoReturn:
    """Exit because a run has no complete checkpoint, or does not exist."""
    fail(f"no checkpoint in {run}", f"list the runs: ls {run.parent}")


def newest_of_megatron(run: Path) -> tuple[Path, Path]:
    """Return the last complete checkpoint of a run of Megatron, and where its export goes."""
    try:
        step = int((run / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        fail_without_checkpoint(run)
    # Megatron reads a number from every name that begins with iter_ when it removes checkpoints
    return run / f"iter_{step:07d}", run / f"step-{step:07d}-hf"


def export(directory: Path, write: Callable[[Path], None], checkpoint: Path) -> None:
    """Write a model to a directory, complete or not at all, and print it; once for a checkpoint.

    Parameters
    ----------
    directory : Path
        Directory of the model. A second export of the run waits for the first.
    write : callable
        Writes the model to an empty directory, its argument.
    checkpoint : Path
        What the model is made from. It is newer than the directory if the run went back to an
        earlier checkpoint, and took the step again.
    """

    def is_exported() -> bool:
        is_newer = directory.exists() and directory.stat().st_mtime >= checkpoint.stat().st_mtime
        return is_newer and is_whole(directory)

    if is_exported():
        print("already exported:", file=sys.stderr)
    else:
        partial = unfinished(directory)
        lock = DirectoryLock(directory.with_name("export.lock"))
        try:
            lock.acquire(wait=True)
            for left in directory.parent.glob("*.partial"):  # directories of killed exports
                shutil.rmtree(left, ignore_errors=True)
            if not is_exported():  # or the other export has written it
                partial.mkdir()
                write(partial)
                (partial / FILES).write_text(json.dumps(sizes(partial)) + "\n", encoding="utf-8")
                if directory.exists():  # with its evaluations
                    set_aside(directory)
                partial.rename(directory)
        except (OSError, SafetensorError) as error:
            fail(f"cannot write {directory}: {error}", "check permissions and free space")
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            lock.release()
    print(directory)


def sizes(directory: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a model, by its name."""
    files = (each for each in directory.rglob("*") if each.is_file())
    return {str(each.relative_to(directory)): each.stat().st_size for each in files}


def is_whole(directory: Path) -> bool:
    """Compare a model with the sizes that were recorded when it was written."""
    try:
        recorded = json.loads((directory / FILES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return recorded.items() <= sizes(directory).items()


def set_aside(directory: Path) -> None:
    """Give a damaged model, or one of an earlier checkpoint, a name with the time of its making."""
    made = time.localtime(directory.stat().st_mtime)
    former = directory.with_name(f"{directory.name}-{time.strftime('%Y%m%d-%H%M%S', made)}")
    directory.rename(former)
    print(f"the model that was there is now {former}", file=sys.stderr)
