"""The Python packages of the environment: where its overlay and its venv are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import RepositoryEntry, configured_repositories
from lib.script.errors import LongshipError

# The mount point of an overlay, and the path that it is built at; users of Olivia know it.
MOUNTED_AT = "/user-software"

# Where a bundle was unpacked, hints name the offline modes instead: lib/script/errors.py.
OVERLAY_COMMAND = ("python3", "build_overlay.py")
SET_UP_COMMAND = ("python3", "set_up.py", "install")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Packages(NamedTuple):
    """The packages that the configuration installs: into an overlay, a venv, or both."""

    settings: Settings
    paths: Paths

    @property
    def overlay_name(self) -> str:
        """Name of the overlay; "" for a venv alone."""
        return self.settings.configuration.packages.overlay

    @property
    def overlay(self) -> Path | None:
        """Path of the overlay for the current requirements; None if none is configured.

        Its name contains the first 12 hex digits of the SHA-256 of the requirements file. Once the
        overlay is built, the path is a link to one of the versions.
        """
        name, requirements = self.overlay_name, self.settings.configuration.packages.requirements
        if not name:
            return None
        if not _NAME.fullmatch(name):
            raise LongshipError(
                f"packages.overlay in {self.settings.origins['packages.overlay']} is not a valid "
                f'name: "{name}"',
                "use letters, digits, dots, - and _",
            )
        if not requirements:
            raise LongshipError(
                "packages.overlay requires packages.requirements, which is empty",
                'set packages.requirements = "requirements/environment.txt" in configuration.toml',
            )
        digest = _digest(self.settings.root / requirements)
        return self.paths.overlays / f"{name}_{digest[:12]}_{self.paths.arch}.sqsh"

    @property
    def installed(self) -> list[RepositoryEntry]:
        """The repositories that are installed or have an install script."""
        found = configured_repositories(self.settings)
        return [each for each in found if each.install != "none" or each.script]

    @property
    def wanted(self) -> bool:
        """Whether the configuration installs any package."""
        keys = self.settings.configuration.packages
        return bool(keys.requirements or keys.venv_requirements or self.installed)

    @property
    def venv(self) -> Path | None:
        """Path of the venv, or None if nothing is installed into one.

        With an overlay it has only what changes often: an overlay is read-only, and takes long.
        """
        if not self.overlay_name:
            return self.paths.venv if self.wanted else None
        more = self.settings.configuration.packages.venv_requirements
        in_venv = more or any(
            each.install != "requirements" or each.script for each in self.installed
        )
        return self.paths.venv if in_venv else None

    @property
    def steps(self) -> list[str]:
        """The commands that install the packages on this machine, in order."""
        overlay = [OVERLAY_COMMAND] if self.overlay_name else []
        venv = [SET_UP_COMMAND] if self.venv else []
        return [self.settings.command(*each) for each in (*overlay, *venv)]


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
