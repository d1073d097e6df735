"""External repositories: cloned, updated with the user's changes replayed, saved as patches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lib.configuration import INSTALLS, REPOSITORY, entry_name
from lib.errors import LongshipError
from lib.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_PASSWORD = re.compile(r"^\w+://[^/@]*:[^/@]*@")


class Repository(NamedTuple):
    """One of the [[repositories]].

    Parameters
    ----------
    name : str
        Names its folder.
    url, ref : str
        What git clones, and which tag, branch or commit; "" for the default branch.
    upstream : str
        The original's URL where ``url`` is a fork, else "".
    install : str
        How it gets into the venv: ``editable``, ``plain``, ``requirements`` or ``none``.
    extras : tuple of str
        Optional dependencies to install with it.
    requirements : str
        Its own file, for ``install = "requirements"``.
    script : str
        A script of this repository that is run inside after that, else "".
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
    """Return the repositories of all layers.

    Raises
    ------
    LongshipError
        If one has no URL, a name that is no folder's, or a password in its URL.
    """
    return tuple(
        _repository(entry, settings.origins["repositories"])
        for entry in settings.configuration.repositories
    )


def _repository(entry: Mapping[str, Any], origin: str) -> Repository:
    name = entry_name(entry)
    if not entry.get("url"):
        raise LongshipError(
            f'{origin}: repository "{name}" has no url', 'url = "https://...", or correct its name'
        )
    if not _NAME.fullmatch(name):
        raise LongshipError(
            f'{origin}: "{name}" cannot name a repository\'s folder',
            "name it with letters, digits, dots, - and _: name = ...",
        )
    for key in ("url", "ref", "upstream"):
        if entry.get(key, "").startswith("-") or "\n" in entry.get(key, ""):
            raise LongshipError(
                f"{origin}: {key} of repository {name} is {entry[key]!r}", "git would misread it"
            )
        if _PASSWORD.match(entry.get(key, "")):
            raise LongshipError(
                f"{origin}: {key} of repository {name} holds a password",
                "take it out; git asks a credential helper: git help credentials",
            )
    return Repository(**{**entry, "name": name})
