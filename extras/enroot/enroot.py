"""The runtime enroot: images are SquashFS files.

It starts with an empty environment, its own home directory and its own /tmp, so what Apptainer
keeps automatically is requested here. A hook of enroot adds GPUs.
"""

from __future__ import annotations

from pathlib import Path

from lib import ROOT
from lib.runtimes.contract import SHELL
from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.script.command import array, call, export
from lib.script.quoting import Expansion, Word

ENDINGS = {"enroot": "sqsh"}
SOURCES = ("docker", "docker-archive", "docker-daemon", "dockerfile", "sqsh")
IN_STORE = DAEMON = False

_RC = "extras/enroot/inside/enroot.rc"


def build(env: Environment, tag: str, work: Path) -> list[str]:
    """Return the lines that build the image."""
    return [call("enroot_build_image", tag)]


def answers(env: Environment) -> list[Word]:
    """Return the command that answers questions about images."""
    return ["enroot_image", env.paths.root / _RC]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [call("sqsh_check", IMAGE, env.image_hint)]


def options(env: Environment) -> list[str]:
    """Return the lines that collect the options, after the command itself."""
    return [
        array("options", [*_start(env.paths.root), *env.machine.runtime_options]),
        call("enroot_hide_gpus"),
        'bind_format() { enroot_add_bind "$@"; }',
        *bind_lines(env),
        *overlay_lines(env, "overlay_bind_unpacked"),
        call("bind_add", "/tmp"),
        export("ENROOT_MOUNT_HOME", "yes"),
        export("ENROOT_LOGIN_SHELL", "no"),  # /etc/profile would overwrite the image's PATH
        'export LONGSHIP_WORKING_FOLDER="$PWD"',
        call("enroot_add_variables"),
    ]


def command_prefix(env: Environment) -> list[Word]:
    """Return the arguments before the user's command."""
    return [Expansion('"${options[@]}"'), IMAGE, *SHELL]


def start_probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    return ["env", "NVIDIA_VISIBLE_DEVICES=void", *map(str, _start(Path(ROOT))), image, "/bin/true"]


def _start(root: Path) -> list[Word]:
    return ["enroot", "start", "--rc", root / _RC]
