"""Everything on top of the image, in order: the lines of set_up.py."""

from __future__ import annotations

from lib.command import assign, call
from lib.container import inside_lines
from lib.packages import install_lines as package_lines
from lib.packages import renew_lock_lines
from lib.paths import Paths
from lib.settings import Settings
from lib.wheelhouse import download_lines as package_download_lines
from lib.wheelhouse import next_step


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
    return [
        *_start_lines(settings, paths, runtime, "python set_up.py install"),
        *package_lines(settings, paths, runtime),
        call("next_step", "python container_run.py python preprocess_data.py"),
    ]


def update_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines of ``set_up.py update``: pin the newest packages.

    Parameters and errors are those of `install_lines`.
    """
    return [
        *_start_lines(settings, paths, runtime, "python set_up.py update"),
        *renew_lock_lines(settings, paths, runtime),
        call("next_step", "python set_up.py install"),
    ]


def download_lines(settings: Settings, here: Paths, runtime: str, typed: str) -> list[str]:
    """Return the lines of ``set_up.py download``: fetch what a machine without network needs.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the machine that will use it.
    here : Paths
        Where things lie on the machine that downloads.
    runtime : str
        What runs the image there.
    typed : str
        What the user typed, to go on after an interruption.

    Returns
    -------
    list of str
        Lines of bash, which take more options of pip as ``"$@"``.

    Raises
    ------
    LongshipError
        If there is nothing to fetch.
    """
    return [
        assign("LIBRARY", here.root / "lib"),
        call("on_interrupt", typed),
        call("make_folders", here.project_dir, here.scratch_dir),
        *package_download_lines(settings, here, runtime),
        call("next_step", next_step(settings, here)),
    ]


def offline_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines of ``set_up.py offline``: the same as ``install``, from what was fetched.

    Parameters and errors are those of `install_lines`.
    """
    return [
        *_start_lines(settings, paths, runtime, "python set_up.py offline"),
        *package_lines(settings, paths, runtime, offline=True),
        call("next_step", "python container_run.py python preprocess_data.py"),
    ]


def _start_lines(settings: Settings, paths: Paths, runtime: str, typed: str) -> list[str]:
    """Return the lines that every mode begins with; they define ``inside COMMAND...``."""
    return [
        assign("LIBRARY", paths.root / "lib"),
        call("on_interrupt", typed),
        call("make_folders", paths.project_dir, paths.scratch_dir),
        *inside_lines(settings, paths, runtime),
        "",
    ]
