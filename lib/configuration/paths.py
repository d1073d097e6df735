"""Every path that is derived from the configuration, in one object."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lib.configuration.layers import Settings
from lib.script.command import call, wrapped
from lib.script.errors import LongshipError
from lib.script.trust import check_closed, check_trusted, is_reachable, refuse_default_acl

# ~, $NAME, ${NAME}, {field}: all in one pass, so that no value is expanded again
_PART = re.compile(r"^~(?=/|$)|\$(\w+)|\$\{(\w+)\}|\{(\w*)\}")

# What a path that is not relative begins with.
ROOTED = ("/", "~", "$", "{")

# Placeholders of paths.
FIELDS = {
    "user": "your login name",
    "account": "`project.account`",
    "project": "`project.name`",
    "machine": "the machine's name",
    "arch": "architecture of the machine's compute nodes, `amd64` or `arm64`",
}


class Paths(NamedTuple):
    """All paths on one machine, for one user and one stack."""

    root: Path  # the repository
    project_dir: Path
    scratch_dir: Path
    checkpoint_dir: Path
    shared_dir: Path  # what one member builds for a group; scratch_dir by default
    shared_owner: str  # login name of that member; "" for the user
    stack: str
    arch: str  # amd64 or arm64; part of every name that depends on it

    @property
    def roots(self) -> tuple[Path, ...]:
        """The user's directories, which contain all others but what is in shared_dir."""
        inside = self.scratch_dir in self.checkpoint_dir.parents
        more = () if inside else (self.checkpoint_dir,)
        return (self.project_dir, self.scratch_dir, *more)

    @property
    def is_shared(self) -> bool:
        """Whether one member builds images and overlays for a group."""
        return self.shared_dir != self.scratch_dir

    @property
    def trees(self) -> tuple[Path, ...]:
        """The directories that contain all others."""
        return (*self.roots, self.shared_dir) if self.is_shared else self.roots

    @property
    def containers(self) -> Path:
        """Active images: links into its directory `versions`."""
        return self.shared_dir / "containers"

    @property
    def archives(self) -> Path:
        """Image archives for an air-gapped machine."""
        return self.offline / "containers"

    @property
    def repositories(self) -> Path:
        """External repositories, in which the user can work."""
        return self.project_dir / "repos"

    @property
    def offline(self) -> Path:
        """Everything for an air-gapped machine: containers, pip, repos, assets."""
        return self.shared_dir / "offline"

    @property
    def assets(self) -> Path:
        """Models and datasets for an air-gapped machine."""
        return self.offline / "assets"

    @property
    def hub(self) -> Path:
        """Cache of models and datasets, in its directory `hub` (`lib/runtimes/contract.py`)."""
        return self.shared_dir / "cache/huggingface"

    @property
    def venv(self) -> Path:
        """Active venv: a link into `venvs`, which one rename replaces."""
        return self.scratch_dir / f"venv_{self.stack}_{self.arch}"

    @property
    def venvs(self) -> Path:
        """The venvs; each stays at the path where it was built."""
        return self.scratch_dir / "venvs"

    @property
    def overlays(self) -> Path:
        """Active overlays: links into its directory `versions`, named after their requirements."""
        return self.shared_dir / "overlays"

    @property
    def tools(self) -> Path:
        """Programs that set up the environment: uv."""
        return self.scratch_dir / f"tools_{self.arch}"

    @property
    def runs(self) -> Path:
        """Run directories, one per job: inputs, launcher, exit code."""
        return self.scratch_dir / "runs"

    @property
    def cache(self) -> Path:
        """Caches of all programs that would otherwise fill the home directory."""
        return self.scratch_dir / "cache"


def make_lines(paths: Paths, *shared: Path) -> list[str]:
    """Return the lines that make the user's directories, and those that a group can share."""
    roots = (paths.scratch_dir, *paths.roots, paths.checkpoint_dir)
    lines = [wrapped("roots_make", *dict.fromkeys(roots))]
    if shared and paths.is_shared:
        refuse_default_acl(paths.shared_dir)
        names = [each.relative_to(paths.shared_dir) for each in shared]
        lines.append(wrapped("shared_make", paths.shared_dir, *names))
    elif shared:
        lines.append(wrapped("directory_make", *shared))
    return lines


def open_lines(paths: Paths, directory: Path) -> list[str]:
    """Return the line that lets a group read what was written to a directory of shared_dir."""
    return [call("shared_open", directory)] if paths.is_shared else []


def check_roots(paths: Paths) -> None:
    """Stop if others own or can change the user's directories, as `roots_make` does in bash."""
    written = (paths.cache, paths.venvs, paths.tools)
    for each in (*paths.roots, paths.runs, *written):
        check_trusted(each, each)
    if not is_reachable(paths.scratch_dir):
        return
    for each in written:
        check_closed(each)


