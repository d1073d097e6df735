"""Making images: the lines of `build_container.py`."""

from __future__ import annotations

from pathlib import Path

from lib.command import array, assign, call
from lib.errors import LongshipError
from lib.images import ImageSource, check_usable, image_file, image_name, image_source, image_tag
from lib.paths import Paths, derive_paths
from lib.quoting import Expansion
from lib.recipe import Recipe
from lib.runtimes import MODULES
from lib.settings import Settings

_RECORD = Expansion('"$record"')
_BASE = Expansion('"$base"')
_PARTIAL = Expansion('"$image".partial')


def online_lines(
    settings: Settings, paths: Paths, runtime: str, *, digest: str, again: bool
) -> list[str]:
    """Return the lines that make the image from its source.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        From `lib.runtimes.choose_builder`.
    digest : str
        The only state of the source that will do; empty for what it is today.
    again : bool
        Build even what is there already.

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
    recipe = _recipe(runtime, source, paths)
    module = MODULES[runtime]
    folders = module.folders(runtime, _work(recipe, paths))
    return [
        *_start(settings, paths, "online"),
        *_program_lines(settings, runtime),
        *_names(recipe, paths, again=again),
        *_source_lines(source, digest),
        *([call("check_can_build", recipe.arch)] if source.runs_programs else []),
        *_function("make_image", [*folders, *module.make_image(recipe)]),
        call("locked", _RECORD, "build_image", "python move_built_container_to_active.py"),
    ]


def offline_lines(settings: Settings, paths: Paths, runtime: str, *, again: bool) -> list[str]:
    """Return the lines that make the image from the archive of `download_lines`, without network.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        From `lib.runtimes.choose_builder`.
    again : bool
        Build even what is there already.
    """
    recipe = _recipe(runtime, image_source(settings), paths)
    module = MODULES[runtime]
    folders = module.folders(runtime, _work(recipe, paths))
    return [
        *_start(settings, paths, "offline"),
        *_program_lines(settings, runtime),
        *_names(recipe, paths, again=again),
        assign("input", ""),
        call("open_archive", _archive(recipe, paths)),
        *_function("make_image", [*folders, call("verify_archive"), *module.from_archive(recipe)]),
        call("locked", _RECORD, "build_image", "python move_built_container_to_active.py"),
    ]


def download_lines(
    settings: Settings, paths: Paths, here: Paths, runtime: str, *, digest: str, again: bool
) -> list[str]:
    """Return the lines that make an archive of the image for another machine.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the machine that will use it.
    paths : Paths
        Where things lie there.
    here : Paths
        Where things lie on the machine that downloads.
    runtime : str
        What runs the image there.
    digest : str
        The only state of the source that will do; empty for what it is today.
    again : bool
        Download even what is there already.
    """
    source = image_source(settings)
    check_usable(runtime, source)
    recipe = _recipe(runtime, source, paths)
    sifs = ["apptainer", "singularity"] if MODULES[runtime] is MODULES["apptainer"] else []
    folders = MODULES["apptainer"].folders("apptainer", _work(recipe, here))
    lines = [
        *_start(settings, here, "download"),
        *_names(recipe, here, again=again),
        assign("active", ""),
        *_source_lines(source, digest),
        assign("base", _archive(recipe, here)),
    ]
    own = "sif" if source.kind in ("oras", "library", "definition", "sif") else "tar"
    if source.kind == "docker":
        lines.append(call("choose_fetcher", _BASE, *sifs))
        body = [call("fetch_archive", f"{recipe.tag}.archive")]
    else:
        lines += [f'image="$base".{own}', 'record="$image".json']
        body = _archive_of_other_sources(recipe)
    if source.runs_programs:
        lines.append(call("check_can_build", recipe.arch))
    return [
        *lines,
        *_function("make_image", [*folders, 'export TMPDIR="$work"/tmp', *body]),
        call("locked", _RECORD, "build_image", _next_step(settings, here)),
    ]


def _archive_of_other_sources(recipe: Recipe) -> list[str]:
    """Return the lines that make the archive of what is no registry of docker's."""
    kind, address = recipe.source.kind, Expansion('"$address"')
    if kind == "dockerfile":
        return [call("build_dockerfile", address, recipe.arch, _PARTIAL, f"{recipe.tag}.archive")]
    if kind == "docker-daemon":
        name = Expansion('"${address#*:}"')
        return [
            call("docker", "tag", name, f"{recipe.tag}.archive"),
            call("save_tag", "docker", f"{recipe.tag}.archive", _PARTIAL),
        ]
    if recipe.source.file and kind != "definition":
        return [call("copy_image", Expansion('"$input"'), _PARTIAL)]
    return MODULES["apptainer"].make_image(recipe)


