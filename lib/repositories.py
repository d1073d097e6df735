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
        value = entry.get(key, "")
        if value.startswith("-") or "\n" in value:
            raise LongshipError(
                f"{origin}: {key} of repository {name} is {value!r}", "git would misread it"
            )
        if _PASSWORD.match(value):
            raise LongshipError(
                f"{origin}: {key} of repository {name} holds a password",
                "take it out; git asks a credential helper: git help credentials",
            )
    return Repository(**{**entry, "name": name})


def repository_lines(
    settings: Settings, paths: Paths, function: str, bundles: Path | None = None
) -> list[str]:
    """Return the lines that do something with all configured repositories.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    function : str
        A function of ``lib/shell/``, such as ``update_repositories``.
    bundles : pathlib.Path or None
        Where what is carried to a machine without network lies; None for the servers.

    Returns
    -------
    list of str
        Lines of bash; none where no repository is configured.
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
    """Return the lines that name all configured repositories, and where they lie; or none.

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
    """Return the folder of a repository's patches: the stack's, where it has them, or the group's.

    Raises
    ------
    LongshipError
        If both are there: which comes first cannot be known.
    """
    of_stack = Path("stacks", settings.stack.name, "patches", name)
    of_group = Path("patches", name)
    there = [each for each in (of_stack, of_group) if (settings.root / each).is_dir()]
    if len(there) > 1:
        raise LongshipError(
            f"patches for {name} lie in {of_stack} and in {of_group}",
            f"move them to one of the two, numbered in their order: git mv {of_group}/* {of_stack}",
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
