"""The wheelhouse: Python packages for a machine without network, downloaded on another one."""

from __future__ import annotations

import sys

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, step_after_download
from lib.configuration.sites import own_arch
from lib.packages.install import requirement_lines, target_lines
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_name
from lib.runtimes.launch import inside_lines
from lib.script.command import assign, call, export, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion


def download_lines(env: Environment) -> list[str]:
    """Return the lines that download the packages, with options of pip as ``"$@"``."""
    settings, here = env.settings, env.paths
    target = here._replace(arch=settings.machine.arch)
    env = env._replace(paths=target)
    tools = here._replace(arch=own_arch()).tools
    directory = here.offline / "pip"
    return [
        assign("machine", settings.machine.name),
        *requirement_lines(env),
        *target_lines(settings, target),
        export("PIP_CACHE_DIR", here.cache / "pip"),
        export("UV_CACHE_DIR", here.cache / "uv"),
        "",
        "start_image() {",
        *(f"  {line}" if line else "" for line in _start_here(env)),
        "}",
        "",
        call("directory_make", directory),
        wrapped(
            *("lock_run", directory / "download"),
            *("wheelhouse_download", directory, tools / "fetcher"),
            *(sys.executable or "python3", _archive(env), settings.configuration.packages.python),
            Expansion('"$@"'),
        ),
    ]


def next_step(settings: Settings, here: Paths, script: str = "set_up.py") -> str:
    """Return the next command after a download; it copies the files to another machine."""
    return step_after_download(settings, here, here.offline, f"python3 {script} offline")


def _archive(env: Environment) -> str:
    """Return the image archive; the packages of a SIF cannot be read."""
    target = env.paths
    if env.runtime == "host":
        return ""
    source = env.source
    if source.kind == "docker-archive":
        return source.file
    return str(target.archives / f"{image_name(source)}_{target.arch}.tar")


def _start_here(env: Environment) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` for the target's image on this machine."""
    try:
        return inside_lines(env._replace(held={"overlay": ""}))
    except LongshipError:  # its binds contain variables that only the target knows
        return [call("false")]
