"""Building, listing and deleting overlays: the lines of `build_overlay.py`."""

from __future__ import annotations

import re
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, expand, pinned
from lib.packages import wheelhouse
from lib.packages.install import (
    data_command,
    installer_functions,
    installer_lines,
    target_lines,
    wanted_lines,
)
from lib.repositories.repositories import repository_lines
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_file, image_source
from lib.runtimes.launch import inside_lines
from lib.runtimes.packages import MOUNTED_AT, configured_overlay, install_steps
from lib.script.command import assign, call, export, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, word

_WORK = Expansion('"$work"')
_TREE = Expansion(f'"$work"/root{MOUNTED_AT}')
# variables of the installation into an overlay
_INSTALL = (
    ("UV_COMPILE_BYTECODE", "0"),  # compiled later, by freeze_packages.py
    ("PIP_NO_COMPILE", "1"),
    ("PYTHONHASHSEED", "0"),  # before Python 3.11 compiled files depend on it
)


def overlay_link(settings: Settings, paths: Paths) -> Path:
    """Return the path of the overlay for the current requirements.

    Raises
    ------
    LongshipError
        If the configuration names none.
    """
    link = configured_overlay(settings, paths)
    if link is None:
        raise LongshipError(
            "no overlay is configured: packages.overlay is empty",
            'set overlay = "myenv" in [packages] of configuration.toml',
        )
    return link


def build_lines(
    settings: Settings,
    paths: Paths,
    runtime: str,
    *,
    offline: bool = False,
    again: bool = False,
    typed: str,
) -> list[str]:
    """Return the lines that build the overlay.

    Parameters
    ----------
    settings : Settings
        All layers merged.
    paths : Paths
        The derived paths.
    runtime : str
        From `lib.runtimes.choice.choose_runtime`.
    offline : bool
        Install from downloaded packages, without network.
    again : bool
        Rebuild even if it exists.
    typed : str
        The command line, for the hint after an interruption.

    Returns
    -------
    list of str
        Lines of bash.

    Raises
    ------
    LongshipError
        If the configuration names no overlay, or no packages.
    """
    action = "update" if offline else "install"
    bundles = paths.offline / "repos" if offline else None
    binds = [] if runtime == "host" else [Bind(_TREE, MOUNTED_AT)]
    if binds and settings.configuration.packages.work_dir:
        binds.append(Bind(_WORK, _WORK))
    env = Environment(settings, paths, runtime, "set_up", {"overlay": ""}, tuple(binds))
    return [
        assign("LIBRARY", paths.root / "lib"),
        call("on_interrupt", typed),
        wrapped("make_folders", *paths.roots),
        assign("arch", paths.arch),
        call("check_build_arch", _job(settings)),
        *_overlay_lines(settings, paths, runtime),
        *repository_lines(settings, paths, action, bundles),
        "",
        call("hold_lock", paths.overlays),
        call("start_work"),
        *inside_lines(env),
        *wanted_lines(settings, paths, runtime),
        *target_lines(settings, paths),
        assign("overlay", ""),
        *installer_lines(settings, paths, offline=offline),
        assign("again", "1" if again else ""),
        "",
        call("make_overlay", *installer_functions(offline=offline)),
        *_next_lines(settings, paths, offline),
    ]


def _overlay_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that set the build directory and the packing options."""
    link = overlay_link(settings, paths)
    packages = settings.configuration.packages
    if packages.memory and not re.fullmatch(r"[1-9][0-9]*[KMG]", packages.memory):
        raise LongshipError(
            f"packages.memory in {settings.origins['packages.memory']}: expected a number with "
            f'K, M or G, got "{packages.memory}"',
            'write it like this: packages.memory = "2G"',
        )
    works = _works(settings, paths)
    folders = [paths.cache, paths.cache / "overlays", link.parent]
    folders += [link.parent / each for each in ("versions", "unpacked", "pins")]
    return [
        assign("active", link),
        # a user's own, as in /tmp another one could not write to it
        assign("work", Expansion(f'{word(works)}."$UID"/{word(link.stem)}')),
        assign("runtime", runtime),
        assign("image_record", _image_record(settings, paths, runtime)),
        assign("seen_at", MOUNTED_AT),
        assign("bytecode", link.parent / f"bytecode_{paths.arch}"),
        assign("compression", packages.compression),
        assign("processors", str(packages.processors)),
        assign("memory", packages.memory),
        *(export(*each) for each in _INSTALL),
        # no hard links to uv's cache: on host the installed files are used, and work_dir can be on
        # another file system
        *([export("UV_LINK_MODE", "copy")] if runtime == "host" or packages.work_dir else []),
        call("work_for_group", paths.scratch_dir),
        wrapped("make_folders", *folders),
        wrapped("share_with_group", paths.scratch_dir, *folders),
        "",
    ]


def _works(settings: Settings, paths: Paths) -> Path:
    """Return the build directory of overlays, without the user ID at its end.

    Each scratch directory has its own, as it has its own lock.
    """
    chosen = settings.configuration.packages.work_dir
    if not chosen:
        return paths.cache / "overlays/work"
    import hashlib

    name = hashlib.sha256(bytes(paths.scratch_dir)).hexdigest()[:12]
    return Path(expand("packages.work_dir", chosen, settings)) / f"longship-{name}"


def _image_record(settings: Settings, paths: Paths, runtime: str) -> str:
    """Return the record of the active image; "" if there is none."""
    if runtime == "host":
        return ""
    active = paths.containers / image_file(runtime, image_source(settings), paths)
    return f"{pinned(active)}.json"


def _job(settings: Settings) -> str:
    """Return the command that submits the site's build job; "" if it has none."""
    job = Path(settings.machine.site_file).with_name("build_overlay.sbatch")
    if not (settings.root / job).is_file():
        return ""
    return call("sbatch", f"--account={settings.configuration.project.account or 'ACCOUNT'}", job)


def _next_lines(settings: Settings, paths: Paths, offline: bool) -> list[str]:
    """Return the lines that print the next command: for the venv above it, if there is one."""
    if len(install_steps(settings, paths)) == 1:
        data = data_command(settings)
        return [call("next_step", data)]
    return [call("next_step", f"python3 set_up.py {'offline' if offline else 'install'}")]


def download_lines(settings: Settings, here: Paths, runtime: str, typed: str) -> list[str]:
    """Return the lines that download the overlay's packages for a machine without network.

    Parameters and result are those of `lib.packages.set_up.download_lines`.
    """
    overlay_link(settings, here)
    following = wheelhouse.next_step(settings, here)
    return [
        assign("LIBRARY", here.root / "lib"),
        call("on_interrupt", typed),
        call("make_folders", here.project_dir, here.scratch_dir),
        # the requirements of repositories are read in their clones
        *repository_lines(settings, here, "install"),
        *wheelhouse.download_lines(settings, here, runtime),
        call("next_step", following.replace("set_up.py", "build_overlay.py")),
    ]


def prune_lines(settings: Settings, paths: Paths, *, asked: bool) -> list[str]:
    """Return the lines that delete unused overlays; `asked` if the user has confirmed it."""
    link = overlay_link(settings, paths)
    return [
        call("make_folders", link.parent),
        assign("active", link),
        assign("works", _works(settings, paths)),
        call("locked", paths.overlays, "prune_overlays", "yes" if asked else ""),
    ]
