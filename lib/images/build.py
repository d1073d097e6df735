"""Building images, and archives for an air-gapped machine: the lines of `build_container.py`."""

from __future__ import annotations

import os
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, make_lines, step_after_download
from lib.runtimes import apptainer
from lib.runtimes.choice import program_lines
from lib.runtimes.environment import Environment
from lib.runtimes.image import ImageSource, active_image, check_usable, image_name, image_tag
from lib.runtimes.runtime import answer_lines, runtime_of
from lib.script.command import call, facts, wrapped
from lib.script.errors import LongshipError
from lib.script.records import read_record

# files that are copied to the target machine as they are
NOT_DOWNLOADED = ("sqsh", "oci-archive")
_OFFLINE = ("python3", "build_container.py", "offline")
_MOVE = ("python3", "move_built_container_to_active.py")


def image_build_lines(
    env: Environment,
    *,
    locked: bool = False,
    force: bool,
    command_line: str,
    offline: bool = False,
) -> list[str]:
    """Return the lines that build the image from its source or, offline, from its archive."""
    settings, paths = env.settings, env.paths
    source = env.source
    if not offline:
        check_usable(env.runtime, source)
        if source.runs_programs and settings.machine.definition_builds == "forbidden":
            raise LongshipError(
                f"building from {source.address} is not allowed on {settings.machine.description}",
                _build_hint(settings),
            )
    active = active_image(env.runtime, source, paths)
    work = paths.cache / "containers" / active.name
    image = paths.containers / "build" / active.name
    tag = image_tag(source, paths.arch)
    return [
        *_start_lines(env, command_line, paths.containers, image.parent),
        *program_lines(settings, env.runtime),
        *answer_lines(env),
        "",
        call("build_from_archive", archive_base(source, paths))
        if offline
        else _source_line(env, locked),
        wrapped("build_begin", image, work, "1" if force else "", settings.command(*_MOVE), active),
        *runtime_of(env.runtime).build(env, tag, work),
        call("build_end"),
    ]


def image_download_lines(
    env: Environment, *, locked: bool = False, force: bool, command_line: str
) -> list[str]:
    """Return the lines that save an archive of the image for another machine."""
    settings, here = env.settings, env.paths
    source = env.source
    check_usable(env.runtime, source)
    if source.kind in NOT_DOWNLOADED:
        raise LongshipError(
            f"cannot download {source.address}: it is a file already",
            "copy it to the target machine, and set container.image there",
        )
    here = here._replace(arch=settings.machine.arch)
    env = env._replace(paths=here)
    name = active_image(env.runtime, source, here).name
    work = here.cache / "containers" / f"{name}.download"
    apptainer.check_path("apptainer", work)
    sifs = (
        apptainer.ENDINGS if env.runtime in apptainer.ENDINGS else ()
    )  # of no use to another runtime
    offline = settings.command(*_OFFLINE)
    following = step_after_download(settings, here, here.archives, offline)
    begin = (archive_base(source, here), work, "1" if force else "", following)
    return [
        *_start_lines(env, command_line, here.offline, here.archives),
        "",
        _source_line(env, locked),
        wrapped("archive_begin", *begin, *sifs),
        call("archive_build", image_tag(source, here.arch)),
        call("build_end"),
    ]


def archive_base(source: ImageSource, paths: Paths) -> str:
    """Return the path of the image's archive without its extension."""
    return str(paths.archives / f"{image_name(source)}_{paths.arch}")


def _build_hint(settings: Settings) -> str:
    download = ("python3", "build_container.py", "download", "--machine", settings.machine.name)
    elsewhere = (
        f"on a machine that allows builds, run: {settings.command(*download)}; copy the archive "
        f"here; then run: {settings.command(*_OFFLINE)}"
    )
    return settings.machine.build_hint or elsewhere


def _start_lines(env: Environment, command_line: str, *directories: Path) -> list[str]:
    """Return the lines that every build begins with; the directories are those of its result."""
    settings, paths = env.settings, env.paths
    return [
        facts(machine=settings.machine.name, arch=paths.arch, runtime=env.runtime),
        call("cd", "--", paths.root),
        call("on_interrupt", command_line),
        *make_lines(paths, *directories),
    ]


def _source_line(env: Environment, locked: bool) -> str:
    source = env.source
    digest = recorded_digest(env) if locked else ""
    hint = [_build_hint(env.settings)] if source.file else []
    return call("build_from", source.kind, source.address, digest or source.digest, *hint)


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
        "leave out --locked: the command then takes the current one, and records it",
    )
