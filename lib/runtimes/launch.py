"""Launching programs inside the environment."""

from __future__ import annotations

from collections.abc import Sequence

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, make_lines
from lib.configuration.training import Training
from lib.runtimes.contract import (
    CONTRACT,
    SHELL,
    caller_lines,
    environment_script,
    forget_lines,
)
from lib.runtimes.environment import Environment, check_overlay, command_line, module_lines
from lib.script.command import assign, call, text_below, wrapped
from lib.script.quoting import Expansion, Word


def run_lines(env: Environment, *, online: bool = False) -> list[str]:
    """Return the lines that become the command ``"$@"`` inside."""
    script = _script(env, online=online, directories=env.package_directories)
    if env.in_pyxis:  # these lines run inside the container
        begin = env.module.check_inside()
        prepare = [call("node_cache_make"), text_below("longship_contract", script, CONTRACT), ""]
    else:
        # the ranks' job has checked them
        begin = wrapped("directory_make", *env.paths.roots)
        if not env.for_ranks:
            (begin,) = make_lines(env.paths)
        prepare = _prepare_lines(env, script)
    return [
        *([call("exit_delay"), call("rank_export")] if env.for_ranks else []),
        begin,
        *(call(each, env.runtime) for each in env.at_rank),
        *prepare,
        *venv_check_lines(env),
        *([call("overlay_record_use", env.overlay)] if env.overlay and not env.for_ranks else []),
        command_line(env),
        *([call("command_check_text")] if env.image and not env.in_pyxis else []),
        call("command_exec", *env.module.command_prefix(env), Expansion('"${command[@]}"')),
    ]


def inside_lines(env: Environment) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` for an installation, outside the venv.

    The overlay is mounted, but not first on PATH.
    """
    env = env._replace(purpose="set_up")
    script = _script(env, online=True)
    return [*_prepare_lines(env, script), "", *_inside(*env.module.command_prefix(env))]


def here_lines(settings: Settings, here: Paths) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` on this machine, without a container."""
    training = Training.read(settings, here)
    script = environment_script(settings, here, training, online=True)
    return [text_below("longship_contract", script, CONTRACT), *_inside(*SHELL), ""]


def check_lines(env: Environment) -> list[str]:
    """Return the lines that check, without a launch, that image, overlay and venv fit together."""
    env.check_binds()
    return [
        *image_lines(env),
        *([check_overlay(env)] if env.overlay else []),
        *venv_check_lines(env),
    ]


def venv_check_lines(env: Environment) -> list[str]:
    """Return the line that checks the venv against the overlay or the image under it."""
    return [call("venv_check", env.venv, env.overlay or env.base)] if env.venv else []


def image_lines(env: Environment) -> list[str]:
    """Return the lines that check the image; none for the runtime host."""
    return [assign("image", env.image), *env.module.check(env)] if env.image else []


def _prepare_lines(env: Environment, script: str) -> list[str]:
    """Return the lines that prepare a launch: the image is checked, and options collected."""
    env.check_binds()
    what = Expansion('"the image $image"')
    return [
        *module_lines(env.machine, env.runtime),
        *forget_lines(env.settings.configuration.environment),
        # an installation uses the caches that Longship checks
        *([] if env.purpose == "set_up" else caller_lines(env.settings, env.training)),
        *([] if env.purpose == "set_up" else [call("node_cache_make")]),
        text_below("longship_contract", script, CONTRACT),
        *([call("program_check", env.runtime)] if env.image else []),
        *image_lines(env),
        *([call("host_check_arch", env.paths.arch, what)] if env.image else []),
        *env.module.options(env),
    ]


def _script(env: Environment, *, online: bool, directories: Sequence[str] = ()) -> str:
    settings, paths = env.settings, env.paths
    return environment_script(settings, paths, env.training, online=online, directories=directories)


def _inside(*words: Word) -> list[str]:
    """Return the function ``inside``; it runs in a subshell, which becomes the program."""
    start = call("command_exec", *words, Expansion('"$@"'))
    return ["inside() {", f"  ({start})", "}"]
