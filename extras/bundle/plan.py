"""The plans of bundle.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from lib.assets.assets import configured_assets
from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, make_lines, open_lines
from lib.configuration.repositories import configured_repositories
from lib.images.build import archive_base
from lib.runtimes.choice import configured_runtime
from lib.runtimes.image import image_source
from lib.runtimes.packages import Packages
from lib.script.command import array, assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, word

_WORKER = ("worker_run", Expansion('"${worker[@]}"'))
_BUNDLE = Expansion('"$bundle"')
_PARTS = Expansion('"${parts[@]}"')
_LEFT_OUT = (".git", ".venv", ".cache", "configuration.local.toml")  # tracked or not


def pack_lines(
    settings: Settings,
    here: Paths,
    directory: str,
    *,
    typed: str,
    history: bool = True,
    allowed: Iterable[str] = (),
) -> list[str]:
    """Return the lines of ``bundle.py pack``.

    SETTINGS are of the machine that will use the bundle, HERE are the paths of the one that packs.
    """
    here = here._replace(arch=settings.machine.arch)
    outside = (Path(_directory(directory)), here.scratch_dir, here.project_dir)
    options: dict[str, Iterable[object]] = {
        "repository": [here.root],
        "offline": [here.offline],
        "work": [here.cache / "bundle"],
        "leave-out": [*_LEFT_OUT, *_below(here.root, outside)],
        "allow": allowed,
    }
    parts = [call(f"--{name}={each}") for name in options for each in options[name]]
    parts += [*([] if history else ["--no-history"]), *_needed(settings, here)]
    return [
        *_start(here.root, directory, typed),
        "parts=(\n    " + "\n    ".join(parts) + ")",
        "",
        call(*_WORKER, "check", _BUNDLE, _PARTS),
        call("directory_make", here.cache / "bundle"),
        call("lock_hold", here.cache / "bundle/pack"),
        call("lock_hold", Expansion('"$bundle/.partial"')),
        call(*_WORKER, "pack", _BUNDLE, "--step=1/3", _PARTS),
        call("next_step", _copy(settings, _directory(directory))),
    ]


def _start(root: Path, directory: str, typed: str) -> list[str]:
    """Return the lines that every script of a bundle begins with."""
    return [
        call("on_interrupt", typed),
        assign("bundle", _directory(directory)),
        array("worker", [sys.executable, "-B", root / "extras/bundle/worker.py"]),
    ]


def _directory(directory: str) -> str:
    """Return the absolute path of a bundle."""
    if "\n" in directory:
        raise LongshipError(f"the name contains a newline: {directory!r}", "name another directory")
    return os.path.realpath(directory)


def _below(root: Path, directories: Iterable[Path]) -> list[str]:
    """Return those that are in the repository, relative to it."""
    found = (
        os.path.relpath(os.path.realpath(each), os.path.realpath(root)) for each in directories
    )
    return [each for each in found if each.partition("/")[0] not in ("..", ".")]


def _needed(settings: Settings, here: Paths) -> list[str]:
    """Return the options for what must have been downloaded, each with the command that does it."""
    machine = settings.machine.name
    set_up = call("python3", "set_up.py", "download", "--machine", machine)
    lines, image = [], ""
    if configured_runtime(settings) != "host" and not image_source(settings).ready:
        source = image_source(settings)
        base, image = archive_base(source, here), source.address
        build = call("python3", "build_container.py", "download", "--machine", machine)
        lines.append(call("--archive", base, build))
    if Packages(settings, here).wanted:
        lock = f"pip/{settings.stack.name}_{here.arch}.lock"
        lines.append(call("--need", lock, image, set_up))
    names = [f"repos/{each.name}.bundle" for each in configured_repositories(settings)]
    names += [f"assets/{each.record}.asset" for each in configured_assets(settings)]
    return lines + [call("--need", name, "", set_up) for name in names]


def _copy(settings: Settings, directory: str) -> str:
    """Return how to continue, on the machine that the bundle is for."""
    unpack = call("bash", f"{os.path.basename(directory)}/unpack.sh")
    if settings.machine.name == "local":  # any machine: nobody has a name for it
        return f"copy {word(directory)} to the target machine; then run there: {unpack}"
    copy = call("rsync", "-a", directory, f"{settings.machine.name}:")
    return f"{copy}; then run there: {unpack}"


def verify_lines(root: Path, directory: str, *, typed: str) -> list[str]:
    """Return the lines of ``bundle.py verify``."""
    return [
        *_start(root, directory, typed),
        call(*_WORKER, "verify", _BUNDLE),
        call("next_step", call("python3", "bundle.py", "unpack", _directory(directory))),
    ]


def unpack_lines(
    settings: Settings, paths: Paths, directory: str, *, typed: str, verified: bool = False
) -> list[str]:
    """Return the lines of ``bundle.py unpack``; unpack.sh has VERIFIED the bundle already."""
    bundle = Path(_directory(directory))
    for name, path in ("project_dir", paths.project_dir), ("scratch_dir", paths.scratch_dir):
        if bundle in (path, *path.parents):
            raise LongshipError(
                f"paths.{name} is in the bundle {bundle}: {path}",
                f"set paths.{name} in configuration.toml to a directory outside of the bundle",
            )
    step = "--step=1/1" if verified else "--step=2/2"
    steps = ["build_container.py offline", "move_built_container_to_active.py"]
    steps = [] if configured_runtime(settings) == "host" else steps
    steps += ["build_overlay.py offline"] if settings.configuration.packages.overlay else []
    return [
        *_start(paths.root, directory, typed),
        *([] if verified else [call(*_WORKER, "verify", _BUNDLE, "--step=1/2")]),
        *make_lines(paths, paths.offline),
        call("lock_hold", paths.offline / ".unpack"),
        call(*_WORKER, "unpack-offline", _BUNDLE, paths.offline, step),
        *open_lines(paths, paths.offline),
        call("next_step", call("cd", paths.root)),
        *(call("next_step", f"python3 {each}") for each in [*steps, "set_up.py offline"]),
    ]