def check_started(paths: Paths, path: Path) -> None:
    """Stop if others than who builds there can change what starts: a file, or a directory's files.

    What is in a directory of the user's that nobody else can enter is closed, whatever the umask.
    """
    is_shared = paths.is_shared and is_below(str(path), str(paths.shared_dir))
    top, owner = paths.scratch_dir, ""
    if is_shared:
        top, owner = paths.shared_dir, paths.shared_owner
    if not is_below(str(path), str(top)):
        return
    if is_shared or is_reachable(path.parent):
        for each in (path, *(path.iterdir() if os.path.isdir(path) else ())):
            check_trusted(each, top, owner)


def pinned(path: Path) -> Path:
    """Follow the link to the active file, so that a later swap does not affect a launch.

    Only this link is followed: the target of a link in the file system itself (`/scratch` on LUMI)
    may not be visible inside the container.
    """
    return path.parent / os.readlink(path) if os.path.islink(path) else path


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is a directory, or is in it."""
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def derive_paths(settings: Settings) -> Paths:
    """Expand the configured roots and derive the rest."""
    roots = settings.configuration.paths
    scratch_dir = Path(expand("paths.scratch_dir", roots.scratch_dir, settings))
    checkpoint_dir = scratch_dir / "checkpoints"
    if roots.checkpoint_dir:
        checkpoint_dir = Path(expand("paths.checkpoint_dir", roots.checkpoint_dir, settings))
    shared_dir = scratch_dir
    if roots.shared_dir:
        shared_dir = Path(expand("paths.shared_dir", roots.shared_dir, settings))
    return Paths(
        root=settings.root,
        project_dir=Path(expand("paths.project_dir", roots.project_dir, settings)),
        scratch_dir=scratch_dir,
        checkpoint_dir=checkpoint_dir,
        shared_dir=shared_dir,
        shared_owner=roots.shared_owner,
        stack=settings.stack.name,
        arch=settings.machine.arch,
    )


def step_after_download(settings: Settings, here: Paths, directory: Path, command: str) -> str:
    """Return a command of the target machine, after the copy of a directory to it."""
    relative = directory.relative_to(here.shared_dir)
    try:
        target = derive_paths(settings).shared_dir / relative
    except LongshipError:  # the target's paths contain variables that only the target knows
        target = Path("SCRATCH_DIR", relative)
    if target == directory:
        return command
    name = settings.machine.name
    make = call("ssh", name, f"umask 077 && {call('mkdir', '-p', target.parent)}")  # rsync does not
    copy = call("rsync", "-a", f"{directory}/", f"{name}:{target}/")
    return f"{make} && {copy}; then, on {name}: {command}"


def expand(key: str, text: str, settings: Settings, more: Mapping[str, str] | None = None) -> str:
    """Expand a path of the configuration to an absolute one; no shell evaluates it.

    A leading ``~``, ``$NAME``, ``${NAME}``, the `FIELDS` and those in `more` are replaced. The
    dotted key is for messages.
    """
    origin = settings.origins.get(key) or settings.origins.get(key.partition(".")[0], "")
    project, machine = settings.configuration.project, settings.machine
    user = settings.environ.get("USER") or settings.environ.get("LOGNAME") or login_name()
    values = (user, project.account, project.name, machine.name, machine.arch)
    fields = {**dict(zip(FIELDS, values)), **(more or {})}
    settable = {
        "user": "the variable USER",
        "account": "project.account in configuration.toml",
        "project": "project.name in configuration.toml",
    }

    def part(match: re.Match[str]) -> str:
        if match[0] == "~":
            home = settings.environ.get("HOME") or os.path.expanduser("~")
            if home.startswith("/"):
                return home
            raise LongshipError(f'HOME is not an absolute path: "{home}"', "run: unset HOME")
        field, variable = match[3], match[1] or match[2]
        value = settings.environ.get(variable) if variable else fields.get(field)
        if value:
            return value
        what = f"{match[0]} {'is not set' if field in fields else 'is unknown'}"
        hint = ", ".join(f"{{{each}}}" for each in fields)
        if variable:
            what = f"the variable {match[0]} is not set"
            hint = f"set the variable, or set {key} in configuration.local.toml"
        elif field in settable:
            hint = f"set {settable[field]}"
        raise LongshipError(f'{key} in {origin} is "{text}", and {what}', hint)

    path = _PART.sub(part, text)
    if not path.startswith("/"):
        raise LongshipError(
            f'{key} in {origin} is "{text}", which is not an absolute path',
            "write the whole path" if text[:1] == "~" else f'start it with / or ~: "~/{text}"',
        )
    if "\n" in path:
        raise LongshipError(f"{key} in {origin} contains a newline: {path!r}", "remove it")
    return os.path.normpath(path)


def login_name() -> str:
    """Return the name of the user; "" if it has none."""
    import pwd  # only if the environment does not name the user: cron, containers

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container that was started with a user ID
        return ""
