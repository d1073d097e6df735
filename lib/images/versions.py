"""The active image and its earlier versions: the lines of `move_built_container_to_active.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lib.configuration.paths import Paths
from lib.images.patched_files import compare_lines
from lib.runtimes.choice import program_lines
from lib.runtimes.environment import Environment
from lib.runtimes.image import active_image, check_usable, image_name
from lib.script.command import assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, word
from lib.script.records import read_record

_SCRIPT = "python3 move_built_container_to_active.py"


def move_lines(env: Environment, following: Sequence[str]) -> list[str]:
    """Return the lines that check the new image and activate it.

    ``following`` are the commands to run next: packages belong to an image.
    """
    settings, paths = env.settings, env.paths
    active = _active(env)
    reference = Expansion(f'"$(image_reference {word(active)})"')
    return [
        *_facts(paths, env.runtime),
        call("on_interrupt", _SCRIPT),
        call("directory_make", paths.containers / "build"),
        *program_lines(settings, env.runtime),
        "",
        call("image_activate", active),
        *compare_lines(env, reference),
        *(call("next_step", each) for each in following),
    ]


def use_lines(env: Environment, following: Sequence[str], version: str | None) -> list[str]:
    """Return the lines that activate a version, by default the previously active one."""
    settings, paths = env.settings, env.paths
    active = _active(env)
    use = ("image_roll_back", active) if version is None else ("image_use", active, version)
    return [
        *_facts(paths, env.runtime),
        call("directory_make", paths.containers),
        *program_lines(settings, env.runtime),
        "",
        call(*use),
        *(call("next_step", each) for each in following),
    ]


def prune_lines(env: Environment) -> list[str]:
    """Return the lines that delete unused versions."""
    paths = env.paths
    return [
        assign("arch", paths.arch),
        call("directory_make", paths.containers),
        call("image_prune", _active(env)),
    ]


def _facts(paths: Paths, runtime: str) -> list[str]:
    return [
        assign("arch", paths.arch),
        assign("runtime", runtime),
        assign("LIBRARY", paths.root / "lib"),
    ]


def _active(env: Environment) -> Path:
    """Return the path of the active image."""
    check_usable(env.runtime, env.source)
    return active_image(env.runtime, env.source, env.paths)


def recorded_digest(env: Environment) -> str:
    """Return the recorded digest of the source: of the active image, else the latest."""
    source, paths = env.source, env.paths
    for record in _records(env):
        found = read_record(record)
        if found.get("source") == source.address and found.get("digest"):
            return found["digest"]
    raise LongshipError(
        f"no digest of {source.address} was recorded in {paths.containers}",
        "to build the current one, run: python3 build_container.py",
    )


def _records(env: Environment) -> list[Path]:
    source, paths = env.source, env.paths
    active = active_image(env.runtime, source, paths)
    pattern = f"versions/{active.stem}_*{active.suffix}.json"
    versions = sorted(paths.containers.glob(pattern), reverse=True)
    archives = paths.archives.glob(f"{image_name(source)}_{paths.arch}.*.json")
    return [
        *([Path(f"{active.resolve()}.json")] if os.path.islink(active) else []),
        paths.containers / "build" / f"{active.name}.json",
        *versions,
        *archives,
    ]
