"""The one place where processes are started."""

from __future__ import annotations

import os

from lib.errors import LongshipError

TYPE_CHECKING = False
if TYPE_CHECKING:  # a remembered launch needs neither, and they cost it 10 ms
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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
    try:
        os.execvpe("bash", ["bash", "-c", script, name, *arguments], dict(environ))
    except OSError as error:
        raise LongshipError(
            f"cannot start bash: {error.strerror}",
            "is it on PATH, and are the arguments shorter than `getconf ARG_MAX` bytes?",
        ) from error


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
    import subprocess

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


def write_executable(path: Path, script: str) -> None:
    """Write a script to a file that can be run; the file is complete or not there.

    Raises
    ------
    LongshipError
        If the folder cannot be written to.
    """
    from contextlib import suppress

    partial = path.with_name(f"{path.name}.partial.{os.getpid()}")
    try:
        partial.write_text(script, encoding="utf-8", errors="surrogateescape")
        partial.chmod(0o755)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise LongshipError(
            f"cannot write {path}: {error.strerror}", "name a place that you can write to"
        ) from error
