"""The runtime Pyxis, a plugin of Slurm (AWS): ``srun`` starts enroot's containers.

A launcher runs inside the container, so options of ``srun`` contain what the launcher gives other
runtimes. Images are enroot's. CSCS' Container Engine is a Pyxis that reads most of these options
from a file, an environment definition file (EDF).
"""

from __future__ import annotations

import re

from lib.runtimes.contract import caller_lines, forget_lines
from lib.runtimes.environment import Environment, bind_lines, overlay_lines
from lib.runtimes.host import command_prefix
from lib.runtimes.runtime import runtime_of
from lib.script.command import call
from lib.script.errors import LongshipError

__all__ = ["command_prefix"]

# a site's fact chooses it, not the configuration
ENDINGS = {"pyxis": None}

# Its list of mounts knows no quotes, and older versions read the paths as bash.
_UNBINDABLE = re.compile(r'[\s,:"$`\\]')


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, if Pyxis can bind all configured paths.

    pyxis.bash checks the binds that only the job knows.
    """
    binds = (*env.binds, *env.site_binds, *env.patched_files)
    for path in (path for each in binds for path in (each.source, each.target)):
        if _UNBINDABLE.search(path):
            raise LongshipError(
                f'Pyxis cannot bind {path}: it contains a space or one of , : " $ ` \\',
                "rename it, or set another path: [paths], container.binds in configuration.toml",
            )
    return runtime_of(env.runtime).check(env)


def check_inside() -> str:
    """Return the line that stops a launcher outside the container."""
    return call("pyxis_check_inside")


def options(env: Environment) -> list[str]:
    """Return the lines of a job's start that `set_container_options` needs (pyxis.bash).

    On a machine with Pyxis a job script calls that function whatever the runtime is.
    """
    if not env.in_pyxis:
        return [call("pyxis_begin_options", "", "")]
    mount_overlay, edf = "overlay_bind_unpacked", []
    if env.machine.pyxis == "edf":
        import json  # 2 ms that no other launch needs

        annotations = (f"{k} = {json.dumps(v)}" for k, v in env.machine.annotations.items())
        mount_overlay, edf = "pyxis_add_squashfs", [env.paths.runs, *annotations]
    return [
        *forget_lines(env.settings.configuration.environment),
        'bind_format() { pyxis_add_bind "$@"; }',
        "pyxis_add_binds() {",
        *("  " + line for line in caller_lines(env.settings, env.training)),
        *("  " + line for line in bind_lines(env)),
        *("  " + line for line in overlay_lines(env, mount_overlay)),
        f"  {call('bind_add', '/tmp')}",
        "}",
        call("pyxis_begin_options", env.image, env.image_hint, *edf),
    ]
