"""External repositories: cloned, updated with the user's changes replayed, saved as patches."""

from __future__ import annotations

from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import configured_repositories
from lib.script.command import assign, call
from lib.script.errors import LongshipError


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
        Name of a function in ``lib/repositories/``, such as ``update_repositories``.
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
