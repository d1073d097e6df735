"""TOML files, read strictly: an error names the file, the key and the closest match."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from lib.script.errors import LongshipError, suggest
from lib.script.secrets import mask
from lib.script.trust import read_named

_LARGEST = 1 << 22  # bytes of a file
_WIDTH = 200  # of a value in a message
_NUMBER = 1 << 63  # what bash counts with
_DECIMAL = re.compile(r"[0-9]+([.][0-9]*)?([eE][+-]?[0-9]+)?")

# Kinds of values: the type in a message, how to write one, and the check.
_KINDS = {
    "string": ("a string", '"..."', lambda v: isinstance(v, str)),
    "integer": (
        "an integer",
        "N",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 <= v < _NUMBER,
    ),
    "boolean": ("true or false", "true", lambda v: isinstance(v, bool)),
    "float": (
        "a number",
        "N",
        lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v < _NUMBER,
    ),
    "number": (
        "a number",
        "N",
        lambda v: (
            _KINDS["float"][2](v) or (isinstance(v, str) and bool(_DECIMAL.fullmatch(v or "0")))
        ),
    ),
    "list": (
        "a list of strings",
        '["...", "..."]',
        lambda v: isinstance(v, (list, tuple)) and all(isinstance(each, str) for each in v),
    ),
    "string_table": (
        "a table of strings",
        '{ NAME = "..." }',
        lambda v: isinstance(v, dict) and all(isinstance(each, str) for each in v.values()),
    ),
    "value": (
        "a string, a number or a list of strings",
        '"..."',
        lambda v: any(_KINDS[each][2](v) for each in ("string", "float", "list")),
    ),
    "values": ("a table of values", "[name]", lambda v: isinstance(v, dict)),
    "string_by_arch": (
        "a string, or a table of strings by architecture",
        '{ amd64 = "...", arm64 = "..." }',
        lambda v: (
            isinstance(v, str) or (_KINDS["string_table"][2](v) and {*v} <= {"amd64", "arm64"})
        ),
    ),
    "table": ("a table", "[name]", lambda v: isinstance(v, dict)),
    "tables": (
        "a list of tables",
        "[[name]]",
        lambda v: isinstance(v, list) and all(isinstance(each, dict) for each in v),
    ),
}


class Key(NamedTuple):
    """What a key takes: a kind of `_KINDS`, one line about it, and the only values allowed."""

    kind: str
    help: str = ""
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    default: Any = None
    entries: Mapping[str, Any] = {}  # the keys of each of its tables
    pattern: str = ""  # of a string, unless it is empty

    @property
    def allowed(self) -> tuple[str, ...]:
        """The only values allowed; empty for any."""
        return self.choices() if callable(self.choices) else self.choices


_VALUE = Key("value")

# The kind of a field of this type.
_TYPES = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "float",
    tuple[str, ...]: "list",
    Mapping[str, str]: "string_table",
}


def keys_of(record: type) -> dict[str, Key]:
    """Return the keys that the annotated fields of a NamedTuple declare.

    A field is ``Annotated[TYPE, help]``, and then the only values allowed (a tuple, or a
    function that finds them), the keys of each of its tables (a mapping), the kind if the type does
    not say it, or a compiled pattern.
    """
    keys = {}
    for name, declared in record.__annotations__.items():
        if hasattr(declared, "__metadata__"):
            about, more = (*declared.__metadata__, ())[:2]
            kind = more if isinstance(more, str) else _TYPES.get(declared.__origin__, "tables")
            choices = more if isinstance(more, tuple) or callable(more) else ()
            entries = more if isinstance(more, dict) else {}
            default = record._field_defaults.get(name)
            pattern = getattr(more, "pattern", "")
            keys[name] = Key(kind, about, choices, default, entries, pattern)
    return keys


def find_files(root: Path, pattern: str) -> list[Path]:
    """Return the files under a directory that match a pattern such as ``*/site.toml``, sorted.

    `pathlib.Path.glob` silently ends its list at the first link to a directory that cannot be read.
    """
    return sorted(map(Path, glob.glob(os.path.join(glob.escape(str(root)), pattern))))


def toml_reader() -> Any:
    """Return the module that reads TOML: tomli before Python 3.11."""
    try:
        import tomllib
    except ModuleNotFoundError:
        import tomli as tomllib
    return tomllib


@functools.cache  # submit.py reads the sites three times
def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    return parse(text)


def read_toml(path: Path, shown: str) -> dict[str, Any]:
    """Read a TOML file, or what submit.py has written as JSON; `shown` is its name in messages."""
    is_json = path.suffix == ".json"
    parse = _json_object if is_json else toml_reader().loads
    try:
        text = read_named(path, _LARGEST).decode("utf-8-sig").replace("\r\n", "\n")
        return {**_parsed(parse, text)}
    except OSError as error:
        raise LongshipError(
            f"cannot read {shown}: {error.strerror}", f"look at: ls -l {path}"
        ) from error
    except UnicodeDecodeError as error:
        raise LongshipError(f"{shown} is not UTF-8 text", "save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise LongshipError(
            f"invalid {'JSON' if is_json else 'TOML'} in {shown}: {error}",
            'write strings in straight quotes: name = "value"; and each table and key once',
        ) from error


def _json_object(text: str) -> dict[str, Any]:
    """Read an object of JSON."""
    import json  # 2 ms that only jobs need

    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("expected an object")
    return found


def check_value(dotted: str, value: Any, key: Key, where: str) -> Any:
    """Return a value as its key requires it, lists as tuples; an error says where it is."""
    expected, example, fits = _KINDS[key.kind]
    if not fits(value):
        name = dotted.rpartition(".")[2]
        written = example.replace("name", name) if "name" in example else f"{name} = {example}"
        explanation = f": {key.help}" if key.help else ""
        raise LongshipError(
            f"{where}: {dotted}: expected {expected}, got {_shown(value)}",
            f"write {written}{explanation}",
        )
    if key.choices and value not in key.allowed:
        raise LongshipError(
            f'{where}: unknown value of {dotted}: "{value}"', suggest(value, key.allowed)
        )
    if key.pattern and value and not re.fullmatch(key.pattern, value):
        raise LongshipError(f'{where}: cannot read {dotted} = "{value}"', f"it is {key.help}")
    if key.kind == "tables":
        return tuple(check_keys(dotted, each, key.entries, where) for each in value)
    if key.kind == "table" and key.entries:
        return check_keys(dotted, value, key.entries, where)
    if key.kind == "values":
        return {n: check_value(f"{dotted}.{n}", each, _VALUE, where) for n, each in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _shown(value: Any) -> str:
    try:
        text = mask(repr(value))
    except ValueError:  # a number of thousands of digits
        return "too large"
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def check_table(
    table: Any, keys: Mapping[str, Key], where: str, prefix: str = ""
) -> dict[str, Any]:
    """Check a table of a site's or a stack's file; return the values that it sets.

    The prefix is its dotted name; empty for the whole file.
    """
    return check_keys(prefix, check_value(prefix, table, Key("table"), where), keys, where)


def check_keys(
    dotted: str,
    table: Mapping[str, Any],
    keys: Mapping[str, Key],
    where: str,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Check the keys of a table, and of those in it; others are for suggestions."""
    found = {}
    for name, value in table.items():
        inner = f"{dotted}.{name}".lstrip(".")
        if name not in keys:
            kind = "table" if isinstance(value, dict) else "key"
            hint = suggest(name, (*keys, *others))
            raise LongshipError(f'{where}: unknown {kind} "{inner}"', hint)
        found[name] = check_value(inner, value, keys[name], where)
    return found
