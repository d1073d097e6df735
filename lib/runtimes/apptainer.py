"""The runtimes apptainer and singularity (SingularityCE): images are SIF files."""

from __future__ import annotations

from lib.runtimes.contract import SHELL
from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.script.command import array, call
from lib.script.quoting import Expansion, Word


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [call("sif_check", IMAGE, env.paths.arch, env.image_hint)]


def options(env: Environment) -> list[str]:
    """Return the lines that collect the options; this runtime keeps environment and directory."""
    return [
        array("options", env.machine.runtime_options),
        call("sif_add_home"),
        *bind_lines(env),
        *overlay_lines(env, "overlay_mount", IMAGE),
        *([call("sif_add_gpus")] if env.machine.gpu in ("cuda", "auto") else []),
    ]


def command_prefix(env: Environment) -> list[Word]:
    """Return the arguments before the user's command."""
    return [env.runtime, "--quiet", "exec", Expansion('"${options[@]}"'), IMAGE, *SHELL]


def start_probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    return [program, "--quiet", "exec", image, "/bin/true"]
