"""Quoting of arguments: the only place where they become text."""

from __future__ import annotations

import os
import re
from shlex import quote
from typing import Union

from lib.script.errors import LongshipError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Expansion(str):
    """Shell source that is inserted unchanged, such as ``"$@"``."""


Word = Union[str, "os.PathLike[str]"]


def word(value: Word) -> str:
    """Quote one argument for bash and for POSIX sh; return an `Expansion` unchanged."""
    if isinstance(value, Expansion):
        return value
    text = os.fspath(value)
    if "\0" in text:
        raise LongshipError(
            f"{text!r} contains a NUL byte, which is not possible in an argument",
            "remove it from the configuration or the command",
        )
    return quote(text)


def name(value: str) -> str:
    """Return a string that can name a variable; reject others, which a shell reads differently."""
    if not NAME.fullmatch(value):
        raise LongshipError(
            f"{value!r} is not a valid name of an environment variable",
            "use letters, digits and _, no digit first; check [environment] in configuration.toml",
        )
    return value
