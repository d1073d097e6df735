"""What doctor.py asks of image, overlay, venv and repositories, as other scripts ask it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, pinned
from lib.repositories.repositories import listed_lines
from lib.runtimes.choice import MODULES
from lib.runtimes.container import describe_launch, inside_lines, venv_binds
from lib.runtimes.image import image_file, image_source
from lib.runtimes.launch import Launch
from lib.runtimes.packages import overlay_to_start, wanted_venv
from lib.script.command import assign, call


def software_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that look at image, overlay and venv.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `lib.runtimes.choice.choose_runtime`.

    Raises
    ------
    LongshipError
        If one of them cannot be as it is configured.
    """
    overlay = overlay_to_start(settings, paths)
    launch = describe_launch(settings, paths, runtime, overlay=overlay)
    venv = wanted_venv(settings, paths)
    own = venv_binds(pinned(venv), paths) if venv and os.path.exists(venv) else []
    inside = inside_lines(settings, paths, runtime, binds=own)
    compression = settings.configuration.packages.compression
    return [
        *(_image_lines(settings, paths, launch) if launch.image else []),
        *_function("inside_now", [*inside, 'inside "$@"']),
        call("diagnose_inside"),
        call("diagnose_gpu_inside"),
        *(
            [call("diagnose_mount", runtime, launch.image, compression, overlay)]
            if runtime in ("apptainer", "singularity")
            else []
        ),
        *(
            [
                assign("overlay", overlay),
                *_function("check_overlay_as_always", [call("check_overlay", launch.base)]),
                call("diagnose_overlay"),
            ]
            if overlay
            else []
        ),
        *([call("diagnose_venv", pinned(venv), overlay or launch.base)] if venv else []),
    ]


def _image_lines(settings: Settings, paths: Paths, launch: Launch) -> list[str]:
    file = image_file(launch.runtime, image_source(settings), paths)
    active = paths.containers / file
    version = pinned(active) if os.path.islink(active) else launch.image
    return [
        *_function("check_image_as_always", MODULES[launch.runtime].check(launch)),
        call("diagnose_image", version, paths.containers / "build" / file),
    ]


def _function(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}() {{", *lines, "}"]


def repository_checks(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that look at the repositories; none where none is configured.

    Parameters and errors are those of `lib.repositories.repositories.listed_lines`.
    """
    listed = listed_lines(settings, paths)
    return [*listed, call("diagnose_repositories")] if listed else []
