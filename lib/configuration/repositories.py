"""External repositories, as the configuration describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lib.configuration.entries import INSTALLS, REPOSITORY
from lib.configuration.layers import Settings
from lib.configuration.schema import entry_name
from lib.script.errors import LongshipError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
# a password after a colon; over https, where git asks for one, a token can stand alone
_PASSWORD = re.compile(r"\w+://[^/@]*:[^/@]*@|https?://[^/@]+@")


class Repository(NamedTuple):
    """One of the [[repositories]].

    Parameters
    ----------
    name : str
        Name of its directory.
    url, ref : str
        URL to clone, and the tag, branch or commit; "" for the default branch.
    upstream : str
        URL of the original repository if ``url`` is a fork, else "".
    install : str
        How to install it into the venv: ``editable``, ``plain``, ``requirements`` or ``none``.
    extras : tuple of str
        Optional dependencies to install.
    requirements : str
        Its requirements file, for ``install = "requirements"``.
    script : str
        Script of this repository to run inside the environment after the installation, else "".
    """

    name: str
    url: str
    ref: str = ""
    upstream: str = ""
    install: str = INSTALLS[0]
    extras: tuple[str, ...] = ()
    requirements: str = REPOSITORY["requirements"].default
    script: str = ""


def configured_repositories(settings: Settings) -> tuple[Repository, ...]:
    """Return the configured repositories of all layers.

    Raises
    ------
    LongshipError
        If one has no URL, an invalid name, or a password in its URL.
    """
    return tuple(
        _repository(entry, settings.origins["repositories"])
        for entry in settings.configuration.repositories
    )


def _repository(entry: Mapping[str, Any], origin: str) -> Repository:
    name = entry_name(entry)
    if not entry.get("url"):
        raise LongshipError(
            f'{origin}: repository "{name}" has no url',
            'set url = "https://..."; or correct the name',
        )
    if not _NAME.fullmatch(name):
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
        if _PASSWORD.match(value):
            raise LongshipError(
                f"{origin}: {key} of repository {name} contains a password",
                "remove it, and use a credential helper: git help credentials",
            )
    return Repository(**{**entry, "name": name})
