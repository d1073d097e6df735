"""Starting programs inside: which runtime, which image, and the lines that do it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, NamedTuple

from lib import apptainer, docker, environment, host
from lib.command import assign, call, comment
from lib.errors import LongshipError
from lib.launch import Launch
from lib.paths import Paths, image_tag, pinned
from lib.quoting import Expansion, Word
from lib.settings import Settings

_MODULES = {
    "apptainer": apptainer,
    "singularity": apptainer,
    "docker": docker,
    "podman": docker,
    "host": host,
}


class Choice(NamedTuple):
    """What runs the image.

    Parameters
    ----------
    runtime : str
        The program, or ``host``.
    why : str
        The reason, where the configuration left it open, else "".
    lasting : bool
        False where a runtime that is installed did not work just now: its daemon may start later.
    """

    runtime: str
    why: str
    lasting: bool


def choose_runtime(
    settings: Settings, paths: Paths, succeeds: Callable[[list[str]], bool]
) -> Choice:
    """Choose what runs the image: what is configured, else the site's, else what works here.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    succeeds : callable
        Takes a command and tells whether it succeeds on this machine.
    """
    configured = settings.configuration.container.runtime
    if configured == "auto":
        configured = settings.machine.runtime
    if configured != "auto":
        return Choice(configured, "", True)
    import shutil  # 2 ms that no other launch needs

    search = settings.environ.get("PATH")
    failed = []
    for runtime in ("apptainer", "singularity", "docker", "podman"):
        if shutil.which(runtime, path=search):
            image = _image(runtime, settings, paths)
            if succeeds(_MODULES[runtime].probe(runtime, image)):
                return Choice(runtime, f"runtime {runtime} (the first that works here)", not failed)
            failed.append(runtime)
    why = f"{', '.join(failed)} here, but without an image" if failed else "no other is installed"
    return Choice("host", f"runtime host ({why})", not failed)


def image_source(settings: Settings) -> str:
    """Return where the image comes from: the configuration, or the stack for the machine's GPU.

    Raises
    ------
    LongshipError
        If the stack has no image for it.
    """
    if settings.configuration.container.image:
        return settings.configuration.container.image
    vendor = settings.machine.gpu
    if vendor == "auto":
        vendor = "cuda" if os.path.exists("/dev/nvidiactl") else "cpu"
    if vendor in settings.stack.images:
        return settings.stack.images[vendor]
    raise LongshipError(
        f"stack {settings.stack.name} has no image for {vendor}, which {settings.machine.name} has",
        "name one: container.image in configuration.toml",
    )


def _image(runtime: str, settings: Settings, paths: Paths) -> str:
    """Return the name under which a runtime finds the image in use."""
    if runtime == "host":
        return ""
    source = image_source(settings)
    if _MODULES[runtime] is docker:
        return image_tag(source, paths.arch)
    # Olivia and LUMI keep images ready: a path
    active = Path(source) if source.startswith("/") else paths.active_image(source)
    return str(pinned(active))


def describe_launch(
    settings: Settings, paths: Paths, runtime: str, *, pip_sources: bool = True
) -> Launch:
    """Collect what the runtime is given.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `choose_runtime`.
    pip_sources : bool
        Show pip's configuration and folders too.
    """
    image = _image(runtime, settings, paths)
    binds, site_binds = environment.configured_binds(settings, paths)
    return Launch(
        runtime=runtime,
        image=image,
        image_hint=_image_hint(runtime, image, settings),
        arch=paths.arch,
        gpu=settings.machine.gpu,
        options=settings.machine.runtime_options,
        binds=binds,
        site_binds=site_binds,
        pip_sources=pip_sources,
    )


def _image_hint(runtime: str, image: str, settings: Settings) -> str:
    """Say what makes the image."""
    if runtime == "host":
        return ""
    source = image_source(settings)
    if source.startswith("/"):
        return "ask the site, or name another image: container.image in configuration.toml"
    if _MODULES[runtime] is docker:
        plain = source.partition("://")[2]
        return call(runtime, "pull", plain) + " && " + call(runtime, "tag", plain, image)
    return call(runtime, "pull", "--arch", settings.machine.arch, image, source)


def base_of(launch: Launch) -> str:
    """Name what a venv is made on top of: its Python belongs to this image, or to the host."""
    return launch.image or "host"


def start_lines(settings: Settings, launch: Launch, contract: str) -> tuple[list[str], list[Word]]:
    """Return the lines that prepare a start, and the words in front of the user's command.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    launch : Launch
        What the runtime is given.
    contract : str
        The POSIX sh text that gives the program its environment.

    Returns
    -------
    tuple of list and list
        Lines of bash, and words for `lib.command.call`.
    """
    module = _MODULES[launch.runtime]
    modules = settings.machine.modules
    lines = [
        *([call("load_modules", launch.runtime, *modules)] if modules else []),
        "",
        comment("Nothing of the host's compilers and Python reaches the program."),
        environment.unset_host_variables(settings.configuration.environment),
        "",
        comment("What the program finds inside, in every runtime: POSIX sh."),
        comment("shellcheck disable=SC2016  # expanded inside, not here"),
        assign("contract", contract),
        "",
        *module.prepare(launch),
    ]
    return lines, module.words(launch)


def run_lines(
    settings: Settings,
    paths: Paths,
    runtime: str,
    *,
    online: bool,
    venv: Path | None,
    for_ranks: bool = False,
) -> list[str]:
    """Return the lines of `container_run.py`: become the command, inside.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `choose_runtime`.
    online : bool
        Leave the Hugging Face libraries their network.
    venv : pathlib.Path or None
        The venv that comes first on PATH.
    for_ranks : bool
        For the many ranks of a job, which install nothing: pip's configuration is left out, so
        that each of them does not read it from the home folder.

    Returns
    -------
    list of str
        Lines of bash, which take the command as ``"$@"``.
    """
    launch = describe_launch(settings, paths, runtime, pip_sources=not for_ranks)
    venv = pinned(venv) if venv else None
    contract = environment.contract(settings, paths, online=online, venv=venv)
    lines, words = start_lines(settings, launch, contract)
    return [
        call("make_folders", paths.project_dir, paths.scratch_dir),
        *lines,
        *([call("check_venv", venv, base_of(launch))] if venv else []),
        call("take_command", paths.root / "lib/shell/interactive.bash", Expansion('"$@"')),
        *([call("encode_command")] if runtime != "host" else []),
        call("exec", *words, Expansion('"${command[@]}"')),
    ]


def inside_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` for a script that sets something up."""
    launch = describe_launch(settings, paths, runtime)
    contract = environment.contract(settings, paths, online=True, venv=None)
    lines, words = start_lines(settings, launch, contract)
    return [
        *lines,
        "",
        "inside() {",
        "  " + call(*words, Expansion('"$@"')),
        "}",
    ]
