"""The runtimes apptainer and singularity (SingularityCE): images are SIF files."""

from __future__ import annotations

from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.script.command import array, assign, call
from lib.script.quoting import Expansion, Word


def prepare(env: Environment) -> list[str]:
    """Return the lines that check the image and collect the runtime's options.

    They fill the array ``options``.
    """
    return [
        call("program_check", env.runtime),
        *check(env),
        call("host_check_arch", env.paths.arch, Expansion('"the image $image"')),
        array("options", env.machine.runtime_options),
        call("apptainer_add_home"),
        *bind_lines(env),
        *overlay_lines(env, "overlay_mount"),
        *([call("apptainer_add_nvidia")] if env.machine.gpu in ("cuda", "auto") else []),
        *([call("apptainer_add_amd")] if env.machine.gpu == "auto" else []),
    ]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [
        assign("image", env.image),
        call("apptainer_check_image", IMAGE, env.paths.arch, env.image_hint),
    ]


def words(env: Environment) -> list[Word]:
    """Return the words before the user's command.

    Environment and working directory need no options: this runtime keeps both.
    """
    return [
        *(env.runtime, "--quiet", "exec", Expansion('"${options[@]}"'), IMAGE),
        *("/bin/sh", "-c", Expansion('"$longship_contract"'), "longship"),
    ]


def probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    return [program, "--quiet", "exec", image, "/bin/true"]


def works(program: str) -> list[str]:
    """Return the command that succeeds if this runtime can build."""
    return [program, "--version"]
