"""The launch before this one, run again without computing it again.

Reading the configuration takes Python longer than bash needs for the rest, so `container_run.py`
keeps the script it emitted last together with everything that it was computed from. As long as
each of those files and variables is what it was, the same script is right. The record lies in the
repository: whoever can write there decides what the scripts do anyway.
"""

from __future__ import annotations

import marshal
import os

from lib import ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:  # this module must cost nothing
    from collections.abc import Mapping

_FORMAT = 2  # marshal's oldest form with all that is needed: the same in every Python


def recall(environ: Mapping[str, str]) -> str | None:
    """Return the script of the last launch, if it is still right.

    Parameters
    ----------
    environ : mapping
        The environment of the caller.

    Returns
    -------
    str or None
        Bash source, or None when anything that it was computed from has changed.
    """
    try:
        with open(_record(), "rb") as file:
            host, variables, files, script = marshal.loads(file.read())
    except (OSError, EOFError, ValueError, TypeError):
        return None
    if host != os.uname().nodename:
        return None
    if any(environ.get(name) != value for name, value in variables):
        return None
    if any(_mark(path) != mark for path, mark in files):
        return None
    return script


def remember(script: str, variables: Mapping[str, str | None], files: list[str]) -> None:
    """Keep a script and what it was computed from.

    Parameters
    ----------
    script : str
        Bash source.
    variables : mapping
        Environment variables looked at, None for those that were not set.
    files : list of str
        Files and folders looked at, whether they exist or not.
    """
    marks = [(path, _mark(path)) for path in files]
    record = (os.uname().nodename, sorted(variables.items()), marks, script)
    path = _record()
    partial = f"{path}.{os.getpid()}.partial"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial, "wb") as file:
            file.write(marshal.dumps(record, _FORMAT))
        os.replace(partial, path)
    except OSError:  # a clone that this user cannot write to: each launch is computed
        return


def _record() -> str:
    return os.path.join(ROOT, ".cache", f"launch-{os.getuid()}")


def _mark(path: str) -> tuple[int, int, int] | None:
    """Tell one state of a file from another: when it was written, its size and its inode."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
