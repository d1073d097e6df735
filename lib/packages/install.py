"""The Python packages on top of the image."""

from __future__ import annotations

from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import Repository, configured_repositories
from lib.runtimes.environment import Environment
from lib.runtimes.packages import overlay_to_start, packages_wanted, seen_at
from lib.script.command import array, assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word

_VENV = Expansion('"$venv"')


def data_command(settings: Settings) -> str:
    """Return the command that makes the training data; on a site it submits a job."""
    root, machine, stack = settings.root, settings.machine, settings.stack.name
    job = Path(machine.site_file).with_name(f"preprocess_data_{machine.name}.sbatch")
    if machine.name != "local" and (root / job).is_file():
        return call("python3", "submit.py", job)
    if stack == "pytorch":
        return "python3 container_run.py python preprocess_data.py"
    script = f"stacks/{stack}/preprocess_data.sh"
    made = ("bash", script, "all") if (root / script).is_file() else ()  # else a shell
    return call("python3", "container_run.py", *made)


def install_lines(
    settings: Settings, paths: Paths, runtime: str, *, offline: bool = False
) -> list[str]:
    """Return the lines that create the venv, with ``inside COMMAND...`` defined.

    Parameters
    ----------
    settings : Settings
        All layers merged.
    paths : Paths
        The derived paths.
    runtime : str
        From `lib.runtimes.choice.choose_runtime`.
    offline : bool
        Install from downloaded packages, without network.

    Returns
    -------
    list of str
        Lines of bash.

    Raises
    ------
    LongshipError
        If there is nothing to install.
    """
    overlay = overlay_to_start(settings, paths)
    return [
        *wanted_lines(settings, paths, runtime),
        assign("venv", paths.venv),
        assign("overlay", overlay),
        assign("seen_at", seen_at(overlay, runtime) if overlay else ""),
        *installer_lines(settings, paths, offline=offline),
        call("locked", _VENV, "install_venv", *installer_functions(offline=offline)),
    ]


def installer_lines(settings: Settings, paths: Paths, *, offline: bool) -> list[str]:
    """Return the lines that set the installer and its sources."""
    return [
        assign("installer", settings.configuration.packages.installer),
        assign("uv", paths.tools / "uv"),
        assign("wheelhouse", paths.offline / "pip" if offline else ""),
        *([assign("machine", settings.machine.name)] if offline else []),
    ]


def installer_functions(*, offline: bool) -> tuple[str, ...]:
    """Name the functions that choose the lock file, fetch uv, and verify packages."""
    if offline:
        return ("choose_download", "unpack_uv", "verify_wheelhouse")
    return ("choose_lock", "fetch_uv")


def renew_lock_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that resolve all packages again, with ``inside COMMAND...`` defined.

    Parameters and errors are those of `install_lines`.
    """
    return [
        *wanted_lines(settings, paths, runtime),
        *target_lines(settings, paths),
        assign("uv", paths.tools / "uv"),
        assign("unfinished", paths.cache / f"pinning_{paths.arch}"),
        call("locked", Expansion('"$lock"'), "renew_lock"),
    ]


def wanted_lines(settings: Settings, paths: Paths, runtime: str) -> list[str]:
    """Return the lines that set the requirements, as variables for the functions.

    Parameters and errors are those of `install_lines`.
    """
    stack = settings.stack
    if not packages_wanted(settings):
        raise LongshipError(
            "nothing to install: packages.requirements is empty, and no repository is installed",
            'set packages.requirements = "requirements/environment.txt" in configuration.toml',
        )
    env = Environment(settings, paths, runtime, "set_up")
    script = "build_overlay.py" if settings.configuration.packages.overlay else "set_up.py"
    return [
        assign("offline_mode", f"python3 {script} offline"),
        assign("base", env.base),
        assign("torch", str(paths.root / stack.torch) if stack.torch else ""),
        assign("image_address", env.source.address if env.image else "host"),
        assign("lock", paths.root / "requirements" / f"{stack.name}_{paths.arch}.lock"),
        *_requirement_lines(settings, paths),
    ]


def target_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that set the target of the resolution."""
    return [assign("arch", paths.arch), assign("gpu", settings.machine.gpu)]


def _requirement_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that set the requirements, and how each repository is installed."""
    requirements: list[Word] = []
    if settings.configuration.packages.requirements:
        requirements += ["-r", paths.root / settings.configuration.packages.requirements]
    sources: list[Word] = []
    scripts: list[Word] = []
    for each in _installed(settings):
        extras = f"[{','.join(each.extras)}]" if each.extras else ""
        if each.install == "requirements":
            requirements += ["-r", paths.repositories / each.name / each.requirements]
        elif each.install != "none":
            sources += ["-e"] * (each.install == "editable") + [f"./{each.name}{extras}"]
        if each.script:
            scripts += [each.name, paths.root / each.script]
    return [
        array("requirements", requirements),
        assign("repositories_folder", paths.repositories),
        array("repository_names", [each.name for each in _installed(settings)]),
        array("sources", sources),
        array("scripts", scripts),
    ]


def _installed(settings: Settings) -> list[Repository]:
    """Return the repositories that are installed or have an install script."""
    wanted = configured_repositories(settings)
    return [each for each in wanted if each.install != "none" or each.script]
