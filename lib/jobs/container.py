"""What the ranks of a job start: the checks before it is submitted, and what Pyxis starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, pinned
from lib.runtimes import pyxis
from lib.runtimes.choice import MODULES
from lib.runtimes.container import describe_launch, package_folders, venv_binds
from lib.runtimes.contract import environment_script
from lib.runtimes.image import image_to_start
from lib.runtimes.packages import overlay_to_start
from lib.script.command import assign, call


def check_lines(settings: Settings, paths: Paths, runtime: str, venv: Path | None) -> list[str]:
    """Return the lines that check what a job will start: image, overlay and venv belong together.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `choose_runtime`.
    venv : pathlib.Path or None
        The venv that comes first on PATH.
    """
    overlay = overlay_to_start(settings, paths)
    launch = describe_launch(settings, paths, runtime, overlay=overlay)
    base = overlay or launch.base
    if pyxis.uses_pyxis(settings, runtime):
        pyxis.check_binds(launch)
    return [
        *MODULES[runtime].check(launch),
        *([assign("overlay", overlay), call("check_overlay", launch.base)] if overlay else []),
        *([call("check_venv", pinned(venv), base)] if venv else []),
    ]


def pyxis_launcher_lines(
    settings: Settings, paths: Paths, runtime: str, venv: Path | None
) -> list[str]:
    """Return the lines of a launcher that Pyxis starts inside.

    Parameters are those of `check_lines`.
    """
    overlay = overlay_to_start(settings, paths)
    venv = pinned(venv) if venv else None
    folders = package_folders(runtime, overlay, venv)
    contract = environment_script(settings, paths, online=False, folders=folders)
    base = overlay or image_to_start(runtime, settings, paths)
    checks = [call("check_venv", venv, base)] if venv else []
    return pyxis.launcher_lines(paths.root, contract, checks)


def container_lines(
    settings: Settings, paths: Paths, runtime: str, named: Mapping[str, str]
) -> list[str]:
    """Return the lines of a job's start for a machine whose `srun` starts the containers.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `choose_runtime`.
    named : mapping
        What is pinned: ``image``, ``overlay`` and ``venv``.
    """
    if settings.machine.pyxis != "yes":
        return []
    overlay = named["overlay"]
    launch = describe_launch(settings, paths, runtime, pip_sources=False, overlay=overlay)
    venv = Path(named["venv"]) if named["venv"] else None
    site_binds = (*launch.site_binds, *venv_binds(venv, paths))
    launch = launch._replace(image=named["image"], site_binds=site_binds)
    return pyxis.option_lines(settings, launch if pyxis.uses_pyxis(settings, runtime) else None)
