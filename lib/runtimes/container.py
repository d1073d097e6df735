"""Launching programs inside the environment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, pinned
from lib.configuration.training import is_below
from lib.runtimes.choice import MODULES
from lib.runtimes.contract import (
    CONTRACT,
    Bind,
    configured_binds,
    environment_script,
    patched_files,
    unset_lines,
)
from lib.runtimes.image import ImageSource, image_source, image_to_start
from lib.runtimes.launch import Launch, module_lines
from lib.runtimes.packages import overlay_to_start, seen_at
from lib.script.command import call, comment, text_below, wrapped
from lib.script.quoting import Expansion, Word


def describe_launch(
    settings: Settings,
    paths: Paths,
    runtime: str,
    *,
    pip_sources: bool = True,
    overlay: str = "",
) -> Launch:
    """Collect everything that the runtime needs.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        All paths of the machine.
    runtime : str
        The name, from `choose_runtime`.
    pip_sources : bool
        Bind pip's configuration and directories too.
    overlay : str
        File of the overlay, from `lib.runtimes.packages.overlay_to_start`.
    """
    image = image_to_start(runtime, settings, paths)
    binds, site_binds = configured_binds(settings, paths)
    return Launch(
        root=paths.root,
        runtime=runtime,
        image=image,
        image_hint=_image_hint(image_source(settings)) if image else "",
        arch=paths.arch,
        gpu=settings.machine.gpu,
        options=settings.machine.runtime_options,
        binds=binds,
        site_binds=site_binds,
        patched_files=patched_files(settings, paths),
        pip_sources=pip_sources,
        overlay=overlay,
        secrets=settings.configuration.environment.secrets,
    )


def _image_hint(source: ImageSource) -> str:
    """Return the hint for a missing or unusable image."""
    if source.ready:
        return "ask the site's support; or set container.image in configuration.toml"
    return "run: python3 build_container.py && python3 move_built_container_to_active.py"


def start_lines(settings: Settings, launch: Launch, contract: str) -> tuple[list[str], list[Word]]:
    """Return the lines that prepare a launch, and the words before the user's command.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    launch : Launch
        Everything that the runtime needs.
    contract : str
        POSIX sh text that sets the program's environment.

    Returns
    -------
    tuple of list and list
        Lines of bash, and words for `lib.script.command.call`.
    """
    module = MODULES[launch.runtime]
    lines = [
        *module_lines(settings.machine, launch.runtime),
        "",
        comment("The host's compilers and Python must not leak into the environment."),
        *unset_lines(settings.configuration.environment),
        "",
        text_below("longship_contract", contract, CONTRACT),
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
        All paths of the machine.
    runtime : str
        The name, from `choose_runtime`.
    online : bool
        Allow the Hugging Face libraries to use the network.
    venv : pathlib.Path or None
        The venv that comes first on PATH.
    for_ranks : bool
        For the ranks of a job, which install nothing: pip's configuration is left out, so that
        they do not read it from the home directory, and the last use is not recorded.

    Returns
    -------
    list of str
        Lines of bash, which take the command as ``"$@"``.
    """
    overlay = overlay_to_start(settings, paths)
    launch = describe_launch(settings, paths, runtime, pip_sources=not for_ranks, overlay=overlay)
    venv = pinned(venv) if venv else None
    launch = launch._replace(site_binds=(*launch.site_binds, *venv_binds(venv, paths)))
    contract = environment_script(
        settings, paths, online=online, folders=package_folders(runtime, overlay, venv)
    )
    lines, words = start_lines(settings, launch, contract)
    return [
        *([call("outlive_last_words")] if for_ranks else []),
        wrapped("make_folders", *paths.roots),
        *([call("take_rank")] if for_ranks else []),
        *lines,
        *([call("check_venv", venv, overlay or launch.base)] if venv else []),
        *([call("note_use")] if overlay and not for_ranks else []),
        call(
            "take_command", paths.root / "lib/runtimes/inside/interactive.bash", Expansion('"$@"')
        ),
        *([call("encode_command")] if runtime != "host" else []),
        call("hand_over", *words, Expansion('"${command[@]}"')),
    ]


def venv_binds(venv: Path | None, paths: Paths) -> list[Bind]:
    """Return the bind of a venv outside the configured directories."""
    if venv is None or any(is_below(str(venv), str(each)) for each in paths.roots):
        return []
    return [Bind(str(venv), str(venv))]


def package_folders(runtime: str, overlay: str, venv: Path | None) -> list[str]:
    """Return the directories with packages on top of the image, the lowest first.

    Parameters
    ----------
    runtime : str
        Runtime of the image.
    overlay : str
        From `lib.runtimes.packages.overlay_to_start`; empty for none.
    venv : pathlib.Path or None
        The active version of the venv.
    """
    return [
        *([seen_at(overlay, runtime)] if overlay else []),
        *([str(venv)] if venv else []),
    ]


def inside_lines(
    settings: Settings,
    paths: Paths,
    runtime: str,
    *,
    overlay: str = "",
    binds: Iterable[Bind] = (),
) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` for a script that sets something up.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        All paths of the machine.
    runtime : str
        The name, from `choose_runtime`.
    overlay : str
        File of the overlay, which is mounted but not first on PATH.
    binds : iterable of Bind
        More directories to bind.
    """
    launch = describe_launch(settings, paths, runtime, overlay=overlay)
    launch = launch._replace(binds=(*launch.binds, *binds))
    contract = environment_script(settings, paths, online=True)
    lines, words = start_lines(settings, launch, contract)
    return [
        *lines,
        "",
        *_inside(*words),
    ]


def here_lines(settings: Settings, here: Paths) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` without a container.

    Parameters
    ----------
    settings : Settings
        All layers put together, of any machine.
    here : Paths
        All paths of this machine.
    """
    contract = environment_script(settings, here, online=True)
    return [
        text_below("longship_contract", contract, CONTRACT),
        *_inside("/bin/sh", "-c", Expansion('"$longship_contract"'), "longship"),
        "",
    ]


def _inside(*words: Word) -> list[str]:
    """Return the function ``inside``; it runs in a subshell, which becomes the program."""
    start = call("hand_over", *words, Expansion('"$@"'))
    return ["inside() {", f"  ({start})", "}"]
