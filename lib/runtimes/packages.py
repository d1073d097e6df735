"""The Python packages of the environment: where its overlay and its venv are."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import Repository, configured_repositories
from lib.script.errors import LongshipError

# The mount point of an overlay, and the path that it is built at; users of Olivia know it.
MOUNTED_AT = "/user-software"

# Where a bundle was unpacked, hints name the offline modes instead: lib/script/errors.py.
OVERLAY_COMMAND = "python3 build_overlay.py"
SET_UP_COMMAND = "python3 set_up.py install"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def configured_overlay(settings: Settings, paths: Paths) -> Path | None:
    """Return the path of the overlay for the current requirements; None if none is configured.

    Its name contains the first 12 hex digits of the SHA-256 of the requirements file. Once the
    overlay is built, the path is a link to one of the versions.
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
    """Return the requirements file, whose checksum is in the overlay's name."""
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


def seen_at(overlay: str, runtime: str) -> str:
    """Return the path of an overlay's packages for the program.

    Without a container there is no mount point: they are unpacked (lib/runtimes/overlay.bash).
    """
    if runtime != "host":
        return MOUNTED_AT
    directory, name = os.path.split(overlay)
    return os.path.join(os.path.dirname(directory), "unpacked", name[: -len(".sqsh")])


def packages_wanted(settings: Settings) -> bool:
    """Return whether the configuration installs any package."""
    packages = settings.configuration.packages
    return bool(packages.requirements or installed_repositories(settings))


def wanted_venv(settings: Settings, paths: Paths) -> Path | None:
    """Return the venv's path, or None if nothing is installed into one.

    With an overlay it contains only repositories: users work in them, and an overlay is read-only.
    """
    if not settings.configuration.packages.overlay:
        return paths.venv if packages_wanted(settings) else None
    installed = installed_repositories(settings)
    in_venv = any(each.install != "requirements" or each.script for each in installed)
    return paths.venv if in_venv else None


def install_steps(settings: Settings, paths: Paths) -> list[str]:
    """Return the commands that install the packages on this machine, in order."""
    overlay = [OVERLAY_COMMAND] if settings.configuration.packages.overlay else []
    venv = [SET_UP_COMMAND] if wanted_venv(settings, paths) else []
    return [*overlay, *venv]


def installed_repositories(settings: Settings) -> list[Repository]:
    """Return the repositories that are installed or have an install script."""
    wanted = configured_repositories(settings)
    return [each for each in wanted if each.install != "none" or each.script]
