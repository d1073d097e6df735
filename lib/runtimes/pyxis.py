"""Slurm's plugin Pyxis (AWS): ``srun`` starts enroot's containers, so a launcher runs inside.

It is for jobs only; enroot does everything else (`lib/runtimes/enroot.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lib.configuration.layers import Settings
from lib.runtimes.contract import CONTRACT, unset_lines
from lib.runtimes.launch import Launch
from lib.script.command import assign, call, text_below
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion

# Its list of mounts has no quoting, and its older versions read paths as bash does.
_UNBINDABLE = re.compile(r'[\s,:"$`\\]')


def uses_pyxis(settings: Settings, runtime: str) -> bool:
    """Tell whether Pyxis starts the ranks of a job."""
    return settings.machine.pyxis == "yes" and runtime == "enroot"


def option_lines(settings: Settings, launch: Launch | None) -> list[str]:
    """Return the lines of a job's start that `set_container_options` needs (pyxis.bash).

    Parameters
    ----------
    settings : Settings
        All layers put together.
    launch : Launch or None
        Launch of the ranks; None if another runtime starts them.
    """
    if launch is None:
        return [
            assign("longship_image", ""),
            assign("longship_image_hint", ""),
            call("set_container_options"),
        ]
    binds = launch._replace(overlay="").bind_lines()
    overlay = launch.overlay_lines("bind_unpacked_overlay")
    return [
        assign("longship_image", launch.image),
        assign("longship_image_hint", launch.image_hint),
        *unset_lines(settings.configuration.environment),
        "add_pyxis_binds() {",
        *("  " + line for line in (*binds, *overlay)),
        "}",
        call("set_container_options"),
    ]


def check_binds(launch: Launch) -> None:
    """Stop if Pyxis cannot bind a path; pyxis.bash checks what only the job knows.

    Raises
    ------
    LongshipError
        The hint names the keys to change.
    """
    for bind in (*launch.binds, *launch.site_binds, *launch.patched_files):
        path = bind.source if _UNBINDABLE.search(bind.source) else bind.target
        if _UNBINDABLE.search(path):
            raise LongshipError(
                f'Pyxis cannot bind {path}: it contains a space or one of , : " $ ` \\',
                "rename it, or set another path: [paths], container.binds in configuration.toml",
            )


def launcher_lines(root: Path, contract: str, checks: Sequence[str]) -> list[str]:
    """Return the lines of a launcher that starts inside the container.

    Parameters
    ----------
    root : pathlib.Path
        The repository.
    contract : str
        The POSIX sh text that gives the program its environment.
    checks : sequence of str
        Lines that check the packages.
    """
    start = (
        "/bin/sh",
        "-c",
        Expansion('"$longship_contract"'),
        "longship",
        Expansion('"${command[@]}"'),
    )
    return [
        call("check_inside"),
        *checks,
        call("take_rank"),
        call("take_command", root / "lib/runtimes/inside/interactive.bash", Expansion('"$@"')),
        text_below("longship_contract", contract, CONTRACT),
        "",
        call("hand_over", *start),
    ]