def _next_step(settings: Settings, here: Paths) -> str:
    """Say how to go on: copy the archive, if it was made for another machine."""
    offline = "python build_container.py offline"
    try:
        there = str(derive_paths(settings).archives)
    except LongshipError:  # the target's paths hold variables that only the target knows
        there = "SCRATCH_DIR/offline/containers"
    if there == str(here.archives):
        return offline
    copy = call("rsync", "-a", f"{here.archives}/", f"{settings.machine.name}:{there}/")
    return f"{copy}; then there: {offline}"


def _recipe(runtime: str, source: ImageSource, paths: Paths) -> Recipe:
    return Recipe(runtime, source, paths.arch, image_tag(source, paths.arch))


def _archive(recipe: Recipe, paths: Paths) -> str:
    return str(paths.archives / f"{image_name(recipe.source)}_{recipe.arch}")


def _work(recipe: Recipe, paths: Paths) -> Path:
    """Return the folder for all that a build leaves behind when it is interrupted."""
    return paths.cache / "containers" / image_file(recipe.runtime, recipe.source, paths)


def _check_allowed(source: ImageSource, settings: Settings) -> None:
    if source.runs_programs and settings.machine.definition_builds == "forbidden":
        raise LongshipError(
            f"{settings.machine.description} lets nobody build from {source.address}",
            _build_hint(settings),
        )


def _build_hint(settings: Settings) -> str:
    elsewhere = (
        f"build it where you may: python build_container.py download --machine "
        f"{settings.machine.name}; copy it here; then: python build_container.py offline"
    )
    return settings.machine.build_hint or elsewhere


def _start(settings: Settings, here: Paths, mode: str) -> list[str]:
    """Return the lines that every build begins with."""
    return [
        assign("machine", settings.machine.name),
        assign("build_hint", _build_hint(settings)),
        call("on_interrupt", f"python build_container.py {mode}"),
        call("make_folders", here.archives if mode == "download" else here.containers / "build"),
    ]


def _program_lines(settings: Settings, runtime: str) -> list[str]:
    modules = settings.machine.modules
    return [
        *([call("load_modules", runtime, *modules)] if modules else []),
        call("check_program", runtime),
    ]


def _names(recipe: Recipe, paths: Paths, *, again: bool) -> list[str]:
    """Return the lines that name what is made, and where it is made."""
    file = image_file(recipe.runtime, recipe.source, paths)
    return [
        "",
        assign("arch", recipe.arch),
        assign("active", paths.containers / file),
        assign("image", paths.containers / "build" / file),
        'record="$image".json',
        *([assign("tag", recipe.tag)] if file.endswith(("docker", "podman")) else []),
        assign("work", _work(recipe, paths)),
        array("tools", [recipe.runtime]),
        assign("again", "1" if again else ""),
    ]


def _source_lines(source: ImageSource, digest: str) -> list[str]:
    """Return the lines that say where it comes from."""
    at = source.at(digest)
    return [
        assign("source", source.address),
        'address="$source"' if at == source.address else assign("address", at),
        assign("digest", digest),
        assign("input", source.file),
    ]


def _function(name: str, body: list[str]) -> list[str]:
    return ["", f"{name}() {{", *(f"  {line}" for line in body), "}", ""]
