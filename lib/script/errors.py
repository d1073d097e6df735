"""Errors that a user can fix, and other messages on standard error."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from lib import ROOT

_MODES = ("online", "download", "offline", "--list", "--prune", "--print-path")
# What replaces commands that need a network, in this order: their modes stay.
_OFFLINE_MODES = (
    "python3 set_up.py install=python3 set_up.py offline",
    *(
        pair
        for script in ("build_container.py", "build_overlay.py")
        for pair in (
            f"python3 {script}=python3 {script} offline",
            *(f"{script} offline {mode}={script} {mode}" for mode in _MODES),
        )
    ),
)
_ENOUGH_BYTES = 1 << 24  # less counts as full: programs remove what they could not finish
_NO_SPACE = "No space left on device"
_TRUST = "git config --global --add safe.directory "
# control characters move the cursor or begin a line
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "?")


class LongshipError(Exception):
    """An error that the user can fix: two lines, the second with the command or allowed values."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def print(self) -> None:
        """Write both lines to standard error."""
        print_messages(error=str(self), hint=self.hint)


def write_error(
    directory: str | Path, message: str, hint: str, reason: OSError | str = ""
) -> LongshipError:
    """Return the error for a failed write to a directory.

    Programs often do not name a full disk as the reason; some remove what they could not finish.
    """
    said = f"{message} {reason}"
    full = getattr(reason, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
    full = full or "quota exceeded" in said or "No space left" in said
    with suppress(OSError):
        disk = os.statvfs(directory)
        full = full or disk.f_bavail * disk.f_frsize < _ENOUGH_BYTES
        full = full or disk.f_files > disk.f_favail == 0
    if full:
        message, reason = message.partition(f": {_NO_SPACE}")[0], _NO_SPACE
        hint = "free some space, or set [paths] in configuration.toml; then run the command again"
    reason = getattr(reason, "strerror", reason)
    return LongshipError(f"{message}: {reason}" if reason else message, hint)


def check_owner(output: str, repository: str = "") -> None:
    """Stop if git reports that a repository belongs to another user."""
    if "dubious ownership" in output or "owned by someone else" in output:
        trusted = output.rpartition(_TRUST)[2].partition("\n")[0]
        raise LongshipError(
            f"{repository or trusted} belongs to another user, and git refuses to read it",
            f"if you trust that user, run: {_TRUST}{trusted}",
        )


def print_messages(**lines: str) -> None:
    """Write lines to standard error; each begins with its name, as in messages.bash."""
    shown = {kind: printable(each) for kind, each in lines.items()}
    for kind in {"hint", "next"} & shown.keys():
        shown[kind] = offline_modes(shown[kind])
    text = "".join(f"{paint(f'{kind}:', sys.stderr)} {each}\n" for kind, each in shown.items())
    sys.stderr.buffer.write(text.encode(errors="surrogateescape"))
    sys.stderr.buffer.flush()


def printable(text: str) -> str:
    """Return a text with ? for each control character: no record or program moves the cursor."""
    return text.translate(_CONTROL)


def offline_commands() -> tuple[str, ...]:
    """Return ``COMMAND=OFFLINE_COMMAND`` for hints: none unless a bundle was unpacked here."""
    unpacked = os.path.exists(os.path.join(ROOT, ".cache/bundle/unpacked"))
    return _OFFLINE_MODES if unpacked else ()


def offline_modes(text: str) -> str:
    """Return a hint; where a bundle was unpacked, with the modes that need no network."""
    for each in offline_commands():
        text = text.replace(*each.split("="))
    return text


def paint(word: str, stream: TextIO) -> str:
    """Return a word such as ``error:``, in its colour if the stream shows colours.

    The colours are those of messages.bash. NO_COLOR turns them off: https://no-color.org.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    if plain or not stream.isatty():
        return word
    bash = Path(ROOT, "lib/script/messages.bash").read_text(encoding="utf-8")
    colours = dict(re.findall(r"\[(\w+)\]=(\d+)", bash))
    return f"\033[{colours.get(word.rstrip(':'), 1)}m{word}\033[0m"


def closest(word: str, allowed: Sequence[str], cutoff: float = 0.6) -> str:
    """Return the allowed value that was most likely meant; "" if none is similar."""
    from difflib import get_close_matches  # imported only for an error: it costs 2 ms

    close = get_close_matches(word, allowed, n=len(allowed) or 1, cutoff=cutoff)
    swapped = [each for each in close if sorted(each) == sorted(word)]  # jbw is jwb, not jwc
    return (swapped or close or [""])[0]


def suggest(word: str, allowed: list[str] | tuple[str, ...]) -> str:
    """Return a hint such as ``did you mean "image"? valid values: binds, image, runtime``."""
    close = closest(word, allowed)
    meant = f'did you mean "{close}"? ' if close else ""
    return f"{meant}valid values: {', '.join(allowed) or 'none'}"
