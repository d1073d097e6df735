"""The one place where processes are started."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lib.script.errors import LongshipError

_LONGEST_ARGUMENT = 131071  # bytes: Linux's MAX_ARG_STRLEN
_PROBE_SECONDS = 20  # a docker client without a daemon can wait for minutes


def become(script: str, name: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this process by bash running a script; returns never.

    Parameters
    ----------
    script : str
        Bash source.
    name : str
        The script's ``$0``.
    arguments : sequence of str
        The script's ``"$@"``, passed on as they are.
    environ : mapping
        The environment it starts with.

    Raises
    ------
    LongshipError
        If bash cannot be started.
    """
    # Python ignores them, and what it starts would inherit that: `... | head` must end quietly.
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(each, signal.SIG_DFL)
    text = os.fsencode(script)
    if len(text) > _LONGEST_ARGUMENT:  # such as a job's, with a long argument of the user's
        file = os.memfd_create("longship", 0)
        with open(file, "wb", closefd=False) as opened:
            opened.write(text)
        script = f"source /dev/fd/{file}"
    try:
        os.execvpe("bash", ["bash", "-c", script, name, *arguments], dict(environ))
    except OSError as error:
        hint = "add the directory of bash to PATH"
        if error.errno == errno.E2BIG:
            hint = "pass fewer or shorter arguments, such as the name of a file that contains them"
        raise LongshipError(f"cannot start bash: {error.strerror}", hint) from error


def succeeds(command: Sequence[str]) -> bool:
    """Tell whether a command is there and succeeds, without a sound.

    Parameters
    ----------
    command : sequence of str
        A program and its arguments.

    Returns
    -------
    bool
    """
    import subprocess  # only a launch whose runtime is not configured pays for it

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class Output(NamedTuple):
    """What a command has printed on both streams, and its exit code, as a shell gives it."""

    text: str
    code: int


def output(command: Sequence[str], seconds: int) -> Output:
    """Run a command; its exit code is 124 after so many seconds, and 127 if it is missing."""
    import subprocess

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Output((error.stdout or b"").decode(errors="surrogateescape"), 124)
    except OSError as error:
        return Output(error.strerror or "", 127)
    return Output(done.stdout.decode(errors="surrogateescape"), done.returncode)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it; one that is there is left as it is.

    Raises
    ------
    LongshipError
        If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LongshipError(
            f"cannot create the directory {path}: {error.strerror}",
            "set [paths] in configuration.toml to a directory that you can write to",
        ) from error


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file; it is complete or not there.

    Parameters
    ----------
    path : pathlib.Path
        Its name; the folder must be there.
    text : str
        What it holds.
    mode : int
        Its permissions, such as 0o755 for a script that can be run.

    Raises
    ------
    LongshipError
        If the folder cannot be written to.
    """
    partial = path.with_name(f"{path.name}.partial.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")
        partial.chmod(mode)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise LongshipError(
            f"cannot write {path}: {error.strerror}",
            "give a path that you can write to, or set [paths] in configuration.toml",
        ) from error
