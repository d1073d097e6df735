"""The Python packages on top of the image: installed, locked, or downloaded for another machine."""

from __future__ import annotations

import sys
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, check_started
from lib.configuration.repositories import RepositoryEntry
from lib.configuration.sites import own_arch
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_name
from lib.runtimes.launch import inside_lines
from lib.runtimes.packages import seen_at
from lib.script.command import array, call, export, facts, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion

# sources whose archives are those of docker
_READABLE = ("docker", "dockerfile", "docker-archive", "docker-daemon")


def data_command(settings: Settings) -> str:
    """Return the command that makes the data; for a training on a site it submits a job."""
    root, machine, stack = settings.root, settings.machine, settings.stack.name
    script = f"stacks/{stack}/preprocess_data.sh"
    job = Path(machine.site_file).with_name(f"preprocess_data_{machine.name}.sbatch")
    if (root / f"stacks/{stack}/run_evaluation.sh").is_file():
        made = ["--online", "bash", script]  # it downloads what others have published
    elif machine.name != "local" and (root / job).is_file():
        return settings.command("python3", "submit.py", job)
    elif stack == "pytorch":
        made = ["python", "preprocess_data.py"]
    else:
        made = ["bash", script, "all"] if (root / script).is_file() else []  # else a shell
    return call("python3", "container_run.py", *settings.typed_options, *made)


def venv_lines(env: Environment, *, force: bool, offline: bool) -> list[str]:
    """Return the lines that create the venv, with ``inside COMMAND...`` defined."""
    settings, paths = env.settings, env.paths
    return [
        facts(
            machine=settings.machine.name,
            overlay_target=seen_at(env.overlay, env.runtime) if env.overlay else "",
        ),
        *requirement_lines(env, offline=offline),
        *above_lines(env, offline=offline),
        wrapped(
            *("lock_run", paths.venv, "venv_install", paths.venv, env.overlay),
            *("force" if force else "", settings.configuration.packages.installer),
            paths.tools / "uv",
        ),
    ]


def above_lines(env: Environment, *, offline: bool) -> list[str]:
    """Return the line that sets which packages a venv has above those of the overlay."""
    file = env.settings.configuration.packages.venv_requirements
    if not (file and env.overlay):
        return []
    if offline:
        raise LongshipError(
            "packages.venv_requirements cannot be installed without a network",
            f"add the lines of {file} to {env.settings.configuration.packages.requirements}, and "
            'set packages.venv_requirements = "" in configuration.toml',
        )
    return [array("requirements_above", ["-r", env.paths.root / file])]


def update_lock_lines(env: Environment) -> list[str]:
    """Return the lines that resolve all packages again, with ``inside COMMAND...`` defined."""
    settings, paths = env.settings, env.paths
    work = paths.cache / f"pinning_{paths.arch}"
    return [
        *requirement_lines(env),
        facts(arch=paths.arch, gpu=settings.machine.gpu),
        wrapped(
            *("lock_run", _lock_file(settings, paths), "lockfile_update", work),
            paths.tools / "uv",
        ),
    ]


def requirement_lines(env: Environment, *, offline: bool = False) -> list[str]:
    """Return the lines that set what is installed, and its lock file."""
    settings, paths = env.settings, env.paths
    stack, packages = settings.stack, settings.configuration.packages
    if not env.packages.wanted:
        raise LongshipError(
            "nothing to install: packages.requirements is empty, and no repository is installed",
            'set packages.requirements = "requirements/environment.txt" in configuration.toml',
        )
    script = "build_overlay.py" if packages.overlay else "set_up.py"
    from_download = settings.command("python3", script, "offline")
    if offline:
        check_started(paths, paths.offline / "pip")
    # above an overlay: above_lines
    files = [packages.requirements, "" if packages.overlay else packages.venv_requirements]
    words = [word for each in files if each for word in ("-r", paths.root / each)]
    return [
        facts(base=env.base, repositories_directory=paths.repositories),
        wrapped(
            *("requirements_begin", paths.root / stack.torch if stack.torch else ""),
            *(paths.offline / "pip" if offline else "", from_download),
            *words,
        ),
        *(_add_line(paths, each) for each in env.packages.installed),
        wrapped(
            *("lockfile_begin", _lock_file(settings, paths)),
            env.source.label if env.image else "host",
        ),
    ]


def _add_line(paths: Paths, repository: RepositoryEntry) -> str:
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


def wheel_download_lines(env: Environment) -> list[str]:
    """Return the lines that download the packages, with options of pip as ``"$@"``."""
    settings, here = env.settings, env.paths
    target = here._replace(arch=settings.machine.arch)
    env = env._replace(paths=target)
    tools = here._replace(arch=own_arch()).tools
    directory = here.offline / "pip"
    return [
        *requirement_lines(env),
        facts(machine=settings.machine.name, arch=target.arch, gpu=settings.machine.gpu),
        export("PIP_CACHE_DIR", here.cache / "pip"),
        export("UV_CACHE_DIR", here.cache / "uv"),
        "",
        "start_image() {",
        *(f"  {line}" if line else "" for line in _start_here(env)),
        "}",
        "",
        call("directory_make", directory),
        wrapped(
            *("lock_run", directory / "download"),
            *("wheelhouse_download", directory, tools / "fetcher"),
            *(sys.executable or "python3", _archive(env), settings.configuration.packages.python),
            Expansion('"$@"'),
        ),
    ]


def _archive(env: Environment) -> str:
    """Return the image archive; "" where there is none, or a SIF, whose packages cannot be read."""
    if env.runtime == "host" or env.source.kind not in _READABLE:
        return ""
    target, source = env.paths, env.source
    if source.kind == "docker-archive":
        return source.file
    return str(target.archives / f"{image_name(source)}_{target.arch}.tar")


def _start_here(env: Environment) -> list[str]:
    """Return the lines that define ``inside COMMAND...`` for the target's image on this machine."""
    try:
        return inside_lines(env._replace(held={"overlay": ""}))
    except LongshipError:  # its binds contain variables that only the target knows
        return [call("false")]
