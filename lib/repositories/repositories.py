"""External repositories: cloned, updated with the user's changes replayed, saved as patches."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import configured_repositories
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion

WORKER = Expansion('"${repositories[@]}"')


def repository_lines(
    settings: Settings,
    paths: Paths,
    action: str,
    bundles: Path | None = None,
    names: Collection[str] = (),
) -> list[str]:
    """Return the lines for an action of worker.py, such as ``update``; may be empty.

    The bundles are the directory of git bundles that an air-gapped machine has instead of servers.
    With names, only these repositories are meant.
    """
    listed = listed_lines(settings, paths, bundles, names)
    if not listed:
        return []
    directory = paths.repositories
    return [*listed, call("repositories_run", action, directory, WORKER)]


def listed_lines(
    settings: Settings, paths: Paths, bundles: Path | None = None, names: Collection[str] = ()
) -> list[str]:
    """Return the lines that list the configured repositories and their paths; may be empty."""
    configured = configured_repositories(settings)
    if names:
        configured = [each for each in configured if each.name in names]
    if not configured:
        return []
    worker = [sys.executable or "python3", "-I", "-X", "utf8"]
    worker.append(paths.root / "lib/repositories/worker.py")
    options = [f"--repositories={paths.repositories}"]
    options += [f"--bundles={bundles}"] if bundles else []
    options += [f"--typed={each}" for each in settings.typed_options]
    lines = [call(*worker), *map(call, options)]
    for each in configured:
        words = (each.name, each.url, each.ref, each.upstream)
        lines.append(call("--configured", *words, _series(settings, paths, each.name)))
    return ["repositories=(\n    " + "\n    ".join(lines) + ")"]


def _series(settings: Settings, paths: Paths, name: str) -> Path:
    """Return the directory of a repository's patches: the stack's, else the group's."""
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
    bundles, mirrors = here.offline / "repos", here.cache / "repositories"
    options = (f"--into={bundles}", f"--mirrors={mirrors}")
    return [
        call("directory_make", bundles),
        call("repositories_run", "download", mirrors, WORKER, *options),
    ]
