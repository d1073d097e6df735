"""The runtimes apptainer and singularity (SingularityCE): images are SIF files."""

from __future__ import annotations

from lib.command import array, assign, call
from lib.launch import IMAGE, Launch
from lib.quoting import Expansion, Word


def prepare(launch: Launch) -> list[str]:
    """Return the lines that check the image and collect the runtime's options.

    Parameters
    ----------
    launch : Launch
        What to start, and where.

    Returns
    -------
    list of str
        Lines of bash; they fill the array ``options``.
    """
    return [
        call("check_program", launch.runtime),
        assign("image", launch.image),
        call("check_sif", IMAGE, launch.arch, launch.image_hint),
        array("options", launch.options),
        call("add_home"),
        *launch.bind_lines(),
        *([call("add_nvidia_gpus")] if launch.gpu in ("cuda", "auto") else []),
        *([call("add_amd_gpus")] if launch.gpu == "auto" else []),
    ]


def words(launch: Launch) -> list[Word]:
    """Return the words in front of the user's command.

    Environment and working folder need no options: this runtime keeps both by itself.
    """
    return [
        *(launch.runtime, "--quiet", "exec", Expansion('"${options[@]}"'), IMAGE),
        *("/bin/sh", "-c", Expansion('"${decode-}$contract"'), "longship"),
    ]


def probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds where this runtime can start this image."""
    return [program, "--quiet", "exec", image, "/bin/true"]
