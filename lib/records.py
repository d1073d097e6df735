"""Records: flat JSON, as bash writes it beside images, overlays and in the folders of runs."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from lib.errors import LongshipError
from lib.images import ImageSource, image_file, image_name
from lib.paths import Paths


def recorded_digest(runtime: str, source: ImageSource, paths: Paths) -> str:
    """Return the digest that the source had: of the image in use, else the one recorded last.

    Parameters
    ----------
    runtime : str
        What runs the image.
    source : ImageSource
        Where it comes from.
    paths : Paths
        Where the records lie.

    Raises
    ------
    LongshipError
        If nothing was recorded of this source.
    """
    for record in _records(runtime, source, paths):
        found = read_record(record)
        if found.get("source") == source.address and found.get("digest"):
            return found["digest"]
    raise LongshipError(
        f"no digest of {source.address} was recorded in {paths.containers}",
        "build it as it is today: python3 build_container.py",
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


def is_own(folder: Path) -> bool:
    """Tell whether a folder is the user's, and nobody else can write to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def read_record(record: Path) -> dict[str, str]:
    """Read what bash has recorded (`write_facts`); nothing where there is no such file.

    Raises
    ------
    LongshipError
        If it cannot be read.
    """
    try:
        return json.loads(record.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LongshipError(
            f"cannot read the record {record}: {error}", f"delete it: rm {record}"
        ) from error
