"""External repositories: cloned, updated with the user's changes replayed, saved as patches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lib.command import assign, call
from lib.configuration import entry_name
from lib.entries import INSTALLS, REPOSITORY
from lib.errors import LongshipError
from lib.paths import Paths
from lib.settings import Settings

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


def repository_lines(
    settings: Settings, paths: Paths, function: str, bundles: Path | None = None
) -> list[str]:
    """Return the lines that call a function for all configured repositories.

    Parameters
    ----------
    settings : Settings
        Settings merged from all layers.
    paths : Paths
        Paths on the target machine.
    function : str
        Name of a function in ``lib/shell/``, such as ``update_repositories``.
    bundles : pathlib.Path or None
        Directory of the git bundles on an air-gapped machine; None to use the servers.

    Returns
    -------
    list of str
        Lines of bash; empty if no repository is configured.
    """
    listed = listed_lines(settings, paths)
    if not listed:
        return []
    return [
        *listed,
        assign("saved", paths.saved_changes),
        assign("bundles", bundles or ""),
        call("locked", paths.repositories, function),
    ]


def listed_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that list all configured repositories and their paths; may be empty.

    Parameters are those of `repository_lines`.
    """
    configured = configured_repositories(settings)
    if not configured:
        return []
    return [
        assign("repositories_folder", paths.repositories),
        *(
            call(
                *("add_repository", each.name, each.url, each.ref, each.upstream),
                _series(settings, paths, each.name),
            )
            for each in configured
        ),
    ]


def _series(settings: Settings, paths: Paths, name: str) -> Path:
    """Return the directory of a repository's patches: the stack's if it exists, else the group's.

    Raises
    ------
    LongshipError
        If both exist, because their order is unknown.
    """
    of_stack = Path("stacks", settings.stack.name, "patches", name)
    of_group = Path("patches", name)
    there = [each for each in (of_stack, of_group) if (settings.root / each).is_dir()]
    if len(there) > 1:
        raise LongshipError(
            f"patches for {name} are in both {of_stack} and {of_group}",
            f"move all of them to one directory, numbered in order: git mv {of_group}/* {of_stack}",
        )
    return paths.root / (there or [of_group])[0]


def bundle_lines(here: Paths) -> list[str]:
    """Return the lines that pack the repositories for another machine; after `repository_lines`."""
    return [
        assign("bundles", here.offline / "repos"),
        assign("mirrors", here.cache / "repositories"),
        call("make_folders", here.cache),
        call("locked", here.cache / "repositories", "download_repositories"),
    ]
