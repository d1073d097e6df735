"""Bundles for air-gapped machines: the lines of bundle.py."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from lib.assets.assets import configured_assets
from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import configured_repositories
from lib.images.build import archive_base
from lib.runtimes.choice import configured_runtime
from lib.runtimes.image import image_source
from lib.runtimes.packages import packages_wanted
from lib.script.command import array, assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, word

_BUNDLE = Expansion('"$bundle"')
# Never part of a bundle, tracked or not.
_LEFT_OUT = (".git", ".venv", ".cache", "configuration.local.toml")


def pack_lines(
    settings: Settings,
    here: Paths,
    folder: str,
    *,
    typed: str,
    python: str,
    history: bool = True,
    allowed: Iterable[str] = (),
) -> list[str]:
    """Return the lines of ``bundle.py pack``.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the machine that will use the bundle.
    here : Paths
        Where things lie on the machine that packs.
    folder : str
        What the bundle is, or becomes.
    typed : str
        What the user typed, to go on after an interruption.
    python : str
        A Python that can have pip; the clone's own is asked first.
    history : bool
        Whether the commits of this repository travel too.
    allowed : iterable of str
        Names of files that only look like secrets.

    Returns
    -------
    list of str
        Lines of bash.

    Raises
    ------
    LongshipError
        If the folder's name cannot be packed to, or the configuration names no image.
    """
    folder = _folder(folder)
    here = dataclasses.replace(here, arch=settings.machine.arch)
    outside = (Path(folder), here.scratch_dir, here.project_dir)
    own_python = str(here.root / ".venv/bin/python")
    return [
        assign("root", here.root),
        assign("offline", here.offline),
        assign("bundle", folder),
        assign("work", here.cache / "bundle"),
        assign("history", "1" if history else ""),
        array("allowed", allowed),
        array("left_out", [*_LEFT_OUT, *_below(here.root, outside)]),
        array("pythons", dict.fromkeys([own_python, python, "python3"])),
        call("on_interrupt", typed),
        "",
        *_needed(settings, here),
        call("stop_where_missing"),
        call("check_bundle_folder"),
        call("make_folders", Expansion('"$work"')),
        call(
            *("locked", Expansion('"$work/pack"'), "locked", Expansion('"$bundle/.partial"')),
            *("pack_bundle", *_own_requirements(settings.root)),
        ),
        call("next_step", _copy(settings, folder)),
    ]


def _folder(folder: str) -> str:
    """Return the absolute path of a bundle."""
    if "\n" in folder:
        raise LongshipError(f"the name contains a newline: {folder!r}", "name another directory")
    return os.path.realpath(folder)


def _below(root: Path, folders: Iterable[Path]) -> list[str]:
    """Return those that lie in the repository, relative to it."""
    found = (os.path.relpath(os.path.realpath(each), os.path.realpath(root)) for each in folders)
    return [each for each in found if each.partition("/")[0] not in ("..", ".")]


def _needed(settings: Settings, here: Paths) -> list[str]:
    """Return the lines that look whether all is there, with the commands that make it."""
    machine = settings.machine.name
    set_up = call("python3", "set_up.py", "download", "--machine", machine)
    lines = []
    if configured_runtime(settings) != "host" and not image_source(settings).ready:
        source = image_source(settings)
        base = archive_base(source, here)
        build = call("python3", "build_container.py", "download", "--machine", machine)
        lines.append(call("need_archive", base, build))
    if packages_wanted(settings):
        lock = f"pip/{settings.stack.name}_{here.arch}.lock"
        lines.append(call("need_file", lock, set_up))
        if lines[0].startswith("need_archive"):
            address = image_source(settings).address
            lines.append(call("need_packages_of_image", lock, address, set_up))
    for repository in configured_repositories(settings):
        lines.append(call("need_file", f"repos/{repository.name}.bundle", set_up))
    for asset in configured_assets(settings):
        lines.append(call("need_file", f"assets/{asset.record}.asset", set_up))
    return lines


def _own_requirements(root: Path) -> list[str]:
    """Return what the scripts need on any Python; pip would read the markers by its own."""
    text = (root / "requirements/host.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _copy(settings: Settings, folder: str) -> str:
    """Say how to go on: on the machine that the bundle is for."""
    unpack = call("bash", f"{os.path.basename(folder)}/unpack.sh")
    if settings.machine.name == "local":  # any machine: nobody has a name for it
        return f"copy {word(folder)} to the target machine; then run there: {unpack}"
    copy = call("rsync", "-a", folder, f"{settings.machine.name}:")
    return f"{copy}; then run there: {unpack}"


def verify_lines(folder: str, *, typed: str) -> list[str]:
    """Return the lines of ``bundle.py verify``.

    Parameters
    ----------
    folder : str
        The bundle.
    typed : str
        What the user typed.
    """
    return [
        assign("bundle", _folder(folder)),
        call("on_interrupt", typed),
        call("step", "1/1", "Verifying the bundle"),
        call("verify_bundle", _BUNDLE),
        'note "complete, ${#bundle_sums[@]} files: $bundle"',
        call("next_step", call("python3", "bundle.py", "unpack", _folder(folder))),
    ]


def unpack_lines(
    settings: Settings, paths: Paths, folder: str, *, typed: str, verified: bool = False
) -> list[str]:
    """Return the lines of ``bundle.py unpack``: what the offline modes read is put into its place.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the machine at hand.
    paths : Paths
        Where things lie on it.
    folder : str
        The bundle.
    typed : str
        What the user typed, to go on after an interruption.
    verified : bool
        Whether unpack.sh has looked at every file just now.
    """
    bundle = Path(_folder(folder))
    for name, path in ("project_dir", paths.project_dir), ("scratch_dir", paths.scratch_dir):
        if bundle in (path, *path.parents):
            raise LongshipError(
                f"paths.{name} is in the bundle {bundle}: {path}",
                f"set paths.{name} in configuration.toml to a directory outside of the bundle",
            )
    check = ("open_manifest", "open_links") if verified else ("verify_bundle",)
    return [
        assign("bundle", _folder(folder)),
        assign("offline", paths.offline),
        call("on_interrupt", typed),
        *([] if verified else [call("step", "1/2", "Verifying the bundle")]),
        *(call(each, _BUNDLE) for each in check),
        call("make_folders", Expansion('"$offline"')),
        call(
            *("locked", Expansion('"$offline/.unpack"'), "unpack_offline"),
            *(_BUNDLE, Expansion('"$offline"'), "1/1" if verified else "2/2"),
        ),
        call("next_step", call("cd", paths.root)),
        *(call("next_step", f"python3 {each}") for each in _next_steps(settings)),
    ]


def _next_steps(settings: Settings) -> list[str]:
    """Return what to type now, in order, in the repository."""
    image = ["build_container.py offline", "move_built_container_to_active.py"]
    return [
        *([] if configured_runtime(settings) == "host" else image),
        *(["build_overlay.py offline"] if settings.configuration.packages.overlay else []),
        "set_up.py offline",
    ]
