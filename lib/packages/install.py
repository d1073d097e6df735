"""The Python packages on top of the image."""

from __future__ import annotations

from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.repositories import Repository
from lib.runtimes.environment import Environment
from lib.runtimes.packages import installed_repositories, packages_wanted, seen_at
from lib.script.command import assign, call, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Word


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


def venv_lines(env: Environment, *, force: bool, offline: bool) -> list[str]:
    """Return the lines that create the venv, with ``inside COMMAND...`` defined."""
    settings, paths = env.settings, env.paths
    return [
        assign("machine", settings.machine.name),
        assign("overlay_target", seen_at(env.overlay, env.runtime) if env.overlay else ""),
        *requirement_lines(env, offline=offline),
        wrapped(
            *("lock_run", paths.venv, "venv_install", paths.venv, env.overlay),
            *("force" if force else "", *installer(settings, paths)),
        ),
    ]


def update_lock_lines(env: Environment) -> list[str]:
    """Return the lines that resolve all packages again, with ``inside COMMAND...`` defined."""
    settings, paths = env.settings, env.paths
    work = paths.cache / f"pinning_{paths.arch}"
    return [
        *requirement_lines(env),
        *target_lines(settings, paths),
        wrapped(
            *("lock_run", _lock_file(settings, paths), "lockfile_update", work),
            paths.tools / "uv",
        ),
    ]


def requirement_lines(env: Environment, *, offline: bool = False) -> list[str]:
    """Return the lines that set what is installed, and its lock file."""
    settings, paths = env.settings, env.paths
    stack, packages = settings.stack, settings.configuration.packages
    if not packages_wanted(settings):
        raise LongshipError(
            "nothing to install: packages.requirements is empty, and no repository is installed",
            'set packages.requirements = "requirements/environment.txt" in configuration.toml',
        )
    script = "build_overlay.py" if packages.overlay else "set_up.py"
    return [
        assign("base", env.base),
        assign("repositories_directory", paths.repositories),
        wrapped(
            *("requirements_begin", paths.root / stack.torch if stack.torch else ""),
            *(paths.offline / "pip" if offline else "", f"python3 {script} offline"),
            *(["-r", paths.root / packages.requirements] if packages.requirements else []),
        ),
        *(_add_line(paths, each) for each in installed_repositories(settings)),
        wrapped(
            *("lockfile_begin", _lock_file(settings, paths)),
            env.source.address if env.image else "host",
        ),
    ]


def _add_line(paths: Paths, repository: Repository) -> str:
    """Return the line that adds a repository to what is installed."""
    name, install = repository.name, repository.install
    extras = f"[{','.join(repository.extras)}]" if repository.extras else ""
    words = {
        "requirements": ["-r", paths.repositories / name / repository.requirements],
        "editable": ["-e", f"./{name}{extras}"],
        "plain": [f"./{name}{extras}"],
        "none": [],
    }[install]
    script = paths.root / repository.script if repository.script else ""
    return call("requirements_add", name, script, *words)


def _lock_file(settings: Settings, paths: Paths) -> Path:
    return paths.root / "requirements" / f"{settings.stack.name}_{paths.arch}.lock"


def target_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that set the target of the resolution."""
    return [assign("arch", paths.arch), assign("gpu", settings.machine.gpu)]


def installer(settings: Settings, paths: Paths) -> tuple[Word, ...]:
    """Return the installer, and where uv is kept unless the image has it."""
    return settings.configuration.packages.installer, paths.tools / "uv"
