"""Images for an air-gapped machine: the lines of `build_container.py download`."""

from __future__ import annotations

import dataclasses

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, derive_paths
from lib.images.build import (
    archive_base,
    function,
    name_lines,
    recipe_for,
    source_lines,
    start_lines,
    work_folder,
)
from lib.runtimes.choice import MODULES
from lib.runtimes.image import check_usable, image_source
from lib.runtimes.recipe import ADDRESS, PARTIAL, Recipe
from lib.script.command import assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion

_FETCHER = Expansion('"$fetcher"')
_SIFS = ("apptainer", "singularity")


def download_lines(
    settings: Settings, here: Paths, runtime: str, *, digest: str, again: bool, typed: str
) -> list[str]:
    """Return the lines that save an archive of the image for another machine.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the target machine.
    here : Paths
        Paths on the machine that downloads.
    runtime : str
        Runtime on the target machine.
    digest : str
        Required digest of the source; empty for the current one.
    again : bool
        Replace an archive that exists.
    typed : str
        Command line, to resume after an interruption.

    Raises
    ------
    LongshipError
        If the source cannot be downloaded on this machine.
    """
    source = image_source(settings)
    check_usable(runtime, source)
    if source.kind == "sqsh":
        raise LongshipError(
            f"cannot download {source.address}: it is a file already",
            "copy it to the target machine, and set container.image there",
        )
    here = dataclasses.replace(here, arch=settings.machine.arch)
    recipe = recipe_for(runtime, source, here)
    work = work_folder(recipe, here)
    folders = [line for each in _SIFS for line in MODULES[each].folders(each, work)]
    return [
        *start_lines(settings, typed, here.archives),
        *name_lines(recipe, here, again=again),
        assign("active", ""),
        'work="$work".download',
        *source_lines(source, digest),
        assign("base", archive_base(recipe, here)),
        *_choice(recipe),
        *([call("check_can_build", recipe.arch, source.kind)] if source.runs_programs else []),
        *function("make_image", [*folders, 'export TMPDIR="$tmp"', *_fetch(recipe)]),
        call("locked", Expansion('"$record"'), "build_image", _next_step(settings, here)),
    ]


def _choice(recipe: Recipe) -> list[str]:
    """Return the lines that choose the program to download with, and name the archive."""
    if recipe.source.kind == "docker":
        sifs = _SIFS if recipe.runtime in _SIFS else ()  # of no use to another runtime
        return [call("choose_fetcher", Expansion('"$base"'), *sifs)]
    sif = recipe.source.kind in ("oras", "library", "definition", "sif")
    chosen = [call("choose_sif_builder")] if sif and recipe.source.kind != "sif" else []
    return [*chosen, f'image="$base".{"sif" if sif else "tar"}', 'record="$image".json']


def _fetch(recipe: Recipe) -> list[str]:
    """Return the lines that save ``$partial``, the archive, from ``$address``."""
    kind, tag = recipe.source.kind, f"{recipe.tag}-archive"
    if kind == "docker":
        return [call("fetch_archive", tag)]
    if kind == "dockerfile":
        return [call("build_dockerfile", ADDRESS, recipe.arch, PARTIAL, tag)]
    if kind == "docker-daemon":
        return [
            call("take_from_daemon", "docker", ADDRESS, tag),
            call("save_tag", "docker", tag, PARTIAL),
        ]
    if kind in ("oras", "library", "definition"):
        return MODULES["apptainer"].make_image(recipe._replace(runtime=_FETCHER))
    return [call("copy_image", Expansion('"$input"'), PARTIAL)]


def _next_step(settings: Settings, here: Paths) -> str:
    """Return the next command: copy the archive, if it is for another machine."""
    offline = "python3 build_container.py offline"
    try:
        there = str(derive_paths(settings).archives)
    except LongshipError:  # the target's paths hold variables that only the target knows
        there = "SCRATCH_DIR/offline/containers"
    if there == str(here.archives):
        return offline
    copy = call("rsync", "-a", f"{here.archives}/", f"{settings.machine.name}:{there}/")
    return f"{copy}; then on {settings.machine.name}: {offline}"
