"""The runtimes apptainer and singularity (SingularityCE): images are SIF files."""

from __future__ import annotations

from pathlib import Path

from lib.runtimes.contract import SHELL
from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.runtimes.image import SCHEMES
from lib.script.command import array, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word

ENDINGS = {"apptainer": "sif", "singularity": "sif"}
SOURCES = (*SCHEMES, "definition", "dockerfile", "sif")
IN_STORE = DAEMON = False


def build(env: Environment, tag: str, work: Path) -> list[str]:
    """Return the lines that build the image."""
    check_path(env.runtime, work)
    return [call("sif_build", env.runtime, tag)]


def check_path(runtime: str, work: Path) -> None:
    """Reject a path with a quote: Apptainer 1.4 inserts it unquoted into a shell's text."""
    if "'" in str(work):
        raise LongshipError(
            f"{runtime} cannot build in a directory with a quote in its path: {work}",
            "set paths.scratch_dir in configuration.toml to another directory",
        )


def answers(env: Environment) -> list[Word]:
    """Return the command that answers questions about images."""
    return ["sif_image", env.runtime]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [call("sif_check", IMAGE, env.paths.arch, env.image_hint)]


def options(env: Environment) -> list[str]:
    """Return the lines that collect the options; this runtime keeps environment and directory."""
    return [
        array("options", env.machine.runtime_options),
        call("sif_add_options", *(["gpus"] if env.machine.gpu in ("cuda", "auto") else [])),
        *bind_lines(env),
        *overlay_lines(env, "overlay_mount", IMAGE),
    ]


def command_prefix(env: Environment) -> list[Word]:
    """Return the arguments before the user's command."""
    return [env.runtime, "--quiet", "exec", Expansion('"${options[@]}"'), IMAGE, *SHELL]


def start_probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    return [program, "--quiet", "exec", image, "/bin/true"]
