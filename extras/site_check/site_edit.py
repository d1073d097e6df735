"""Changes of single values in a site.toml: order, comments and all other values stay."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from lib.configuration.snapshot import toml_key
from lib.configuration.tables import toml_reader
from lib.doctor.checks import as_toml

Key = tuple[str, ...]  # with its tables
_HEADER = re.compile(r"\s*\[([^][]+)]\s*(?:#.*)?")
_VALUE = re.compile(
    r"""=\s*("(?:[^"\\]|\\.)*"|'[^']*'|\[[^]]*]|\{(?:[^{}]|\{[^{}]*})*}|[^\s,}#]+)"""
)


def change(text: str, key: Key, value: Any) -> str | None:
    """Return the text with one value changed, added, or removed if it is None.

    Each way to write it is tried, and read again: the result is None if no attempt changes this
    value and nothing else.
    """
    wanted = table = _read(text)
    for each in key[:-1]:
        table = table.setdefault(each, {})
    if value is None:
        table.pop(key[-1], None)
    else:
        table[key[-1]] = copy.deepcopy(value)
    # a removed value can leave an empty table, or take it along
    form = _pruned if value is None else copy.copy
    for attempt in _attempts(text, key, wanted, value):
        try:
            if form(_read(attempt)) == form(wanted):
                return attempt
        except ValueError:  # no TOML any more
            continue
    return None


def unified_diff(shown: str, old: str, new: str) -> str:
    """Return the patch for `git apply`, from the repository."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{shown}", f"b/{shown}")
    return "".join(
        line if line[-1] == "\n" else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)  # as git counts them; splitlines() finds more


def _read(text: str) -> dict[str, Any]:
    return toml_reader().loads(text)


def _pruned(value: Any) -> Any:
    """Leave out empty tables: a header without keys, or none, are the same."""
    if not isinstance(value, dict):
        return value
    inside = {key: _pruned(each) for key, each in value.items()}
    return {key: each for key, each in inside.items() if each != {}}


def _attempts(text: str, key: Key, wanted: dict[str, Any], value: Any) -> Iterator[str]:
    """Return the text with the change, as it could be written, the most likely first."""
    lines = _lines(text)
    keys = list(_keys(lines))
    yield "".join(line for line, own in zip(lines, keys) if own[: len(key)] != key)
    for length in range(len(key), 0, -1):  # the value itself, or the inline table that contains it
        own = reduce(lambda table, each: table.get(each, {}), key[:length], wanted)
        for number in (place for place, each in enumerate(keys) if each == key[:length]):
            rest = "".join(lines[number:])
            if found := _VALUE.search(rest):
                changed = rest[: found.start(1)] + as_toml(own) + rest[found.end(1) :]
                yield "".join(lines[:number]) + changed
    if value is not None:
        yield from _insertions(lines, keys, key, value)


def _keys(lines: Sequence[str]) -> Iterator[Key]:
    """Return for each line the table or the key that it begins; () for others."""
    table: Key = ()
    for line in lines:
        if header := _HEADER.fullmatch(line.rstrip()):
            table = _split(header[1])
            yield table
        else:
            own = _split(line.partition("=")[0]) if "=" in line else ()
            yield table + own if own else ()


def _split(dotted: str) -> Key:
    """Return the parts of a dotted key; () for other text, such as a comment."""
    parts: list[str] = []
    try:
        table = _read(f"{dotted.strip()} = 0")
    except ValueError:
        return ()
    while isinstance(table, dict) and table:
        ((key, table),) = table.items()
        parts.append(key)
    return tuple(parts)


def _insertions(lines: list[str], keys: list[Key], key: Key, value: Any) -> Iterator[str]:
    """Return the text with a new line: in the innermost table, after the keys most like it."""
    lines = [line if line[-1] == "\n" else f"{line}\n" for line in lines]
    headers = [place for place, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip())]
    inner = [place for place in headers if keys[place] == key[: len(keys[place])]]
    for header in sorted(inner, key=lambda place: -len(keys[place])):
        end = next((each for each in headers if each > header), len(lines))
        section = [place for place in range(header, end) if keys[place]]
        like = [place for place in section if keys[place][: len(key) - 1] == key[:-1]]
        new = f"{'.'.join(map(toml_key, key[len(keys[header]) :]))} = {as_toml(value)}\n"
        for place in ((like or section)[-1], header):
            yield "".join([*lines[: place + 1], new, *lines[place + 1 :]])
    table = ".".join(map(toml_key, key[:-1]))
    yield "".join([*lines, f"\n[{table}]\n{toml_key(key[-1])} = {as_toml(value)}\n"])
