"""Everything on top of the image, in order: the lines of set_up.py."""

from __future__ import annotations

from lib.assets import install_lines as asset_lines
from lib.command import assign, call
from lib.container import inside_lines
from lib.errors import LongshipError
from lib.packages import install_lines as package_lines
from lib.packages import wanted_venv
from lib.patched_files import check_lines
from lib.paths import Paths
from lib.repositories import repository_lines
from lib.settings import Settings


def install_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines of ``set_up.py install``: make what is missing, leave what is there.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        From `lib.runtimes.choose_runtime`.

    Returns
    -------
    list of str
        Lines of bash.

    Raises
    ------
    LongshipError
        If there is nothing to set up.
    """
    typed = "python set_up.py install"
    repositories = repository_lines(settings, paths, "install_repositories")
    assets = asset_lines(settings, paths)
    wanted = wanted_venv(settings, paths) is not None
    if repositories and not wanted and not assets:
        return [*_folder_lines(paths, typed), *repositories]
    return [
        *_start_lines(settings, paths, runtime, typed),
        *repositories,
        *(package_lines(settings, paths, runtime) if wanted or not assets else []),
        *assets,
        call("next_step", "python container_run.py python preprocess_data.py"),
    ]


def update_lines(settings: Settings, paths: Paths, function: str, typed: str) -> list[str]:
    """Return the lines that move the repositories to what is configured, or go on with that.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    function : str
        ``update_repositories``, ``continue_update``, ``abort_update`` or ``save_all_series``.
    typed : str
        What the user typed, to go on after an interruption.

    Raises
    ------
    LongshipError
        If no repository is configured.
    """
    repositories = repository_lines(settings, paths, function)
    if not repositories:
        raise LongshipError(
            "no repository is configured", "[[repositories]] in configuration.toml names them"
        )
    return [*_folder_lines(paths, typed), *repositories]


def _folder_lines(paths: Paths, typed: str) -> list[str]:
    """Return the lines that every mode begins with."""
    return [
        call("on_interrupt", typed),
        call("make_folders", paths.project_dir, paths.scratch_dir),
    ]


def _start_lines(settings: Settings, paths: Paths, runtime: str, typed: str) -> list[str]:
    """Return the lines that define ``inside COMMAND...``, for modes that install."""
    return [
        assign("LIBRARY", paths.root / "lib"),
        *_folder_lines(paths, typed),
        *inside_lines(settings, paths, runtime),
        *check_lines(settings, paths, runtime),
        "",
    ]
