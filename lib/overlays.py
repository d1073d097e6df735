"""Overlays: the Python packages as one SquashFS file on top of the image, and what it is called."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lib.errors import LongshipError
from lib.paths import Paths, pinned
from lib.settings import Settings

# Where an overlay is built and seen inside, as the users of Olivia know it.
MOUNTED_AT = "/user-software"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def configured_overlay(settings: Settings, paths: Paths) -> Path | None:
    """Return the path of the overlay that belongs to the requirements as they are now.

    It is a link to one of the versions beside it, once it has been built.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.

    Returns
    -------
    pathlib.Path or None
        ``<scratch_dir>/overlays/<name>_<first 12 hex digits of the SHA-256 of the requirements
        file>_<arch>.sqsh``; None where the configuration names no overlay.

    Raises
    ------
    LongshipError
        If the name cannot be a file's, or there is no requirements file.
    """
    packages = settings.configuration.packages
    if not packages.overlay:
        return None
    if not _NAME.fullmatch(packages.overlay):
        raise LongshipError(
            f"packages.overlay in {settings.origins['packages.overlay']} is not a valid name: "
            f'"{packages.overlay}"',
            "use letters, digits, dots, - and _",
        )
    digest = _digest(requirements_file(settings))
    return paths.overlays / f"{packages.overlay}_{digest[:12]}_{paths.arch}.sqsh"


def requirements_file(settings: Settings) -> Path:
    """Return the file that an overlay is named after.

    Raises
    ------
    LongshipError
        If the configuration names none.
    """
    name = settings.configuration.packages.requirements
    if not name:
        raise LongshipError(
            "packages.overlay requires packages.requirements, which is empty",
            'set packages.requirements = "requirements/environment.txt" in configuration.toml',
        )
    return settings.root / name


def _digest(path: Path) -> str:
    import hashlib  # 5 ms that a launch without an overlay does not need

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise LongshipError(
            f"cannot read the requirements file {path}: {error.strerror}",
            "create it, or set packages.requirements in configuration.toml",
        ) from error


def overlay_to_start(settings: Settings, paths: Paths) -> str:
    """Return the file that a launch mounts: the version that the link leads to now; or "".

    Errors are those of `configured_overlay`.
    """
    link = configured_overlay(settings, paths)
    return str(pinned(link)) if link else ""


def seen_at(overlay: str, runtime: str) -> str:
    """Return the path that an overlay's packages have for the program.

    Without a container there is no such folder as `MOUNTED_AT`: they are unpacked beside the file.

    Parameters
    ----------
    overlay : str
        From `overlay_to_start`.
    runtime : str
        What runs the image.
    """
    return unpacked(overlay) if runtime == "host" else MOUNTED_AT


def unpacked(overlay: str) -> str:
    """Return the folder that a version is unpacked to, for runtimes that mount no file."""
    folder, name = os.path.split(overlay)
    return os.path.join(os.path.dirname(folder), "unpacked", name[: -len(".sqsh")])
