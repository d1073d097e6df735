"""Building, listing and deleting overlays: the lines of `build_overlay.py`."""

from __future__ import annotations

from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, expand, make_lines, pinned
from lib.packages import set_up
from lib.packages.install import data_command, requirement_lines
from lib.repositories.repositories import repository_lines
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.runtimes.image import active_image
from lib.runtimes.launch import inside_lines
from lib.runtimes.packages import MOUNTED_AT, Packages
from lib.runtimes.runtime import answer_lines
from lib.script.command import array, call, exports, facts, wrapped
from lib.script.errors import LongshipError
from lib.script.hooks import hooks
from lib.script.quoting import Expansion

_WORK = Expansion('"$overlay_work"')
_TREE = Expansion(f'"$overlay_work"/root{MOUNTED_AT}')
# variables of the installation into an overlay
_INSTALL = {
    "UV_COMPILE_BYTECODE": "0",  # compiled later, by overlay_freeze
    "PIP_NO_COMPILE": "1",
    "UV_NO_INSTALLER_METADATA": "1",  # it tells when a wheel was seen
    "PYTHONHASHSEED": "0",  # before Python 3.11 compiled files depend on it
    # these would give them other names
    "PYTHONOPTIMIZE": "",
    "PYTHONPYCACHEPREFIX": "",
}
_HOOKS = ("BEFORE_COMPILE", "AFTER_COMPILE", "AFTER_PACK")


def overlay_link(packages: Packages) -> Path:
    """Return the path of the overlay for the current requirements."""
    link = packages.overlay
    if link is None:
        raise LongshipError(
            "no overlay is configured: packages.overlay is empty",
            'set overlay = "myenv" in [packages] of configuration.toml',
        )
    return link


def overlay_build_lines(
    env: Environment, *, offline: bool = False, force: bool = False, command_line: str
) -> list[str]:
    """Return the lines that build the overlay; ``offline``, from downloaded packages."""
    settings, paths = env.settings, env.paths
    link, packages = overlay_link(env.packages), settings.configuration.packages
    action = "update" if offline else "install"
    job = Path(settings.machine.site_file).with_name("build_overlay.sbatch")
    submit = call("python3", "submit.py", job)
    binds = [] if env.runtime == "host" else [Bind(_TREE, MOUNTED_AT)]
    if binds and packages.work_dir:
        binds.append(Bind(_WORK, _WORK))
    env = env._replace(purpose="set_up", held={"overlay": ""}, more_binds=tuple(binds))
    shared = (link.parent, *(link.parent / each for each in ("versions", "unpacked")))
    return [
        facts(
            machine=settings.machine.name,
            arch=paths.arch,
            gpu=settings.machine.gpu,
            runtime=env.runtime,
            overlay_target=MOUNTED_AT,
            longship_library=paths.root / "lib",
        ),
        call("cd", "--", paths.root),
        call("on_interrupt", command_line),
        *make_lines(paths, *shared),
        call("pins_make", link.parent / "pins"),
        *answer_lines(env),
        call("overlay_check_arch", submit if (settings.root / job).is_file() else ""),
        exports(**_INSTALL),
        *repository_lines(settings, paths, action, paths.offline / "repos" if offline else None),
        "",
        call("lock_hold", paths.overlays),
        wrapped(
            *("overlay_begin", link, _works(settings, paths), _image_record(env)),
            *(
                packages.compression,
                str(packages.processors),
                settings.configuration.packages.memory,
            ),
        ),
        *_hook_lines(),
        *inside_lines(env),
        *requirement_lines(env, offline=offline),
        "",
        call("overlay_build", "force" if force else "", packages.installer, paths.tools / "uv"),
        call("next_step", _next_step(env.packages, offline)),
    ]


def _hook_lines() -> list[str]:
    """Return the lines that name the functions of extras."""
    named = {each: hooks(each, "overlay").values() for each in _HOOKS}
    return [array(f"overlay_{each.lower()}", words) for each, words in named.items() if words]


def _works(settings: Settings, paths: Paths) -> Path:
    """Return the build directory of overlays, without the user ID at its end.

    Each directory of overlays has its own, as it has its own lock.
    """
    import hashlib

    name = hashlib.sha256(bytes(paths.overlays)).hexdigest()[:12]
    chosen = settings.configuration.packages.work_dir
    works = expand("packages.work_dir", chosen, settings) if chosen else paths.cache / "overlays"
    return Path(works, f"longship-{name}")


def _image_record(env: Environment) -> str:
    """Return the record of the active image; "" if there is none."""
    if env.runtime == "host":
        return ""
    return f"{pinned(active_image(env.runtime, env.source, env.paths))}.json"


def _next_step(packages: Packages, offline: bool) -> str:
    """Return the next command: for the venv above the overlay, if there is one."""
    if len(packages.steps) == 1:
        return data_command(packages.settings)
    mode = "offline" if offline else "install"
    return packages.settings.command("python3", "set_up.py", mode)


def overlay_download_lines(env: Environment, command_line: str) -> list[str]:
    """Return the lines that download the overlay's packages for a machine without network."""
    overlay_link(env.packages)
    return set_up.download_lines(env, command_line, overlay=True)


def overlay_prune_lines(settings: Settings, paths: Paths, *, asked: bool) -> list[str]:
    """Return the lines that delete unused overlays; `asked` if the user has confirmed it."""
    link = overlay_link(Packages(settings, paths))
    return [
        call("cd", "--", paths.root),
        *make_lines(paths, link.parent),
        wrapped(
            *("lock_run", paths.overlays, "overlay_prune", link),
            *(_works(settings, paths), "yes" if asked else ""),
        ),
    ]
