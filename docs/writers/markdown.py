"""Markdown from declarations in the code: tables of keys, docstrings, header comments."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.configuration.tables import Key

_SHOWN_KINDS = {
    "string": "string",
    "integer": "integer",
    "boolean": "boolean",
    "float": "number",
    "number": "number",
    "list": "list of strings",
    "string_table": "table of strings",
    "value": "string, number or list of strings",
    "values": "table of values",
    "string_by_arch": "string, or one for each architecture",
    "table": "table",
    "tables": "tables",
}


def page(title: str, *parts: str) -> str:
    """Join the parts of a page, which are paragraphs, tables and headings."""
    origin = "<!-- Written by docs/write_reference.py from the code: change it there. -->"
    blocks = re.findall(r"```.*?```|\S.*?(?=\n\n|\Z)", "\n\n".join(parts), re.DOTALL)
    return "\n\n".join((f"# {title}", origin, *map(_wrapped, blocks))) + "\n"


def _wrapped(block: str) -> str:
    """Wrap a paragraph; return anything else unchanged."""
    if re.match(r"#|\||```|1\. ", block):
        return block
    return textwrap.fill(
        " ".join(block.split()), 110, break_on_hyphens=False, break_long_words=False
    )


def plain(text: str) -> str:
    """Return prose of a docstring or a help text as Markdown, with special characters escaped."""
    text = " ".join(text.split()).replace("``", "`")
    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [re.sub(r"([*<\[\]|])", r"\\\1", each) for each in pieces[::2]]
    return re.sub(r"(?<!\.)\.$", "", "".join(pieces))


def code(text: object) -> str:
    """Return inline code; an empty string for an empty argument."""
    return f"`{text}`" if str(text) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", each) for each in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def value(given: Any) -> str:
    """Return a value in TOML syntax; an empty string for an empty value."""
    if given is None or given in ("", (), [], {}):
        return ""
    if isinstance(given, Mapping):
        inside = ", ".join(f"{name} = {_plain_value(each)}" for name, each in given.items())
        return code(f"{{ {inside} }}")
    return code(_plain_value(given))


def _plain_value(given: Any) -> str:
    return json.dumps(given, ensure_ascii=False)


def kind(key: Key) -> str:
    """Return the type of a key."""
    if key.allowed:
        return ", ".join(code(f'"{each}"') for each in key.allowed)
    return _SHOWN_KINDS[key.kind]


def keys_table(keys: Mapping[str, Key], prefix: str = "") -> str:
    """Return the table of all keys of a table of a file."""
    return table(
        ("key", "type", "default", "meaning"),
        (
            (
                code(prefix + name),
                kind(key),
                value(key.default),
                plain(key.help),
            )
            for name, key in keys.items()
        ),
    )


def first_line(declared: Any) -> str:
    """Return the first line of a docstring."""
    return plain((inspect.getdoc(declared) or "").partition("\n\n")[0])


def listed(path: Path) -> list[tuple[str, str]]:
    """Return the rows of a script's header comment, `#   NAME    description`, in order."""
    found: list[tuple[str, str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        row = re.fullmatch(r"#   (\S.*?)  +(\S.*)", line)
        more = re.fullmatch(r"#     +(\S.*)", line)
        if row:
            found.append((row[1], row[2]))
        elif more and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {more[1]}")
    return found
