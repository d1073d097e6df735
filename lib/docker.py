"""The runtimes docker and podman: images are tags in the runtime's own store.

They start from an empty environment and an empty file system, so what Apptainer keeps by itself
(the environment, home, /tmp, the working folder, the user) is asked for here.
"""

from __future__ import annotations

from lib.command import array, assign, call
from lib.launch import IMAGE, Launch
from lib.quoting import Expansion, Word

# As under Apptainer: the host's network and shared memory; a real init passes signals on, which a
# program as process 1 would not see.
_ALWAYS = ("--rm", "--interactive", "--init", "--network=host", "--pull=never")


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
        call("check_tag", launch.runtime, IMAGE, launch.arch, launch.image_hint),
        array("options", (*_ALWAYS, *launch.options)),
        *launch.bind_lines(),
        call("add_shared_memory", launch.runtime),
        call("add_user_and_home", launch.runtime),
        *([call("add_container_gpus", launch.runtime)] if launch.gpu != "cpu" else []),
        call("add_environment"),
        call("add_working_folder"),
    ]


def words(launch: Launch) -> list[Word]:
    """Return the words in front of the user's command; the image's own entry point is skipped."""
    return [
        *(launch.runtime, "run", Expansion('"${options[@]}"'), "--entrypoint=/bin/sh"),
        *(IMAGE, "-c", Expansion('"${decode-}$contract"'), "longship"),
    ]


def probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds where this runtime has this image; it asks the daemon."""
    return [program, "image", "inspect", image]
