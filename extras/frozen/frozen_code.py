"""Frozen code of a job: what makes it, where it is, and how the program inside finds it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from lib.configuration.paths import Paths
from lib.configuration.schema import entry_name
from lib.jobs.start import repositories_of
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.script.command import call, export, wrapped
from lib.script.execute import make_directory


def clone_of(environ: Mapping[str, str], paths: Paths) -> Path:
    """Return the clone that a job was submitted from; frozen code is a copy of it."""
    return Path(environ.get("LONGSHIP_CLONE") or paths.root)


def frozen_repositories(environ: Mapping[str, str], paths: Paths) -> dict[str, Path]:
    """Return the path of the record, without suffix, of each frozen repository by its name."""
    frozen = environ.get("LONGSHIP_FROZEN", "").split()
    return {each.rsplit("-", 2)[0]: paths.root.parent / each for each in frozen}


def freeze_lines(env: Environment, run: str = "") -> list[str]:
    """Return the lines that freeze the code of a job, or find that of a run again."""
    paths, store = env.paths, env.paths.runs / "code"
    is_frozen = paths.root.parent == store
    if is_frozen and env.settings.environ.get("LONGSHIP_CLONE") and not run:  # a job submits it
        return [call("print_messages", "code", f"frozen: the code of this job, {paths.root}")]
    found = {**repositories_of(env), **frozen_repositories(env.settings.environ, paths)}
    action = ("restore", store, run) if run else ("freeze", store)
    # this Python is new enough
    worker = (sys.executable or "python3", paths.root / "extras/frozen/freeze_worker.py", *action)
    return [
        export("LONGSHIP_CLONE", paths.root),
        wrapped("code_freeze", *worker, *(word for pair in found.items() for word in pair)),
    ]


def with_frozen_code(env: Environment, run: Path) -> Environment:
    """Let the program inside find the frozen code of the external repositories in their place.

    A container mounts it there. On the machine itself, LONGSHIP_REPOSITORIES is a directory of
    links in the run, and PYTHONPATH comes before the paths of editable installations.
    """
    paths, environ = env.paths, env.settings.environ
    clone = clone_of(environ, paths)
    frozen = [each.rsplit("-", 2) for each in environ.get("LONGSHIP_FROZEN", "").split()[1:]]
    copies = {name: paths.root.parent / f"{name}-{content}" for name, content, _ in frozen}
    if clone == paths.root:
        return env
    if env.runtime != "host":
        own = [Bind(str(clone), str(clone))] if clone.is_dir() else []
        over = [Bind(str(copy), str(paths.repositories / name)) for name, copy in copies.items()]
        return env._replace(more_binds=(*own, *over))
    if not copies:
        return env
    links = run / "code"
    make_directory(links)
    for each in env.settings.configuration.repositories:
        name, link = entry_name(each), links / entry_name(each)
        link.unlink(missing_ok=True)  # of a requeued job
        link.symlink_to(copies.get(name, paths.repositories / name))
    configuration = env.settings.configuration
    variables = dict(configuration.environment.set)
    before = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    imported = _import_paths(env.venv, paths.repositories, links)
    variables["LONGSHIP_REPOSITORIES"] = str(links)
    variables["PYTHONPATH"] = ":".join([*before, *imported])
    changed = configuration._replace(environment=configuration.environment._replace(set=variables))
    return env._replace(settings=env.settings._replace(configuration=changed))


def _import_paths(venv: str, repositories: Path, links: Path) -> list[str]:
    """Return where a venv imports editable repositories from, in the directory of links.

    pip writes their paths into .pth files, and setuptools those of packages into a finder.
    """
    found = {}
    inside = re.compile(re.escape(str(repositories)) + r"/([^'\"\n:]+)")
    for site in Path(venv).glob("lib/python*/site-packages") if venv else ():
        for file in [*site.glob("*.pth"), *site.glob("__editable__*_finder.py")]:
            for path in inside.findall(file.read_text(encoding="utf-8", errors="surrogateescape")):
                # a finder maps a package to its own directory
                place = Path(path) if file.suffix == ".pth" else Path(path).parent
                found[str(links / place)] = None
    return list(found)
