"""The wheelhouse: Python packages for a machine without network, downloaded on another one."""

from __future__ import annotations

import dataclasses

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, derive_paths
from lib.configuration.sites import own_arch
from lib.packages.install import target_lines, wanted_lines
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_name, image_source
from lib.runtimes.launch import inside_lines
from lib.script.command import assign, call, export
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion


def download_lines(settings: Settings, here: Paths, runtime: str) -> list[str]:
    """Return the lines that download the packages for a machine, which can be another one.

    Parameters
    ----------
    settings : Settings
        All layers merged, for the target machine.
    here : Paths
        The paths on the machine that downloads.
    runtime : str
        The container runtime of the target.

    Returns
    -------
    list of str
        Lines of bash, which take more options of pip as ``"$@"``.

    Raises
    ------
    LongshipError
        If neither the configuration nor the stack names a package.
    """
    target = dataclasses.replace(here, arch=settings.machine.arch)
    tools = dataclasses.replace(here, arch=own_arch()).tools
    folder = here.offline / "pip"
    return [
        *wanted_lines(settings, target, runtime),
        *target_lines(settings, target),
        assign("machine", settings.machine.name),
        assign("downloads", folder),
        assign("fetcher", tools / "fetcher"),
        export("PIP_CACHE_DIR", here.cache / "pip"),
        export("UV_CACHE_DIR", here.cache / "uv"),
        assign("archive", _archive(settings, target, runtime)),
        assign("configured_python", settings.configuration.packages.python),
        "",
        "start_image() {",
        *(f"  {line}" if line else "" for line in _start_here(settings, target, runtime)),
        "}",
        "",
        call("make_folders", folder),
        call("locked", folder / "download", "download_packages", Expansion('"$@"')),
    ]


def next_step(settings: Settings, here: Paths) -> str:
    """Return the next command after a download; it copies the files if the target is not here."""
    offline = "python3 set_up.py offline"
    try:
        there = str(derive_paths(settings).offline)
    except LongshipError:  # the target's paths hold variables that only the target knows
        there = "SCRATCH_DIR/offline"
    if there == str(here.offline):
        return offline
    copy = call("rsync", "-a", f"{here.offline}/", f"{settings.machine.name}:{there}/")
    return f"{copy}; then, on {settings.machine.name}: {offline}"


def _archive(settings: Settings, target: Paths, runtime: str) -> str:
    """Return the image archive; the packages of a SIF cannot be read."""
    if runtime == "host":
        return ""
    source = image_source(settings)
    if source.kind == "docker-archive":
        return source.file
    return str(target.archives / f"{image_name(source)}_{target.arch}.tar")


def _start_here(settings: Settings, target: Paths, runtime: str) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` for the target's image on this machine."""
    try:
        return inside_lines(Environment(settings, target, runtime, held={"overlay": ""}))
    except LongshipError:  # its binds hold variables that only the target knows
        return [call("false")]
