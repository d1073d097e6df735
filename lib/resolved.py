"""All values put together again as one configuration file: what a job runs with."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from lib.settings import Settings


def resolved(settings: Settings) -> str:
    """Return all values as one file, for the same machine and stack.

    Read again as the configuration it gives the same settings. What the files of the site and the
    stack say later changes none of its values, but tables, such as ``environment.set``, gain what
    is new there, as they always do.

    Parameters
    ----------
    settings : Settings
        All layers put together.

    Returns
    -------
    str
        TOML.
    """
    values = dataclasses.asdict(settings.configuration)
    return write_toml({**values, "machine": settings.machine.name, "stack": settings.stack.name})


def write_toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """Write values as TOML: what stands in no table first, then the tables.

    Parameters
    ----------
    tables : mapping
        Texts, numbers, lists of texts, mappings (tables), and lists of mappings.
    prefix : str
        The dotted name of the table that they stand in.
    """

    def is_table(value: Any) -> bool:
        return isinstance(value, Mapping)

    def is_list_of_tables(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and bool(value) and is_table(value[0])

    lines, after = [], []
    for name, value in tables.items():
        dotted = f"{prefix}.{_toml_key(name)}" if prefix else _toml_key(name)
        if is_table(value):
            after.append(f"\n[{dotted}]\n{write_toml(value, dotted)}")
        elif is_list_of_tables(value):
            after += [f"\n[[{dotted}]]\n{write_toml(each, dotted)}" for each in value]
        elif isinstance(value, (list, tuple)):
            lines.append(f"{_toml_key(name)} = [{', '.join(map(_toml_text, value))}]\n")
        else:
            shown = value if isinstance(value, (int, float)) else _toml_text(value)
            lines.append(f"{_toml_key(name)} = {shown}\n")
    return "".join((*lines, *after))


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_text(name)


def _toml_text(text: str) -> str:
    """Quote a text: JSON's form is TOML's too, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
