"""The parts of a training program that you keep when you replace `train.py` with your own."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import NoReturn


def fail(message: str, hint: str, code: int = 1, every_rank: bool = False) -> NoReturn:
    """Exit with two lines, what is wrong and what to do, once per node."""
    if every_rank or os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


def lacks_package(script: str, error: ModuleNotFoundError) -> NoReturn:
    """Exit: a program runs outside the environment, or in one without a package that it needs."""
    inside = "LONGSHIP_ROOT" in os.environ
    fail(
        f"{script} needs {error.name}, which {sys.executable} does not have",
        f"run: python3 {'set_up.py install' if inside else f'container_run.py python {script}'}",
    )


def unfinished(path: Path) -> Path:
    """Return the path to write a file under until it is complete; no other process writes it."""
    return path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.partial")
