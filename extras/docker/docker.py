"""The runtimes docker and podman: images are tags in the runtime's own store.

They start with an empty environment and without the host's directories, so what Apptainer keeps
automatically (environment, home, /tmp, working directory, user) is requested here.
"""

from __future__ import annotations

from pathlib import Path

from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.runtimes.image import ARCHIVES
from lib.script.command import array, call
from lib.script.quoting import Expansion, Word

ENDINGS = {"docker": "docker", "podman": "podman"}
SOURCES = ("docker", *ARCHIVES, "docker-daemon", "dockerfile")
IN_STORE = DAEMON = True

# As under Apptainer: the host's network and shared memory; a real init passes signals on, which a
# program as process 1 would not see.
_ALWAYS = ("--rm", "--interactive", "--init", "--network=host", "--pull=never")

_TEXT = Expansion('"$(engine_secrets_text)$longship_contract"')


def build(env: Environment, tag: str, work: Path) -> list[str]:
    """Return the lines that build the image."""
    return [call("engine_build_image", env.runtime, tag)]


def answers(env: Environment) -> list[Word]:
    """Return the command that answers questions about images."""
    return ["engine_image", env.runtime]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image."""
    return [call("engine_check", env.runtime, IMAGE, env.paths.arch, env.image_hint)]


def options(env: Environment) -> list[str]:
    """Return the lines that collect the options."""
    secrets = env.settings.configuration.environment.secrets
    return [
        array("options", (*_ALWAYS, *env.machine.runtime_options)),
        *bind_lines(env),
        *overlay_lines(env, "overlay_bind_unpacked"),
        call("engine_add_shared_memory", env.runtime),
        call("engine_add_user", env.runtime),
        *([call("engine_add_gpus", env.runtime)] if env.machine.gpu != "cpu" else []),
        call("engine_add_variables", *secrets),
        call("engine_add_working_directory"),
    ]


def command_prefix(env: Environment) -> list[Word]:
    """Return the arguments before the user's command; the image's entry point is skipped."""
    return [
        *(env.runtime, "run", Expansion('"${options[@]}"'), "--entrypoint=/bin/sh"),
        *(IMAGE, "-c", _TEXT, "longship"),
    ]


def start_probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime has this image; it queries the daemon."""
    return [program, "image", "inspect", image]
