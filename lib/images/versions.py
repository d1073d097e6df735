"""The active image and its earlier versions: the lines of `move_built_container_to_active.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.images.patched_files import compare_lines
from lib.runtimes.choice import program_lines
from lib.runtimes.image import ImageSource, check_usable, image_file, image_name, image_source
from lib.script.command import assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, word
from lib.script.records import read_record

_SCRIPT = "python3 move_built_container_to_active.py"


def move_lines(
    settings: Settings, paths: Paths, runtime: str, following: Sequence[str]
) -> list[str]:
    """Return the lines that check the new image and activate it.

    ``following`` are the commands to run next: packages belong to an image.
    """
    active = _active(settings, paths, runtime)
    reference = Expansion(f'"$(image_reference {word(active)})"')
    return [
        *_facts(paths, runtime),
        call("on_interrupt", _SCRIPT),
        call("make_folders", paths.containers / "build"),
        *program_lines(settings, runtime),
        "",
        call("image_activate", active),
        *compare_lines(settings, paths, reference),
        *(call("next_step", each) for each in following),
    ]


def use_lines(
    settings: Settings,
    paths: Paths,
    runtime: str,
    following: Sequence[str],
    version: str | None,
) -> list[str]:
    """Return the lines that activate a version, by default the previously active one."""
    active = _active(settings, paths, runtime)
    use = [call("image_use", active, version)] if version is not None else []
    return [
        *_facts(paths, runtime),
        call("make_folders", paths.containers),
        *program_lines(settings, runtime),
        "",
        *(use or [call("image_roll_back", active)]),
        *(call("next_step", each) for each in following),
    ]


def prune_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that delete unused versions."""
    return [
        assign("arch", paths.arch),
        call("make_folders", paths.containers),
        call("image_prune", _active(settings, paths, runtime)),
    ]


def _facts(paths: Paths, runtime: str) -> list[str]:
    return [
        assign("arch", paths.arch),
        assign("runtime", runtime),
        assign("LIBRARY", paths.root / "lib"),
    ]


def _active(settings: Settings, paths: Paths, runtime: str) -> Path:
    """Return the path of the active image."""
    source = image_source(settings)
    check_usable(runtime, source)
    return paths.containers / image_file(runtime, source, paths)


def recorded_digest(runtime: str, source: ImageSource, paths: Paths) -> str:
    """Return the recorded digest of the source: of the active image, else the latest.

    Raises
    ------
    LongshipError
        If no digest of this source was recorded.
    """
    for record in _records(runtime, source, paths):
        found = read_record(record)
        if found.get("source") == source.address and found.get("digest"):
            return found["digest"]
    raise LongshipError(
        f"no digest of {source.address} was recorded in {paths.containers}",
        "to build the current one, run: python3 build_container.py",
    )


def _records(runtime: str, source: ImageSource, paths: Paths) -> list[Path]:
    file = image_file(runtime, source, paths)
    active = paths.containers / file
    name, _, ending = file.rpartition(".")
    versions = sorted(paths.containers.glob(f"versions/{name}_*.{ending}.json"), reverse=True)
    archives = paths.archives.glob(f"{image_name(source)}_{paths.arch}.*.json")
    return [
        *([Path(f"{active.resolve()}.json")] if os.path.islink(active) else []),
        paths.containers / "build" / f"{file}.json",
        *versions,
        *archives,
    ]
