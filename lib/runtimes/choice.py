"""Container runtimes: their modules, and the choice between them."""

from __future__ import annotations

import os
from typing import Callable, NamedTuple, Protocol

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.runtimes import apptainer, docker, enroot, host, pyxis
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.image import can_use, image_name, image_source, image_to_start
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.quoting import Word


class Runtime(Protocol):
    """The functions that the module of each runtime provides."""

    def check(self, env: Environment) -> list[str]:
        """Return the lines that check the image, on any machine where its file is visible."""

    def options(self, env: Environment) -> list[str]:
        """Return the lines that collect the runtime's options in the array ``options``."""

    def command_prefix(self, env: Environment) -> list[Word]:
        """Return the arguments before the user's command."""

    def start_probe(self, program: str, image: str) -> list[str]:
        """Return the command that succeeds if this runtime can start this image."""


MODULES: dict[str, Runtime] = {
    "apptainer": apptainer,
    "singularity": apptainer,
    "docker": docker,
    "podman": docker,
    "enroot": enroot,
    "host": host,
}
_LOOKED_FOR = ("apptainer", "singularity", "docker", "podman", "enroot")
_FIRST = "the first that works on this machine"


class Choice(NamedTuple):
    """Container runtime or ``host``, and the reason if the configuration does not name one."""

    runtime: str
    why: str


def module_of(env: Environment) -> Runtime:
    """Return the module of an environment's runtime."""
    return pyxis if env.in_pyxis else MODULES[env.runtime]


def choose_runtime(
    settings: Settings, paths: Paths, succeeds: Callable[[list[str]], bool]
) -> Choice:
    """Choose the runtime: the configured one, else the site's, else the first that works."""
    configured = configured_runtime(settings)
    if configured:
        return Choice(configured, "")
    failed = []
    for runtime in _installed(settings):
        image = image_to_start(runtime, image_source(settings), paths)
        if succeeds(MODULES[runtime].start_probe(runtime, image)):
            return Choice(runtime, _FIRST)
        failed.append(runtime)
    why = f"found {', '.join(failed)}, but no image" if failed else "no container runtime found"
    return Choice("host", why)


def choose_target_runtime(
    settings: Settings, here: Paths, succeeds: Callable[[list[str]], bool]
) -> Choice:
    """Choose the runtime of the target machine, of which only downloads are known.

    An archive of the image shows that there will be one, whatever this machine has.
    """
    if not configured_runtime(settings):
        source = image_source(settings)
        base = here.archives / f"{image_name(source)}_{settings.machine.arch}"
        if any(os.path.exists(f"{base}.{ending}") for ending in ("tar", "sif")):
            able = next(each for each in _LOOKED_FOR if can_use(each, source))
            return Choice(able, "its image was downloaded")
    return choose_runtime(settings, here, succeeds)


def choose_builder(settings: Settings, succeeds: Callable[[list[str]], bool]) -> Choice:
    """Choose the runtime that builds: as `choose_runtime`, but without an image yet."""
    configured = configured_runtime(settings)
    if configured == "host":
        raise LongshipError(
            "the runtime host uses no image",
            'choose another runtime in configuration.toml, such as container.runtime = "apptainer"',
        )
    if configured:
        return Choice(configured, "")
    for runtime in _installed(settings):
        if succeeds([runtime, "version"]):  # docker and podman ask their daemon
            return Choice(runtime, _FIRST)
    raise LongshipError(
        f"no installed runtime can build from {image_source(settings).address}",
        f"install one of {', '.join(_LOOKED_FOR)}; or, to use this machine's own Python without "
        "an image, run: python3 set_up.py install",
    )


def program_lines(settings: Settings, runtime: str) -> list[str]:
    """Return the lines that load the runtime's modules and check its program."""
    return [*module_lines(settings.machine, runtime), call("program_check", runtime)]


def configured_runtime(settings: Settings) -> str:
    """Return the runtime that the configuration or the site names; empty if neither does."""
    for runtime in (settings.configuration.container.runtime, settings.machine.runtime):
        if runtime != "auto":
            return runtime
    return ""


def _installed(settings: Settings) -> list[str]:
    import shutil  # 2 ms that no other launch needs

    search = settings.environ.get("PATH")
    found = [runtime for runtime in _LOOKED_FOR if shutil.which(runtime, path=search)]
    return [runtime for runtime in found if can_use(runtime, image_source(settings))]
