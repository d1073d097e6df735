"""The one place where processes are started."""

from __future__ import annotations

import _signal  # importing `signal` costs each launch a millisecond
import atexit
import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Callable, NamedTuple

from lib import ROOT
from lib.script.errors import LongshipError

if TYPE_CHECKING:
    import subprocess

_LONGEST_ARGUMENT = 131071  # bytes: Linux's MAX_ARG_STRLEN
_PROBE_SECONDS = 20  # a docker client without a daemon can wait for minutes

_ends: list[Callable[[], None]] = []  # each ends a program of `read_output`
_exiting = False


def become(script: str, name: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this process by bash with a script; `name` is ``$0``, `arguments` are ``"$@"``."""
    # Python ignores these signals, and children inherit that: `... | head` must end quietly.
    for each in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(each, _signal.SIG_DFL)
    text = os.fsencode(script)
    if len(text) > _LONGEST_ARGUMENT:  # such as a launch with a long argument
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
    """Tell whether a command exists and succeeds."""
    return read_output(command, _PROBE_SECONDS, discard=True).code == 0


class Output(NamedTuple):
    """The output of a command on both streams, and its exit code as a shell reports it."""

    text: str
    code: int


def read_output(
    command: Sequence[str], seconds: float, *, given: str | BinaryIO = "", discard: bool = False
) -> Output:
    """Run a command; its exit code is 124 after so many seconds, and 127 if it is missing.

    After that time, or if this process ends, it is ended with everything that it has started. What
    it prints is discarded if it can leave a process in the background, as podman does.
    """
    import subprocess  # only a launch whose runtime is not configured pays for these
    import threading

    started: list[subprocess.Popen[bytes]] = []
    tried = threading.Event()  # an interrupted Thread.join() believes that the thread has ended

    def start() -> None:
        try:
            if not _exiting:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if isinstance(given, str) else given,
                    stdout=subprocess.DEVNULL if discard else subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,  # where they are started, programs read files that can be another's
                    start_new_session=True,  # a group, which can be ended as a whole
                )
                started.append(process)
        except OSError:
            pass  # it is missing
        finally:
            tried.set()

    def end() -> None:
        if starter.ident:
            tried.wait(10)
        for process in started:
            _end_group(process)

    # In a thread: an exception of a signal handler comes in the main thread and would lose it.
    starter = threading.Thread(target=start, daemon=True)
    _ends.append(end)
    starter.start()
    tried.wait()
    text, code = b"", 127
    for process in started:
        try:
            text, _ = process.communicate(
                os.fsencode(given) if isinstance(given, str) else None, timeout=seconds
            )
            code = process.returncode
        except subprocess.TimeoutExpired as error:
            end()
            text, code = error.output, 124
            if process.stdout:
                process.stdout.close()
    _ends.remove(end)
    text = (text or b"").decode(errors="surrogateescape")
    return Output(text, code if code >= 0 else 128 - code)


@atexit.register
def _end_all() -> None:
    """End the programs of `read_output`; a thread that still runs starts no more of them."""
    global _exiting
    _exiting = True
    for end in list(_ends):
        end()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process with everything that it has started; what hangs in the kernel is left."""
    import signal
    import subprocess

    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 1)):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, which only the user can enter, unless it exists."""
    try:
        for each in (*reversed(path.parents), path):
            if not each.is_dir():
                each.mkdir(0o700, exist_ok=True)
    except OSError as error:
        raise LongshipError(
            f"cannot create the directory {path}: {error.strerror}",
            "set [paths] in configuration.toml to a directory that you can write to",
        ) from error


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, all of it or nothing, that has these permissions before its content.

    No umask and no default ACL widens them, and nobody else can have opened the file before.
    """
    import tempfile  # a launch writes no file

    partial = ""
    try:
        file, partial = tempfile.mkstemp(prefix=f"{path.name}.partial.", dir=path.parent)
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as opened:
            os.fchmod(file, mode)
            opened.write(text)
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(partial)
        raise LongshipError(
            f"cannot write {path}: {error.strerror}",
            "give a path that you can write to, or set [paths] in configuration.toml",
        ) from error
