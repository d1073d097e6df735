"""Container runtimes: their modules, and the choice between them."""

from __future__ import annotations

import os
from typing import Callable, NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.runtimes import find_runtimes, known_runtime
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.image import can_use, image_name, image_source, image_to_start
from lib.runtimes.runtime import runtime_of
from lib.script.command import call
from lib.script.errors import LongshipError

_FIRST = "the first that works on this machine"


class Choice(NamedTuple):
    """Container runtime or ``host``, and the reason if the configuration does not name one."""

    runtime: str
    why: str


def srun_lines(env: Environment) -> list[str]:
    """Return what the start of a job adds on a machine whose srun can start containers."""
    return runtime_of("pyxis").options(env) if env.machine.pyxis != "no" else []


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
        if succeeds(runtime_of(runtime).start_probe(runtime, image)):
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
            able = next(each for each in names_with_images() if can_use(each, source))
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
        f"install one of {', '.join(names_with_images())}; or, to use this machine's own Python "
        "without an image, run: python3 set_up.py install",
    )


def program_lines(settings: Settings, runtime: str) -> list[str]:
    """Return the lines that load the runtime's modules and check its program."""
    return [*module_lines(settings.machine, runtime), call("program_check", runtime)]


def configured_runtime(settings: Settings) -> str:
    """Return the runtime that the configuration or the site names; empty if neither does."""
    runtime, machine = settings.configuration.container.runtime, settings.machine
    if runtime != "auto":
        return runtime
    if machine.runtime != "auto":
        known_runtime(machine.runtime, machine.site_file)
        return machine.runtime
    return ""


def names_with_images() -> list[str]:
    """Return the runtimes that start images: all but the machine itself."""
    return [name for name, each in find_runtimes() if each.ending]


def _installed(settings: Settings) -> list[str]:
    import shutil  # 2 ms that no other launch needs

    search = settings.environ.get("PATH")
    found = [runtime for runtime in names_with_images() if shutil.which(runtime, path=search)]
    return [runtime for runtime in found if can_use(runtime, image_source(settings))]
