"""Reward functions for GRPO, from a Python file of the user's."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction
from pathlib import Path
from typing import Any

from problem import InputError, first_line

RewardFunction = Callable[..., list[float | None]]
HINT = "correct the reward file, then run the same command again"
EXAMPLE = "def reward_length(completions, **kwargs): return [len(each) for each in completions]"


def load_rewards(path: str | None) -> list[RewardFunction]:
    """Return the functions in a file whose names begin with `reward`, in the file's order.

    Raises
    ------
    InputError
        If there is no such file or function, or if the file raises an exception.
    """
    if not path:
        message = "grpo needs a Python file with reward functions"
        raise InputError(message, "set rewards in [training], or give --rewards FILE.py")
    file = Path(path).expanduser().absolute()
    if file.suffix != ".py" or not file.is_file():
        raise InputError(f"no Python file: {path}", f"write one, such as: {EXAMPLE}")
    sys.path.append(str(file.parent))  # for what it imports from its own directory
    spec = spec_from_file_location("reward_functions", file)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(_describe(error, file), HINT) from error
    found = [
        each
        for name, each in vars(module).items()
        if name.startswith("reward") and isfunction(each)
    ]
    if not found:
        message = f"{path} has no function whose name begins with reward"
        raise InputError(message, f"write one, such as: {EXAMPLE}")
    return found


def guarded(function: RewardFunction) -> RewardFunction:
    """Return a reward function that raises an `InputError` on all ranks if it fails on one.

    Each rank scores its own completions. If only one stopped, the others would wait for it, and
    the one that prints could be ended before it does.
    """
    from accelerate.utils import gather_object  # with PyTorch, which prepare_data.py does not need

    code = function.__code__

    @functools.wraps(function)
    def call(*, completions: list[Any], **columns: Any) -> list[float | None]:
        rewards, problem = [], ""
        try:
            returned = function(completions=completions, **columns)
            rewards = [None if each is None else float(each) for each in returned]
            if len(rewards) != len(completions):
                counts = f"{len(rewards)} rewards for {len(completions)} completions"
                raise ValueError(f"{function.__name__} returned {counts}")
        except (Exception, SystemExit) as error:
            problem = _describe(error, Path(code.co_filename), code.co_firstlineno)
        problems = [each for each in gather_object([problem]) if each]
        if problems:
            raise InputError(problems[0], HINT)
        return rewards

    return call


def _describe(error: BaseException, file: Path, line: int | None = None) -> str:
    """Return the line of a file that raised an exception, or else the given one, and what it is."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        line = error.lineno
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(file):
            line = frame.lineno
    place = f"{file}:{line}" if line else file
    name, text = type(error).__name__, first_line(error)
    return f"{place}: {name}" if text == name else f"{place}: {name}: {text}"
