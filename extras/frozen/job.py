"""The hooks of frozen code: a job runs a copy of the clone and of the external repositories."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import click

from lib import ROOT
from lib.jobs.request import Request
from lib.jobs.start import Start, repositories_of
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.script.command import call, wrapped
from lib.script.errors import LongshipError, write_error
from lib.script.execute import make_directory, read_output
from lib.script.records import content_of

OPTIONS = (
    click.Option(
        ["--live"], is_flag=True, help="Run from the clone, with later changes of the code."
    ),
)


def check(request: Request) -> Request:
    """Freeze the code of a job, or let it run from the clone.

    A shell or an editor on a compute node is for working in the clone; a job that builds something
    writes lock files into it.
    """
    job, env, again = request.job, request.env, request.again
    live = request.asked.of(__name__).get("live")
    live = live or not (again or env.settings.configuration.jobs.freeze)
    if live or job.is_interactive or job.serves == "ssh" or not job.needs_image:
        return request._replace(code=[call("code_live", env.paths.root)])
    return request._replace(code=_freeze_lines(env, again))


def _freeze_lines(env: Environment, again: str) -> list[str]:
    """Return the lines that freeze the code, or take that of a run, or of the job that submits."""
    paths, store = env.paths, env.paths.runs / "code"
    is_copy = paths.root.parts[-2:] == ("code", "longship") and _is_same(
        paths.root.parents[2], paths.runs
    )
    clone = env.settings.environ.get("LONGSHIP_CLONE", "") if is_copy else paths.root
    if not clone:
        raise LongshipError(
            f"{paths.root} is the copy of a run", "change to your clone, and submit the job there"
        )
    run = again or (paths.root.parents[1] if is_copy else "")
    words = [word for pair in repositories_of(env).items() for word in pair]
    worker = (sys.executable or "python3", paths.root / "extras/frozen/freeze_worker.py")
    if run:
        return [wrapped("code_again", store, clone, run)]
    return [wrapped("code_freeze", store, clone, *worker, paths.scratch_dir, *words)]


def environment(env: Environment, run: Path) -> Environment:
    """Unpack the code into the run; return the environment that works with it.

    If the job starts again, its code gets its content again, and what it wrote next to it stays.
    """
    staged = env.settings.environ.get("LONGSHIP_STAGED", "")
    if not staged or not _is_same(f"{staged}/code/longship", ROOT):  # not begun by code_take
        return env
    atexit.register(shutil.rmtree, staged, ignore_errors=True)
    archive = Path(env.settings.environ["LONGSHIP_FROZEN"])
    with suppress(OSError):  # not all file systems have hard links
        (run / archive.name).unlink(missing_ok=True)
        os.link(archive, run / archive.name)
    for each in ("code", "repositories"):
        make_directory(run / each)
    umask = os.umask(0o022)
    tar = ["tar", "--extract", "--touch", "--force-local"]
    done = read_output([*tar, f"--file={staged}/archive", f"--directory={run}"], 3600)
    os.umask(umask)
    if done.code:
        reason, hint = done.text.partition("\n")[0], "see the reason, then submit the job again"
        raise write_error(run, f"cannot unpack {archive} to {run}", hint, reason)
    root = run / "code/longship"
    settings, paths = env.settings._replace(root=root), env.paths._replace(root=root)
    return _with_repositories(env._replace(settings=settings, paths=paths), run)


def _is_same(one: str | Path, other: str | Path) -> bool:
    """Whether two paths are one: a link can lead to either."""
    return os.path.realpath(one) == os.path.realpath(other)


def _with_repositories(env: Environment, run: Path) -> Environment:
    """Let the program inside find the copies of the repositories, and what stays where it is.

    A container mounts a copy over its repository. On the machine itself, LONGSHIP_REPOSITORIES is
    the directory of the copies, and PYTHONPATH comes before the paths of editable installations.
    """
    clone, code = Path(env.settings.environ["LONGSHIP_CLONE"]), run / "code"
    binds = [Bind(str(clone), str(clone))] if clone.is_dir() else []
    for copy in sorted(code.iterdir()):
        top = clone if copy.name == "longship" else env.paths.repositories / copy.name
        is_mounted = top != clone and env.runtime != "host"
        binds += [Bind(str(copy), str(top))] if is_mounted else []
        stays = os.fsdecode(content_of(run / f"repositories/{copy.name}.stays")).split("\0")[:-1]
        for place, there in ((copy / each, top / each) for each in stays):
            is_bound, is_link = is_mounted and not there.is_symlink(), there.is_symlink()
            (place if is_bound else place.parent).mkdir(0o755, parents=True, exist_ok=True)
            if is_bound:
                binds += [Bind(str(there), str(there))] if there.is_dir() else []
            elif not os.path.lexists(place):
                place.symlink_to(os.path.realpath(there) if is_link else there)
    env = env._replace(more_binds=(*binds,))
    return _without_container(env, code) if env.runtime == "host" else env


def _without_container(env: Environment, code: Path) -> Environment:
    """Set the variables of an environment without a container."""
    configuration, repositories = env.settings.configuration, env.paths.repositories
    variables = dict(configuration.environment.set)
    # pip writes the paths of editable repositories into .pth files, setuptools those of packages
    inside = re.compile(re.escape(str(repositories)) + r"/([^'\"\n:]+)")
    site = Path(env.venv or os.devnull).glob("lib/python*/site-packages/*.p*")
    for file in (each for each in site if each.name.endswith((".pth", "_finder.py"))):
        for path in inside.findall(os.fsdecode(content_of(file))):
            path = path if file.suffix == ".pth" else os.path.dirname(path)
            before = variables.get("PYTHONPATH")
            variables["PYTHONPATH"] = f"{before}:{code / path}" if before else str(code / path)
    variables["LONGSHIP_REPOSITORIES"] = str(code)
    changed = configuration._replace(environment=configuration.environment._replace(set=variables))
    return env._replace(settings=env.settings._replace(configuration=changed))


def start(start: Start) -> Start:
    """Record the code, and tell at the end what the job has written next to it."""
    environ, code = start.env.settings.environ, start.run / "code"
    if start.env.paths.root != code / "longship":
        return start
    copies = {each.name for each in code.iterdir()}  # their record is in the archive
    others = {name: top for name, top in start.repositories.items() if name not in copies}
    archive = str(start.run / os.path.basename(environ["LONGSHIP_FROZEN"]))
    clone = environ["LONGSHIP_CLONE"]
    return start._replace(
        repositories=others,
        record={**start.record, "repository": clone, "code": archive},
        step=(*start.step, call("code_enter", clone)),
        at_end=(*start.at_end, "code_end"),
    )
