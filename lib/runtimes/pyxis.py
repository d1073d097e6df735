"""The runtime Pyxis, a plugin of Slurm (AWS): ``srun`` starts enroot's containers.

A launcher runs inside the container, so options of ``srun`` contain what the launcher gives other
runtimes. Images are enroot's. CSCS' Container Engine is a Pyxis that reads most of these options
from a file, an environment definition file (EDF).
"""

from __future__ import annotations

import json
import re

from lib.runtimes import enroot
from lib.runtimes.contract import CONTRACT, unset_lines
from lib.runtimes.enroot import build_probe, start_probe
from lib.runtimes.environment import Environment, bind_lines, command_line, overlay_lines
from lib.runtimes.host import command_prefix
from lib.script.command import call, text_below
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion

__all__ = ["build_probe", "command_prefix", "start_probe"]

# Its list of mounts has no quoting, and its older versions read paths as bash does.
_UNBINDABLE = re.compile(r'[\s,:"$`\\]')


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, if Pyxis can bind all configured paths.

    pyxis.bash checks the binds that only the job knows.
    """
    for bind in (*env.binds, *env.site_binds, *env.patched_files):
        path = bind.source if _UNBINDABLE.search(bind.source) else bind.target
        if _UNBINDABLE.search(path):
            raise LongshipError(
                f'Pyxis cannot bind {path}: it contains a space or one of , : " $ ` \\',
                "rename it, or set another path: [paths], container.binds in configuration.toml",
            )
    return enroot.check(env)


def options(env: Environment) -> list[str]:
    """Return the lines of a job's start that `set_container_options` needs (pyxis.bash).

    On a machine with Pyxis a job script calls that function whatever the runtime is.
    """
    if env.machine.pyxis == "no":
        return []
    if not env.in_pyxis:
        return [call("pyxis_begin_options", "", "")]
    mount_overlay, edf = "overlay_bind_unpacked", []
    if env.machine.pyxis == "edf":
        annotations = (f"{k} = {json.dumps(v)}" for k, v in env.machine.annotations.items())
        mount_overlay, edf = "pyxis_add_squashfs", [env.paths.runs, *annotations]
    return [
        *unset_lines(env.settings.configuration.environment),
        'bind_format() { pyxis_add_bind "$@"; }',
        "pyxis_add_binds() {",
        *("  " + line for line in bind_lines(env)),
        *("  " + line for line in overlay_lines(env, mount_overlay)),
        "}",
        call("pyxis_begin_options", env.image, env.image_hint, *edf),
    ]


def launcher_lines(env: Environment, script: str) -> list[str]:
    """Return the lines of a launcher that starts inside the container, with the contract's text."""
    return [
        call("pyxis_check_inside"),
        *([call("venv_check", env.venv, env.overlay or env.image)] if env.venv else []),
        call("rank_export"),
        *([call("usage_start", env.runtime)] if env.is_measured else []),
        command_line(env),
        text_below("longship_contract", script, CONTRACT),
        "",
        call("command_exec", *command_prefix(env), Expansion('"${command[@]}"')),
    ]
