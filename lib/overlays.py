"""Overlays: the Python packages as one SquashFS file on top of the image, and its name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lib.errors import LongshipError
from lib.paths import Paths, pinned
from lib.settings import Settings

# The mount point of an overlay, and the path that it is built at; users of Olivia know it.
MOUNTED_AT = "/user-software"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def configured_overlay(settings: Settings, paths: Paths) -> Path | None:
    """Return the path of the overlay for the current requirements.

    Once the overlay is built, it is a link to one of the versions.

    Parameters
    ----------
    settings : Settings
        All layers merged.
    paths : Paths
        The derived paths.

    Returns
    -------
    pathlib.Path or None
        ``<scratch_dir>/overlays/<name>_<first 12 hex digits of the SHA-256 of the requirements
        file>_<arch>.sqsh``; None if the configuration names no overlay.

    Raises
    ------
    LongshipError
        If the name is not a valid file name, or there is no requirements file.
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
    """Return the requirements file, whose checksum is in the overlay's name.

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
    """Return the file that a launch mounts, the target of the link; or "".

    Errors are those of `configured_overlay`.
    """
    link = configured_overlay(settings, paths)
    return str(pinned(link)) if link else ""


def seen_at(overlay: str, runtime: str) -> str:
    """Return the path that an overlay's packages have for the program.

    Without a container there is no mount point: they are unpacked to a directory next to the file.

    Parameters
    ----------
    overlay : str
        From `overlay_to_start`.
    runtime : str
        The container runtime.
    """
    return unpacked(overlay) if runtime == "host" else MOUNTED_AT


def unpacked(overlay: str) -> str:
    """Return the directory that a version is unpacked to, for runtimes that cannot mount it."""
    folder, name = os.path.split(overlay)
    return os.path.join(os.path.dirname(folder), "unpacked", name[: -len(".sqsh")])
