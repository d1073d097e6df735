"""Reports of commands that change nothing: text for a terminal, JSON for programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,20})?", re.ASCII)
_UNITS = ("B", "kB", "MB", "GB", "TB")
_SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte that is not UTF-8


class Report(NamedTuple):
    """A text, and the command to type next ("" for none)."""

    text: str
    following: str = ""


class Finding(NamedTuple):
    """A line of the report. The state is ok, warning or problem; the last two have a fix."""

    state: str
    topic: str
    text: str
    fix: str = ""


# of topic and text, and the latter two of a fix
ok = partial(Finding, "ok")
warning = partial(Finding, "warning")
problem = partial(Finding, "problem")


def as_json(rows: Iterable[Mapping[str, Any]]) -> Report:
    """Return a list of objects for a program, one per line."""
    lines = ",".join(f"\n  {json_object(each)}" for each in rows)
    return Report(f"[{lines}\n]\n")


def json_object(values: Mapping[str, Any]) -> str:
    """Return an object on one line; programs expect UTF-8."""
    import json  # 3 ms that a launch does not need

    return _SURROGATE.sub("\ufffd", json.dumps(values, ensure_ascii=False))


def number(text: str) -> int | float | None:
    """Return the number that a record contains as a string; None if it is not a number."""
    if not _NUMBER.fullmatch(text):
        return None
    return float(text) if "." in text else int(text)


def columns() -> int:
    """Return the width of the terminal that standard output is; in a file nothing is cut."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10000


def size_text(size: int) -> str:
    """Return a size with its unit, such as 9.4 GB."""
    tenths, unit = size * 10, 0
    while tenths >= 10000 and unit < len(_UNITS) - 1:
        tenths, unit = (tenths + 500) // 1000, unit + 1
    if unit == 0 or tenths >= 1000:
        return f"{(tenths + 5) // 10} {_UNITS[unit]}"
    return f"{tenths // 10}.{tenths % 10} {_UNITS[unit]}"
