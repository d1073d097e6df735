"""Versions of the image, activated or deleted: the lines of `move_built_container_to_active.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lib.configuration.paths import Paths, make_lines
from lib.runtimes.choice import program_lines
from lib.runtimes.environment import Environment
from lib.runtimes.image import active_image, check_usable
from lib.runtimes.runtime import answer_lines
from lib.script.command import assign, call


def move_lines(env: Environment, command_line: str, following: Sequence[str]) -> list[str]:
    """Return the lines that check the new image and activate it.

    ``following`` are the commands to run next: packages belong to an image.
    """
    active = _active(env)
    activate = [call("on_interrupt", command_line), call("image_activate", active)]
    return _script(env, activate, following)


def use_lines(env: Environment, following: Sequence[str], version: str | None) -> list[str]:
    """Return the lines that activate a version, by default the previously active one."""
    active = _active(env)
    use = ("version_roll_back", active)
    if version is not None:
        use = ("version_use", active, version, "use")
    return _script(env, [call("lock_run", active, *use)], following)


def _script(env: Environment, lines: list[str], following: Sequence[str]) -> list[str]:
    paths = env.paths
    env.check_image_directory(activates=True)
    return [
        assign("arch", paths.arch),
        *_directory_lines(paths),
        *program_lines(env.settings, env.runtime),
        *answer_lines(env),
        "",
        *lines,
        *(call("next_step", each) for each in following),
    ]


def image_prune_lines(env: Environment) -> list[str]:
    """Return the lines that delete unused versions."""
    paths = env.paths
    return [
        assign("arch", paths.arch),
        *_directory_lines(paths),
        *answer_lines(env),
        call("image_prune", _active(env)),
    ]


def _directory_lines(paths: Paths) -> list[str]:
    """Return the lines that make the directories of the images."""
    inside = (paths.containers / each for each in ("build", "versions"))
    return [
        call("cd", "--", paths.root),
        *make_lines(paths, paths.containers, *inside),
        call("pins_make", paths.containers / "pins"),
    ]


def _active(env: Environment) -> Path:
    check_usable(env.runtime, env.source)
    return active_image(env.runtime, env.source, env.paths)
