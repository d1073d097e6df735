"""The active image and its earlier versions: the lines of `move_built_container_to_active.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.images.patched_files import compare_lines
from lib.runtimes.choice import program_lines, start_in_lines
from lib.runtimes.image import ImageSource, check_usable, image_file, image_name, image_source
from lib.script.command import assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion
from lib.script.records import read_record

_ACTIVE = Expansion('"$active"')
_SCRIPT = "python3 move_built_container_to_active.py"


def move_lines(
    settings: Settings, paths: Paths, runtime: str, following: Sequence[str]
) -> list[str]:
    """Return the lines that check the new image and activate it.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        All paths of the machine.
    runtime : str
        From `lib.runtimes.choice.choose_builder`.
    following : sequence of str
        Commands to run next: packages belong to an image.

    Returns
    -------
    list of str
        Lines of bash.
    """
    return [
        call("on_interrupt", _SCRIPT),
        call("make_folders", paths.containers / "build"),
        *program_lines(settings, runtime),
        *_names(settings, paths, runtime, "arch", "active", "image", "record"),
        "",
        *start_in_lines(runtime, paths.root),
        call("move_new_image"),
        *compare_lines(settings, paths, Expansion('"$(startable "$active")"')),
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
    words = ["use_version", version, "use"] if version is not None else ["roll_back"]
    return [
        call("make_folders", paths.containers),
        *program_lines(settings, runtime),
        *_names(settings, paths, runtime, "arch", "active"),
        "",
        *start_in_lines(runtime, paths.root),
        call("locked", _ACTIVE, *words),
        *(call("next_step", each) for each in following),
    ]


def prune_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that delete unused versions."""
    return [
        call("make_folders", paths.containers),
        *_names(settings, paths, runtime, "arch", "active", "image", "record"),
        call("prune_images"),
    ]


def _names(settings: Settings, paths: Paths, runtime: str, *wanted: str) -> list[str]:
    """Return the lines that assign those names."""
    source = image_source(settings)
    check_usable(runtime, source)
    file = image_file(runtime, source, paths)
    lines = {
        "arch": assign("arch", paths.arch),
        "active": assign("active", paths.containers / file),
        "image": assign("image", paths.containers / "build" / file),
        "record": 'record="$image".json',
    }
    return [lines[name] for name in wanted]


def recorded_digest(runtime: str, source: ImageSource, paths: Paths) -> str:
    """Return the recorded digest of the source: of the active image, else the latest.

    Parameters
    ----------
    runtime : str
        Runtime of the image.
    source : ImageSource
        Source of the image.
    paths : Paths
        Paths of the records.

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
