"""External repositories, as the configuration describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lib.configuration.layers import Settings
from lib.configuration.schema import RepositoryEntry, entry_name
from lib.script.errors import LongshipError
from lib.script.secrets import LOGIN

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"


def configured_repositories(settings: Settings) -> tuple[RepositoryEntry, ...]:
    """Return the configured repositories of all layers; each has a URL without a password."""
    return tuple(
        _repository(entry, settings.origins["repositories"])
        for entry in settings.configuration.repositories
    )


def _repository(entry: Mapping[str, Any], origin: str) -> RepositoryEntry:
    name = entry_name(entry)
    if not entry.get("url"):
        raise LongshipError(
            f'{origin}: repository "{name}" has no url',
            'set url = "https://..."; or correct the name',
        )
    if not re.fullmatch(_NAME, name):
        raise LongshipError(
            f'{origin}: "{name}" is not a valid directory name',
            'set name to letters, digits, dots, - and _: name = "..."',
        )
    for key in ("url", "ref", "upstream"):
        value = entry.get(key, "")
        if value.startswith("-") or "\n" in value:
            raise LongshipError(
                f"{origin}: invalid {key} of repository {name}: {value!r}",
                "remove the leading - or the newline, which git would misread",
            )
        if re.search(LOGIN, value):
            raise LongshipError(
                f"{origin}: {key} of repository {name} contains a password",
                "remove it, and use a credential helper: git help credentials",
            )
    return RepositoryEntry(**{**entry, "name": name})
