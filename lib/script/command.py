"""Builders of single lines of a script, from values to text.

A line is one call: a program, or a function of ``lib/*/*.bash``, with its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from lib.script.quoting import Word, name, word

_WIDTH = 90  # columns


def call(*words: Word) -> str:
    """Call a program or a function.

    Parameters
    ----------
    *words : str or os.PathLike
        Its name and arguments, one each. There is no form that takes a whole command line.

    Returns
    -------
    str
        One line of bash.
    """
    return " ".join(word(each) for each in words)


def wrapped(*words: Word) -> str:
    """Call a program or a function with many arguments, on lines that fit a screen."""
    lines, width = [""], 0
    for text in map(word, words):
        if width + len(text) > _WIDTH:
            lines.append("")
            width = 0
        lines[-1] += f"{text} "
        width += len(text) + 1
    return " \\\n    ".join(line.rstrip() for line in lines)


def assign(variable: str, value: Word) -> str:
    """Assign a value to a variable of the script."""
    return f"{name(variable)}={word(value)}"


def export(variable: str, value: Word) -> str:
    """Put a value into the environment; also right in POSIX sh."""
    return f"export {name(variable)}={word(value)}"


def array(variable: str, words: Iterable[Word]) -> str:
    """Assign a list to an array of the script."""
    if isinstance(words, str):
        raise TypeError(f"a list of words is needed, not the string {words!r}")
    return f"{name(variable)}=({call(*words)})"


class Below(str):
    """A definition that stands below the plan, and is made before the plan runs."""


def text_below(variable: str, text: str, about: str) -> Below:
    """Assign a text of many lines to a variable of the script, out of the plan's way.

    Parameters
    ----------
    variable : str
        Its name.
    text : str
        What the plan uses; bash expands nothing in it.
    about : str
        What it is, for the comment above it.
    """
    quiet = "shellcheck disable=SC2016,SC2034  # expanded where it is used, not here"
    return Below("\n".join([comment(about), comment(quiet), assign(variable, text)]))


def comment(text: str) -> str:
    """Say why, in a line that bash skips whatever the text holds."""
    return "# " + " ".join(text.split())
