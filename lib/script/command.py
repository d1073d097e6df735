"""Builders of single lines of a script, from values to text.

A line is one call: a program, or a function of ``lib/*/*.bash``, with its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from lib.script.quoting import Word, name, word

_WIDTH = 90  # columns


def call(*words: Word) -> str:
    """Return the line that calls a program or a function; no form takes a whole command line."""
    return " ".join(word(each) for each in words)


def wrapped(*words: Word) -> str:
    """Return the same call on lines that fit a screen, for many arguments."""
    return _on_lines(map(word, words))


def _on_lines(texts: Iterable[str]) -> str:
    lines, width = [""], 0
    for text in texts:
        if width + len(text) > _WIDTH:
            lines.append("")
            width = 0
        lines[-1] += f"{text} "
        width += len(text) + 1
    return " \\\n    ".join(line.rstrip() for line in lines)


def assign(variable: str, value: Word) -> str:
    """Return the assignment of a value to a variable of the script."""
    return f"{name(variable)}={word(value)}"


def facts(**values: Word) -> str:
    """Return the line that sets facts about the target, which target_facts.bash lists."""
    return _on_lines(assign(*each) for each in values.items())


def export(variable: str, value: Word) -> str:
    """Return the line that exports a value; also valid in POSIX sh."""
    return f"export {name(variable)}={word(value)}"


def exports(**values: Word) -> str:
    """Return the line that exports several values."""
    return f"export {_on_lines(assign(*each) for each in values.items())}"


def array(variable: str, words: Iterable[Word]) -> str:
    """Return the assignment of a list to an array of the script."""
    if isinstance(words, str):
        raise TypeError(f"a list of words is needed, not the string {words!r}")
    return f"{name(variable)}=({call(*words)})"


class Below(str):
    """A definition that is below the plan, and is made before the plan runs."""


def text_below(variable: str, text: str, about: str) -> Below:
    """Return the assignment of a long text, below the plan; bash expands nothing in it."""
    quiet = "shellcheck disable=SC2016,SC2034  # expanded where it is used, not here"
    return Below("\n".join([comment(about), comment(quiet), assign(variable, text)]))


def comment(text: str) -> str:
    """Return a comment on one line, whatever the text contains."""
    return "# " + " ".join(text.split())
