"""Every value of the configuration with where it comes from, and without what nobody may see."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lib.configuration.layers import Settings
from lib.configuration.schema import KEYS
from lib.configuration.snapshot import looks_secret

MASK = "***"

# the tables with what users name themselves
_NAMED = ("environment.set", "training")
_LOGIN = re.compile(r"(://)[^/\s]*@")


def configured_values(settings: Settings) -> list[tuple[str, str, str]]:
    """Return key, value and origin of everything that is configured.

    Parameters
    ----------
    settings : Settings
        All layers put together.

    Returns
    -------
    list of tuple
        In the order of the configuration; values as TOML has them, secrets as `MASK`.
    """
    found = []
    for key in KEYS:
        value: Any = settings.configuration
        for part in key.split("."):
            value = getattr(value, part)
        shown = _shown(value, by_name=key in _NAMED)
        found.append((key, shown, settings.origins[key]))
    return found


def _shown(value: Any, *, by_name: bool = False) -> str:
    """Write a value; `by_name` where the names in a table say what is secret."""
    if isinstance(value, Mapping):
        entries = (
            f"{_key(name)} = {_of_name(name, each) if by_name else _shown(each)}"
            for name, each in value.items()
        )
        return f"{{ {', '.join(entries)} }}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, str):
        return json.dumps(_LOGIN.sub(rf"\1{MASK}@", value), ensure_ascii=False)
    return json.dumps(value)


def _of_name(name: str, value: Any) -> str:
    if looks_secret(name):
        return f'"{MASK}"'
    if name.lower().endswith("_proxy") and "@" in str(value):  # a password can hold a slash
        return json.dumps(f"{MASK}@{str(value).rpartition('@')[2]}", ensure_ascii=False)
    return _shown(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
