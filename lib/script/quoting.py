"""Where arguments become text: the only place that quotes."""

from __future__ import annotations

import os
import re
from shlex import quote
from typing import Union

from lib.script.errors import LongshipError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Expansion(str):
    """A piece of shell source that stands in a line as it is, such as ``"$@"``."""


Word = Union[str, "os.PathLike[str]"]


def word(value: Word) -> str:
    """Quote one argument for bash and for POSIX sh.

    Parameters
    ----------
    value : str or os.PathLike
        The argument. Bytes that are no UTF-8 come as surrogate escapes, as in `sys.argv`.

    Returns
    -------
    str
        Shell source that a shell reads back as exactly this argument; an `Expansion` unchanged.
    """
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
    """Check that a string can name a variable, and return it.

    Raises
    ------
    LongshipError
        If it cannot: it would be read as something else in the middle of a script.
    """
    if not NAME.fullmatch(value):
        raise LongshipError(
            f"{value!r} is not a valid name of an environment variable",
            "use letters, digits and _, no digit first; check [environment] in configuration.toml",
        )
    return value
