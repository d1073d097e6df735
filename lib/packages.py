"""The Python packages on top of the image."""

from __future__ import annotations

from pathlib import Path

from lib.command import assign, wrapped
from lib.container import base_of, describe_launch
from lib.errors import LongshipError
from lib.paths import Paths
from lib.quoting import Expansion, Word
from lib.settings import Settings

_VENV = Expansion('"$venv"')


def wanted_venv(settings: Settings, paths: Paths) -> Path | None:
    """Return the venv's path, or None where nothing is to be installed."""
    wanted = settings.configuration.packages.requirements or settings.stack.requirements
    return paths.venv if wanted else None


def install_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that make the venv, with ``inside COMMAND...`` defined.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        From `lib.container.choose_runtime`.

    Returns
    -------
    list of str
        Lines of bash.

    Raises
    ------
    LongshipError
        If neither the configuration nor the stack names a package.
    """
    if wanted_venv(settings, paths) is None:
        raise LongshipError(
            f"packages.requirements is empty, and so are those of stack {settings.stack.name}",
            'there is nothing to install; or set it to "requirements/environment.txt"',
        )
    packages = settings.configuration.packages
    requirements: list[Word] = list(settings.stack.requirements)
    if packages.requirements:
        requirements += ["-r", paths.root / packages.requirements]
    torch = str(paths.root / settings.stack.torch) if settings.stack.torch else ""
    launch = describe_launch(settings, paths, runtime)
    return [
        assign("venv", paths.venv),
        wrapped(
            *("locked", _VENV, "install_venv", _VENV, base_of(launch)),
            *(packages.installer, paths.tools / "uv", torch, *requirements),
        ),
    ]
