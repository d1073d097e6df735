"""Everything on top of the image, in order: the lines of set_up.py."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from lib.assets import assets
from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, make_lines, open_lines, step_after_download
from lib.packages import install
from lib.repositories import repositories
from lib.repositories.repositories import repository_lines
from lib.runtimes.environment import Environment
from lib.runtimes.launch import inside_lines
from lib.runtimes.packages import OVERLAY_COMMAND, SET_UP_COMMAND, Packages
from lib.script.command import assign, call
from lib.script.errors import LongshipError, suggest


def install_lines(
    env: Environment, command_line: str, *, force: bool = False, offline: bool = False
) -> list[str]:
    """Return the lines of ``set_up.py install``, or ``offline``, which needs only the download.

    They create what is missing and keep what exists; with `force` the venv is built anew.
    """
    settings, paths = env.settings, env.paths
    bundles = paths.offline / "repos" if offline else None
    cloned = repository_lines(settings, paths, "update" if offline else "install", bundles)
    fetched = (assets.asset_offline_lines if offline else assets.asset_install_lines)(
        settings, paths
    )
    alone = not (cloned or fetched)
    return [
        *_start_lines(env, command_line),
        *cloned,
        *_package_lines(env, alone=alone, force=force, offline=offline),
        *fetched,
        *_next_lines(env, offline=offline),
    ]


def update_lines(env: Environment, command_line: str, names: Collection[str] = ()) -> list[str]:
    """Return the lines of ``set_up.py update``: repositories as configured, the newest packages.

    The names, if any, are of repositories, or ``packages``.
    """
    settings, paths = env.settings, env.paths
    known = ["packages", *(each.name for each in repositories.configured_repositories(settings))]
    for name in names:
        if name not in known:
            raise LongshipError(f'nothing to update: "{name}"', suggest(name, known))
    some = {*names} - {"packages"}
    updated = [] if names and not some else repository_lines(settings, paths, "update", names=some)
    wanted = "packages" in names if names else env.packages.wanted or not updated
    steps = env.packages.steps if wanted else []
    return [
        *_start_lines(env, command_line, update=True, resolves=wanted),
        *updated,
        *(install.update_lock_lines(env) if wanted else []),
        *(call("next_step", each) for each in steps),
    ]


def repositories_alone_lines(
    settings: Settings, paths: Paths, action: str, command_line: str
) -> list[str]:
    """Return the lines that do nothing else with the repositories, such as ``save-patches``."""
    lines = repository_lines(settings, paths, action)
    if not lines:
        raise LongshipError(
            "no repository is configured", "add one to configuration.toml: [[repositories]]"
        )
    goes_on = action == "continue" and Packages(settings, paths).venv is not None
    following = [call("next_step", settings.command(*SET_UP_COMMAND))] if goes_on else []
    return [*_directory_lines(paths, command_line), *lines, *following]


def download_lines(env: Environment, command_line: str, *, overlay: bool = False) -> list[str]:
    """Return the lines of ``set_up.py download``, with options of pip as ``"$@"``.

    The ``overlay`` needs only the packages.
    """
    # the requirements of repositories are read in their clones
    settings, here = env.settings, env.paths
    cloned = repository_lines(settings, here, "install")
    bundled = repositories.bundle_lines(here) if cloned and not overlay else []
    fetched = [] if overlay else assets.asset_download_lines(settings, here)
    if not overlay:
        install.above_lines(env, offline=True)  # refuses what `offline` would refuse
    wanted = env.packages.wanted or not (cloned or fetched)
    script = "build_overlay.py" if overlay else "set_up.py"
    offline = settings.command("python3", script, "offline")
    return [
        assign("longship_library", here.root / "lib"),
        *_directory_lines(here, command_line, here.offline),
        *cloned,
        *bundled,
        *(install.wheel_download_lines(env) if wanted else []),
        *fetched,
        *open_lines(here, here.offline),
        call("next_step", step_after_download(settings, here, here.offline, offline)),
    ]


def _package_lines(env: Environment, *, alone: bool, force: bool, offline: bool) -> list[str]:
    """Return the lines that create the venv; none if only other things are configured."""
    if not env.venv:
        if env.packages.overlay_name:
            build = env.settings.command(*OVERLAY_COMMAND)
            return [call("note", f"the Python packages are in the overlay, see: {build}")]
        if not alone:
            return []
    return install.venv_lines(env, force=force, offline=offline)


def _directory_lines(paths: Paths, command_line: str, *shared: Path) -> list[str]:
    enter = call("cd", "--", paths.root)  # programs read files of where they are started
    return [enter, call("on_interrupt", command_line), *make_lines(paths, *shared)]


def _start_lines(
    env: Environment, command_line: str, *, update: bool = False, resolves: bool = False
) -> list[str]:
    """Return the lines that modes begin with; ``inside COMMAND...`` is defined if it is used."""
    settings, paths = env.settings, env.paths
    lines = _directory_lines(paths, command_line)
    inside = resolves or env.venv or assets.configured_assets(settings)
    if repositories.configured_repositories(settings) and not inside:
        return lines
    overlay = env.overlay if env.venv and not update else ""
    return [
        assign("longship_library", paths.root / "lib"),
        *lines,
        *inside_lines(env._replace(held={"overlay": overlay})),
        "",
    ]


def _next_lines(env: Environment, *, offline: bool) -> list[str]:
    if not env.packages.wanted:
        return []
    if not env.venv and not os.path.exists(env.overlay):
        mode = ["offline"] if offline else []
        return [call("next_step", env.settings.command(*OVERLAY_COMMAND, *mode))]
    return [call("next_step", install.data_command(env.settings))]
