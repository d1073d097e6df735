"""The active image and its earlier versions: the lines of `move_built_container_to_active.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lib.runtimes.choice import program_lines
from lib.runtimes.environment import IMAGE, Environment
from lib.runtimes.image import active_image, check_usable, image_name
from lib.script.command import assign, call, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word, word
from lib.script.records import read_record

_SCRIPT = "python3 move_built_container_to_active.py"


def move_lines(env: Environment, following: Sequence[str]) -> list[str]:
    """Return the lines that check the new image and activate it.

    ``following`` are the commands to run next: packages belong to an image.
    """
    active = _active(env)
    reference = Expansion(f'"$(image_reference {word(active)})"')
    activate = [call("on_interrupt", _SCRIPT), call("image_activate", active)]
    return _script(env, [*activate, *compare_patched_files(env, reference)], following)


def use_lines(env: Environment, following: Sequence[str], version: str | None) -> list[str]:
    """Return the lines that activate a version, by default the previously active one."""
    active = _active(env)
    use = ("version_roll_back", active)
    if version is not None:
        use = ("version_use", active, version, "use")
    return _script(env, [call("lock_run", active, *use)], following)


def _script(env: Environment, lines: list[str], following: Sequence[str]) -> list[str]:
    paths = env.paths
    return [
        assign("arch", paths.arch),
        assign("runtime", env.runtime),
        assign("LIBRARY", paths.root / "lib"),
        call("directory_make", paths.containers / "build"),
        *program_lines(env.settings, env.runtime),
        "",
        *lines,
        *(call("next_step", each) for each in following),
    ]


def prune_lines(env: Environment) -> list[str]:
    """Return the lines that delete unused versions."""
    paths = env.paths
    return [
        assign("arch", paths.arch),
        call("directory_make", paths.containers),
        call("image_prune", _active(env)),
    ]


def _active(env: Environment) -> Path:
    check_usable(env.runtime, env.source)
    return active_image(env.runtime, env.source, env.paths)


def check_patched_files(env: Environment) -> list[str]:
    """Return the lines that compare the originals of patched files with those of ``image``."""
    if env.runtime != "host":
        compared = compare_patched_files(env, IMAGE)
        return [assign("runtime", env.runtime), *compared] if compared else []
    text = "container.patched_files has no effect with the runtime host"
    return [call("note", text)] if env.patched_files else []


def compare_patched_files(env: Environment, image: Word) -> list[str]:
    """Return the lines that notice if an image has another original of a patched file."""
    words = [(each.source, each.target) for each in env.patched_files]
    return [wrapped("patched_file_check", image, *each) for each in words]


def recorded_digest(env: Environment) -> str:
    """Return the recorded digest of the source: of the active image, else the latest."""
    source, paths = env.source, env.paths
    active = active_image(env.runtime, source, paths)
    pattern = f"versions/{active.stem}_*{active.suffix}.json"
    for record in (
        *([Path(f"{active.resolve()}.json")] if os.path.islink(active) else []),
        paths.containers / "build" / f"{active.name}.json",
        *sorted(paths.containers.glob(pattern), reverse=True),
        *paths.archives.glob(f"{image_name(source)}_{paths.arch}.*.json"),
    ):
        found = read_record(record)
        if found.get("source") == source.address and found.get("digest"):
            return found["digest"]
    raise LongshipError(
        f"no digest of {source.address} was recorded in {paths.containers}",
        "to build the current one, run: python3 build_container.py",
    )
