"""The plans of bundle.py."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from lib.assets.assets import configured_assets
from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, make_lines, open_lines
from lib.configuration.repositories import configured_repositories
from lib.configuration.tables import find_files
from lib.images.build import NOT_DOWNLOADED, archive_base
from lib.runtimes.choice import configured_runtime
from lib.runtimes.image import ImageSource, image_source
from lib.runtimes.packages import Packages
from lib.script.command import array, assign, call
from lib.script.quoting import Expansion, Word

_WORKER = ("worker_run", Expansion('"${worker[@]}"'))
_BUNDLE = Expansion('"$bundle"')
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
    source = image_source(settings)
    image = [Path(source.file)] if source.ready and _has_archive(settings, here) else []
    inside = _below(here.root, (Path(directory), here.scratch_dir, here.project_dir, *image))
    work, machine = here.cache / "bundle", settings.machine.name
    options: list[list[Word]] = [[f"--offline={here.offline}"], [f"--work={work}"]]
    options += [[f"--leave-out={each}"] for each in (*_LEFT_OUT, *inside)]
    options += [[f"--allow={each}"] for each in allowed]
    options += [] if history else [["--no-history"]]
    options += [["--need", *each] for each in _needed(settings, here)]
    # without a slash at its end, with which rsync would copy what is in it
    copied = os.path.realpath(directory)
    copy = f"copy {call(copied)} to the target machine"  # nobody has a name for a local one
    copy = copy if machine == "local" else call("rsync", "-a", copied, f"{machine}:")
    unpack = call("bash", f"{os.path.basename(copied)}/unpack.sh")
    return [
        *_start(here.root, directory, typed),
        "parts=(\n    " + "\n    ".join(call(*each) for each in options) + ")",
        "",
        *_image_notes(settings, here),
        call("directory_make", work),
        call("lock_hold", work / "pack"),
        call(*_WORKER, "pack", _BUNDLE, here.root, Expansion('"${parts[@]}"')),
        call("next_step", f"{copy}; then run there: {unpack}"),
    ]


def _start(root: Path, directory: str, typed: str) -> list[str]:
    """Return the lines that every script of a bundle begins with."""
    return [
        call("cd", "--", root),
        call("on_interrupt", typed),
        assign("bundle", os.path.realpath(directory)),
        array("worker", [sys.executable, "-I", "-B", root / "extras/bundle/worker.py"]),
    ]


def _below(root: Path, directories: Iterable[Path]) -> list[str]:
    """Return those that are in the repository, relative to it."""
    found = (
        os.path.relpath(os.path.realpath(each), os.path.realpath(root)) for each in directories
    )
    return [each for each in found if each.partition("/")[0] not in ("..", ".")]


def _needed(settings: Settings, here: Paths) -> list[tuple[str, str, str]]:
    """Return what must have been downloaded, the image that it is for, and the command for it."""
    machine = ("--machine", settings.machine.name)
    set_up = call("python3", "set_up.py", "download", *machine)
    needed, image = [], ""
    if _has_archive(settings, here):
        source = image_source(settings)
        base, image = os.path.basename(archive_base(source, here)), source.label
        build = call("python3", "build_container.py", "download", *machine)
        needed.append((f"containers/{glob.escape(base)}.???.json", "", build))
    if Packages(settings, here).wanted:
        name = f"pip/{settings.stack.name}_{here.arch}"
        needed += [(f"{name}.lock", image, set_up), (f"{name}.sha256", "", set_up)]
    names = [f"repos/{each.name}.bundle" for each in configured_repositories(settings)]
    names += [f"assets/{each.record}.asset" for each in configured_assets(settings)]
    return needed + [(name, "", set_up) for name in names]


def _has_archive(settings: Settings, here: Paths) -> bool:
    """Tell whether the image belongs to the bundle: not a file that only the target machine has."""
    source = image_source(settings)
    if configured_runtime(settings) == "host" or source.kind in NOT_DOWNLOADED:
        return False
    found = os.path.exists(source.file) or _archives(here.archives, source, here)
    return bool(found) or not source.ready


def _archives(directory: Path, source: ImageSource, paths: Paths) -> list[Path]:
    """Return the records of the image's archives."""
    base = glob.escape(os.path.basename(archive_base(source, paths)))
    return find_files(directory, f"{base}.???.json")


def _image_notes(settings: Settings, here: Paths) -> list[str]:
    """Return the line that names an image that is not packed."""
    if configured_runtime(settings) == "host" or _has_archive(settings, here):
        return []
    text = "not packed: the image {}; copy it to the target machine, and set container.image there"
    return [call("note", text.format(image_source(settings).file))]


def _image_steps(settings: Settings, paths: Paths, bundle: Path) -> list[str]:
    """Return the commands that make the image; one that is not in the bundle is a file."""
    source = image_source(settings)
    is_packed = not source.file or _archives(bundle / "offline/containers", source, paths)
    if configured_runtime(settings) == "host" or (source.ready and not is_packed):
        return []
    build = "build_container.py offline" if is_packed else "build_container.py"
    return [build, "move_built_container_to_active.py"]


def verify_lines(root: Path, directory: str, *, typed: str) -> list[str]:
    """Return the lines of ``bundle.py verify``."""
    return [
        *_start(root, directory, typed),
        call(*_WORKER, "verify", _BUNDLE),
        call("next_step", call("python3", "bundle.py", "unpack", directory)),
    ]


def unpack_lines(settings: Settings, paths: Paths, directory: str, *, typed: str) -> list[str]:
    """Return the lines of ``bundle.py unpack``: each file is verified when it is copied."""
    steps = _image_steps(settings, paths, Path(directory))
    steps += ["build_overlay.py offline"] if settings.configuration.packages.overlay else []
    return [
        *_start(paths.root, directory, typed),
        *make_lines(paths, paths.offline),
        call("lock_hold", paths.offline / ".unpack"),
        call(*_WORKER, "unpack-offline", _BUNDLE, paths.offline),
        *open_lines(paths, paths.offline),
        call("next_step", call("cd", paths.root)),
        *(call("next_step", f"python3 {each}") for each in [*steps, "set_up.py offline"]),
    ]
