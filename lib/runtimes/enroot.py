"""The runtime enroot: images are SquashFS files.

It starts with an empty environment, its own home directory and its own /tmp, so what Apptainer
keeps automatically is requested here. A hook of enroot adds GPUs.
"""

from __future__ import annotations

from pathlib import Path

from lib import ROOT
from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.script.command import array, assign, call, export
from lib.script.quoting import Expansion, Word


def prepare(env: Environment) -> list[str]:
    """Return the lines that check the image and collect the runtime's options.

    They fill the array ``options``, which begins with the command.
    """
    return [
        call("program_check", env.runtime),
        *check(env),
        call("host_check_arch", env.paths.arch, Expansion('"the image $image"')),
        array("options", [*_start(env.runtime, env.paths.root), *env.machine.runtime_options]),
        call("enroot_hide_gpus"),
        'bind_format() { enroot_add_bind "$@"; }',
        *bind_lines(env),
        *overlay_lines(env, "overlay_bind_unpacked"),
        call("bind_add", "/tmp"),
        export("ENROOT_MOUNT_HOME", "yes"),
        export("ENROOT_LOGIN_SHELL", "no"),  # /etc/profile would overwrite the image's PATH
        'export LONGSHIP_WORKING_FOLDER="$PWD"',
        call("docker_add_environment", env.runtime),
    ]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [assign("image", env.image), call("enroot_check_image", IMAGE, env.image_hint)]


def words(env: Environment) -> list[Word]:
    """Return the words before the user's command."""
    return [
        *(Expansion('"${options[@]}"'), IMAGE),
        *("/bin/sh", "-c", Expansion('"$longship_contract"'), "longship"),
    ]


def probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    start = map(str, _start(program, Path(ROOT)))
    return ["env", "NVIDIA_VISIBLE_DEVICES=void", *start, image, "/bin/true"]


def works(program: str) -> list[str]:
    """Return the command that succeeds if this runtime can build."""
    return [program, "version"]


def _start(program: str, root: Path) -> list[Word]:
    return [program, "start", "--rc", root / "lib/runtimes/inside/enroot.rc"]
