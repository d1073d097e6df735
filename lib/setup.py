"""Everything on top of the image, in order: the lines of set_up.py."""

from __future__ import annotations

from lib.assets import install_lines as asset_lines
from lib.command import assign, call
from lib.container import inside_lines
from lib.packages import install_lines as package_lines
from lib.packages import wanted_venv
from lib.patched_files import check_lines
from lib.paths import Paths
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
    assets = asset_lines(settings, paths)
    packages = wanted_venv(settings, paths) or not assets
    return [
        *_start_lines(settings, paths, runtime, "python set_up.py install"),
        *(package_lines(settings, paths, runtime) if packages else []),
        *assets,
        call("next_step", "python container_run.py python preprocess_data.py"),
    ]


def _start_lines(settings: Settings, paths: Paths, runtime: str, typed: str) -> list[str]:
    """Return the lines that every mode begins with; they define ``inside COMMAND...``."""
    return [
        assign("LIBRARY", paths.root / "lib"),
        call("on_interrupt", typed),
        call("make_folders", paths.project_dir, paths.scratch_dir),
        *inside_lines(settings, paths, runtime),
        *check_lines(settings, paths, runtime),
        "",
    ]
