"""What doctor.py asks of image, overlay, venv and repositories, as other scripts ask it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, pinned
from lib.repositories.repositories import listed_lines
from lib.runtimes.choice import module_of
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_file
from lib.runtimes.launch import inside_lines
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
    env = Environment(settings, paths, runtime, "set_up")
    own = tuple(env.venv_binds) if env.venv and os.path.exists(env.venv) else ()
    inside = inside_lines(replace(env, held={"overlay": ""}, more_binds=own))
    compression = settings.configuration.packages.compression
    return [
        *(_image_lines(env) if env.image else []),
        *_function("inside_now", [*inside, 'inside "$@"']),
        call("diagnose_inside"),
        call("diagnose_gpu_inside"),
        *(
            [call("diagnose_mount", runtime, env.image, compression, env.overlay)]
            if runtime in ("apptainer", "singularity")
            else []
        ),
        *(
            [
                assign("overlay", env.overlay),
                *_function("check_overlay_as_always", [call("check_overlay", env.base)]),
                call("diagnose_overlay"),
            ]
            if env.overlay
            else []
        ),
        *([call("diagnose_venv", env.venv, env.overlay or env.base)] if env.venv else []),
    ]


def _image_lines(env: Environment) -> list[str]:
    file = image_file(env.runtime, env.source, env.paths)
    active = env.paths.containers / file
    version = pinned(active) if os.path.islink(active) else env.image
    return [
        *_function("check_image_as_always", module_of(env).check(env)),
        call("diagnose_image", version, env.paths.containers / "build" / file),
    ]


def _function(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}() {{", *lines, "}"]


def repository_checks(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that look at the repositories; none where none is configured.

    Parameters and errors are those of `lib.repositories.repositories.listed_lines`.
    """
    listed = listed_lines(settings, paths)
    return [*listed, call("diagnose_repositories")] if listed else []
