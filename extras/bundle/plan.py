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
_COPY = "copy it to the target machine, and set container.image there"
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
    image = _image(settings)
    is_packed = image is not None and _is_packed(image, here)
    file = [Path(image.file)] if image and image.ready and is_packed else []  # its archive is
    inside = _below(here.root, (Path(directory), here.scratch_dir, here.project_dir, *file))
    work, machine = here.cache / "bundle", settings.machine.name
    options: list[list[Word]] = [[f"--offline={here.offline}"], [f"--work={work}"]]
    options += [[f"--leave-out={each}"] for each in (*_LEFT_OUT, *inside)]
    options += [[f"--allow={each}"] for each in allowed]
    options += [] if history else [["--no-history"]]
    options += [[f"--named={each}"] for each in _named(settings, here.root)]
    needed = _needed(settings, here, image if is_packed else None)
    options += [["--need", *each] for each in needed]
    # without a slash at its end, with which rsync would copy what is in it
    copied = os.path.realpath(directory)
    copy = f"copy {call(copied)} to the target machine"  # nobody has a name for a local one
    copy = copy if machine == "local" else call("rsync", "-a", copied, f"{machine}:")
    unpack = call("bash", f"{os.path.basename(copied)}/unpack.sh")
    missing = [f"not packed: the image {image.file}; {_COPY}"] if image and not is_packed else []
    return [
        *_start(here.root, directory, typed),
        "parts=(\n    " + "\n    ".join(call(*each) for each in options) + ")",
        "",
        *(call("note", each) for each in missing),
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


def _named(settings: Settings, root: Path) -> list[str]:
    """Return the files that the configuration names, unless only the target knows where."""
    configuration, scripts = settings.configuration, configured_repositories(settings)
    found = [configuration.packages.requirements, configuration.packages.venv_requirements]
    found += [*configuration.container.patched_files.values(), *(each.script for each in scripts)]
    own = [each for each in found if each and not each.startswith(("~", "$", "{"))]
    return [os.path.normpath(root / each) for each in own]


def _needed(
    settings: Settings, here: Paths, image: ImageSource | None
) -> list[tuple[str, str, str]]:
    """Return what must have been downloaded, the image that it is for, and the command for it."""
    machine = ("--machine", settings.machine.name)
    set_up = call("python3", "set_up.py", "download", *machine)
    needed = []
    if image:
        build = call("python3", "build_container.py", "download", *machine)
        needed.append((f"containers/{_records(image, here)}", "", build))
    if Packages(settings, here).wanted:
        name, label = f"pip/{settings.stack.name}_{here.arch}", image.label if image else ""
        needed += [(f"{name}.lock", label, set_up), (f"{name}.sha256", "", set_up)]
    names = [f"repos/{each.name}.bundle" for each in configured_repositories(settings)]
    names += [f"assets/{each.record}.asset" for each in configured_assets(settings)]
    return needed + [(name, "", set_up) for name in names]


def _image(settings: Settings) -> ImageSource | None:
    """Return the source of the image; None without a container."""
    return None if configured_runtime(settings) == "host" else image_source(settings)


def _is_packed(image: ImageSource, here: Paths) -> bool:
    """Tell whether an image belongs to the bundle: not a file that only the target machine has."""
    if image.kind in NOT_DOWNLOADED:
        return False
    found = os.path.exists(image.file) or find_files(here.archives, _records(image, here))
    return bool(found) or not image.ready


def _records(image: ImageSource, paths: Paths) -> str:
    """Return the pattern for the record of the image's archive."""
    return f"{glob.escape(os.path.basename(archive_base(image, paths)))}.???.json"


def _image_steps(settings: Settings, paths: Paths, archives: Path) -> list[str]:
    """Return the commands that make the image; one that is not in the bundle is a file."""
    image, move = _image(settings), "move_built_container_to_active.py"
    if image and (not image.file or find_files(archives, _records(image, paths))):
        return ["build_container.py offline", move]
    return ["build_container.py", move] if image and not image.ready else []


def verify_lines(root: Path, directory: str, *, typed: str) -> list[str]:
    """Return the lines of ``bundle.py verify``."""
    return [
        *_start(root, directory, typed),
        call(*_WORKER, "verify", _BUNDLE),
        call("next_step", call("python3", "bundle.py", "unpack", directory)),
    ]


def unpack_lines(settings: Settings, paths: Paths, directory: str, *, typed: str) -> list[str]:
    """Return the lines of ``bundle.py unpack``: each file is verified when it is copied."""
    steps = _image_steps(settings, paths, Path(directory, "offline/containers"))
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
