"""Building images: the lines of `build_container.py`."""

from __future__ import annotations

from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.runtimes.choice import MODULES, program_lines
from lib.runtimes.image import (
    ImageSource,
    check_usable,
    image_file,
    image_name,
    image_source,
    image_tag,
)
from lib.runtimes.recipe import Recipe
from lib.script.command import array, assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, word

_RECORD = Expansion('"$record"')


def online_lines(
    settings: Settings, paths: Paths, runtime: str, *, digest: str, again: bool, typed: str
) -> list[str]:
    """Return the lines that build the image from its source.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        All paths of the machine.
    runtime : str
        From `lib.runtimes.choice.choose_builder`.
    digest : str
        Required digest of the source; empty for the current one.
    again : bool
        Rebuild an image that exists.
    typed : str
        Command line, to resume after an interruption.

    Returns
    -------
    list of str
        Lines of bash.

    Raises
    ------
    LongshipError
        If the runtime cannot use the source, or the site forbids such a build.
    """
    source = image_source(settings)
    check_usable(runtime, source)
    _check_allowed(source, settings)
    recipe = recipe_for(runtime, source, paths)
    module = MODULES[runtime]
    folders = module.folders(runtime, work_folder(recipe, paths))
    return [
        *start_lines(settings, typed, paths.containers / "build"),
        *program_lines(settings, runtime),
        *name_lines(recipe, paths, again=again),
        *source_lines(source, digest),
        *([call("check_can_build", recipe.arch, source.kind)] if source.runs_programs else []),
        *function("make_image", [*folders, *module.make_image(recipe)]),
        call("locked", _RECORD, "build_image", "python3 move_built_container_to_active.py"),
    ]


def offline_lines(
    settings: Settings, paths: Paths, runtime: str, *, again: bool, typed: str
) -> list[str]:
    """Return the lines that build the image from the downloaded archive, without network.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        All paths of the machine.
    runtime : str
        From `lib.runtimes.choice.choose_builder`.
    again : bool
        Rebuild an image that exists.
    typed : str
        Command line, to resume after an interruption.
    """
    recipe = recipe_for(runtime, image_source(settings), paths)
    module = MODULES[runtime]
    folders = module.folders(runtime, work_folder(recipe, paths))
    body = [*folders, call("verify_archive"), *module.from_archive(recipe)]
    return [
        *start_lines(settings, typed, paths.containers / "build"),
        *program_lines(settings, runtime),
        *name_lines(recipe, paths, again=again),
        assign("input", ""),
        call("open_archive", archive_base(recipe, paths)),
        *function("make_image", body),
        call("locked", _RECORD, "build_image", "python3 move_built_container_to_active.py"),
    ]


def recipe_for(runtime: str, source: ImageSource, paths: Paths) -> Recipe:
    """Return what the runtime needs to build the image."""
    return Recipe(runtime, source, paths.arch, image_tag(source, paths.arch))


def archive_base(recipe: Recipe, paths: Paths) -> str:
    """Return the path of the image's archive without its extension."""
    return str(paths.archives / f"{image_name(recipe.source)}_{recipe.arch}")


def work_folder(recipe: Recipe, paths: Paths) -> Path:
    """Return the directory for everything that an interrupted build leaves behind."""
    return paths.cache / "containers" / image_file(recipe.runtime, recipe.source, paths)


def _check_allowed(source: ImageSource, settings: Settings) -> None:
    if source.runs_programs and settings.machine.definition_builds == "forbidden":
        raise LongshipError(
            f"building from {source.address} is not allowed on {settings.machine.description}",
            _build_hint(settings),
        )


def _build_hint(settings: Settings) -> str:
    elsewhere = (
        "on a machine that allows builds, run: python3 build_container.py download --machine "
        f"{settings.machine.name}; copy the archive here; then run: python3 build_container.py "
        "offline"
    )
    return settings.machine.build_hint or elsewhere


def start_lines(settings: Settings, typed: str, folder: Path) -> list[str]:
    """Return the lines that every build begins with; the folder is that of its result."""
    return [
        assign("machine", settings.machine.name),
        assign("build_hint", _build_hint(settings)),
        call("on_interrupt", typed),
        call("make_folders", folder),
    ]


def name_lines(recipe: Recipe, paths: Paths, *, again: bool) -> list[str]:
    """Return the lines that name the image and its build directory."""
    file = image_file(recipe.runtime, recipe.source, paths)
    return [
        "",
        assign("arch", recipe.arch),
        assign("active", paths.containers / file),
        assign("image", paths.containers / "build" / file),
        'record="$image".json',
        *([assign("tag", recipe.tag)] if file.endswith(("docker", "podman")) else []),
        # a user's own: what a killed build leaves is not another member's to delete
        assign("work", Expansion(f'{word(work_folder(recipe, paths))}."$UID"')),
        array("tools", [recipe.runtime]),
        assign("again", "1" if again else ""),
    ]


def source_lines(source: ImageSource, digest: str) -> list[str]:
    """Return the lines that describe the source."""
    digest = digest or source.digest
    at = source.at(digest)
    return [
        assign("source", source.address),
        'address="$source"' if at == source.address else assign("address", at),
        assign("digest", digest),
        assign("input", source.file),
    ]


def function(name: str, body: list[str]) -> list[str]:
    """Return the lines that define a function."""
    return ["", f"{name}() {{", *(f"  {line}" for line in body), "}", ""]
