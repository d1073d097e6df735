"""An external repository on this machine: as configured, as git knows it, and in an update."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from lib.repositories.git import OWN_AUTHOR, OWN_COMMITTER, Git, join_names, split_names
from lib.script.errors import LongshipError, check_owner

_BUSY = {"rebase-merge": "rebase", "rebase-apply": "rebase", "MERGE_HEAD": "merge"}
_BUSY |= {"CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "BISECT_LOG": "bisect"}
_BUSY |= {"sequencer": "cherry-pick or revert"}  # of several commits, some of them to come

BRING_BUNDLES = (
    "on a machine with network access, run: python3 set_up.py download; then copy the bundles here"
)


@dataclass(frozen=True)
class Configured:
    """One of the configured repositories, and where it and what belongs to it are."""

    repositories: Path  # the directory of all of them
    saved: Path  # the user's changes before each update
    bundles: Path | None  # what was carried here; None to use the servers
    name: str
    url: str
    ref: str  # "" for the default branch
    upstream: str  # the original of a fork, or ""
    patches: Path

    @property
    def directory(self) -> Path:
        """Return its directory."""
        return self.repositories / self.name

    def exists(self) -> bool:
        """Tell whether there is anything in its place."""
        return os.path.lexists(self.directory)

    def source(self) -> str:
        """Return what is cloned and fetched from: the server, or what was carried here."""
        return str(bundle_of(self.bundles, self.name)) if self.bundles else self.url


def bundle_of(bundles: Path, name: str) -> Path:
    """Return the bundle of a repository or submodule."""
    bundle = bundles / f"{name}.bundle"
    if not bundle.exists():
        raise LongshipError(f"{name}: bundle not found: {bundle}", BRING_BUNDLES)
    return bundle


class State:
    """What an update has to remember: a file each, which is complete or not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.directory / name

    def has(self, name: str) -> bool:
        """Tell whether something was saved, be it nothing."""
        return self.path(name).exists()

    def save(self, name: str, value: str | bytes) -> None:
        """Save a value for the rest of the update."""
        partial = self.path(f"{name}.partial")
        partial.write_bytes(os.fsencode(value))
        partial.replace(self.path(name))

    def load(self, name: str) -> str:
        """Return a value, empty where none was saved."""
        return os.fsdecode(self.path(name).read_bytes()) if self.has(name) else ""

    def load_names(self, name: str) -> list[str]:
        """Return names of files, as git prints them with ``-z``."""
        return split_names(os.fsencode(self.load(name)))

    def remove(self, name: str) -> None:
        """Remove a value."""
        self.path(name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all values at once: one that is left of an old update would mislead the next."""
        removed = self.directory.with_name(f"{self.directory.name}.removed")
        if removed.exists():
            shutil.rmtree(removed)
        if self.directory.exists():
            self.directory.rename(removed)
            shutil.rmtree(removed)


class Repository(Git):
    """A repository in its directory: one of those configured, or a submodule of it."""

    def __init__(
        self, configured: Configured, directory: Path | None = None, name: str = ""
    ) -> None:
        super().__init__(directory or configured.directory)
        self.configured = configured
        self.name = name or configured.name  # of a submodule with its path
        self._own: Path | None = None

    @property
    def own(self) -> Path:
        """Return the git directory, which contains index and HEAD."""
        if self._own is None:
            found = self.ask("rev-parse --absolute-git-dir")
            if not found:
                reason = self.attempt("rev-parse")[1]
                check_owner(reason, str(self.directory))
                message = f"{self.directory}: git cannot read the repository"
                message += f": {reason.rpartition(chr(10))[2]}"
                raise LongshipError(message, f"run: git -C {quote(str(self.directory))} status")
            self._own = Path(found)
        return self._own

    @property
    def state(self) -> State:
        """Return what an update has saved."""
        return State(self.own / "longship-update")

    @property
    def index(self) -> Path:
        """Return the index in which the user's changes are put together."""
        return self.own / "longship-index"

    def is_cloned(self) -> bool:
        """Tell whether there is a repository."""
        return (self.directory / ".git").exists()

    def commit_of(self, name: str) -> str:
        """Return the commit that a name stands for, empty where there is none."""
        return self.ask("rev-parse --verify --quiet", f"{name}^{{commit}}") if name else ""

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""
        return self.text("rev-parse --verify --quiet", f"{commit}^{{tree}}")

    def has_work(self, fetched: str) -> bool:
        """Tell whether it has, or may have, changes, or commits besides those that were fetched."""
        commits = ("rev-list HEAD --branches --not --remotes --tags", fetched)
        asked = (("status --porcelain",), commits)
        return any(self.attempt(*each) != (True, "") for each in asked)  # git can fail

    def branch(self) -> str:
        """Return the branch as a full name, empty where HEAD is detached."""
        return self.ask("symbolic-ref --quiet HEAD")

    def shown(self, commit: str) -> str:
        """Return a commit as a person says it."""
        return self.ask("describe --always --tags", commit) or commit[:10]

    def own_commit(self, tree: str, message: str, *parents: str) -> str:
        """Make a commit that only this program looks at."""
        words = [word for parent in parents for word in ("-p", parent)]
        own = {**OWN_COMMITTER, **OWN_AUTHOR}
        return self.text("commit-tree", tree, "-m", message, *words, **own)

    def settings(self) -> list[str]:
        """Return URL, ref and patches' checksum that it was last updated to, "" if unknown."""
        return [*State(self.own).load("longship-settings").split("\n"), "", ""][:3]

    def save_settings(self, settings: list[str]) -> None:
        """Save what it was updated to."""
        State(self.own).save("longship-settings", "".join(f"{each}\n" for each in settings))

    def submodules(self) -> Iterator[tuple[str, Repository]]:
        """Give commit and repository of each submodule in the index."""
        for entry in self.names("ls-files --stage -z"):
            words, _, path = entry.partition("\t")
            if words.startswith("160000 "):
                yield words.split()[1], self.submodule(path)

    def submodule(self, path: str) -> Repository:
        """Return the repository of a submodule."""
        return Repository(self.configured, self.directory / path, f"{self.name}/{path}")

    def submodules_in_update(self) -> Iterator[Repository]:
        """Give each submodule with an update under way."""
        for _, each in self.submodules():
            if each.is_cloned() and each.state.directory.exists():
                yield each

    def check_cloned(self) -> None:
        """Stop where something else is in its place."""
        if not self.is_cloned():
            raise self._unusable("is not a git repository")

    def _unusable(self, reason: str) -> LongshipError:
        typed = quote(str(self.directory))
        hint = f"move it away: mv {typed} {typed}.old; then run: python3 set_up.py install"
        return LongshipError(f"{self.directory} {reason}", hint)

    def check_not_busy(self) -> None:
        """Stop where something is in progress that an update would mix up."""
        directory, again = self.directory, "then run the command again"
        typed = quote(str(directory))
        if not self.commit_of("HEAD"):
            raise self._unusable("has no commit")
        for mark, kind in _BUSY.items():
            if (self.own / mark).exists():
                hint = f"finish or abort it, see: git -C {typed} status; {again}"
                raise LongshipError(f"{directory}: a {kind} is in progress", hint)
        if self.text("ls-files --unmerged"):
            hint = f"resolve them, see: git -C {typed} status; {again}"
            raise LongshipError(f"{directory}: unresolved conflicts", hint)
        for name in ("index", "HEAD", self.branch() or "HEAD"):
            lock = self.own / f"{name}.lock"
            if lock.exists():
                hint = f"if none is running: rm {quote(str(lock))}; {again}"
                message = f"{directory}: another git process is running, or was killed"
                raise LongshipError(message, hint)
        tags = {line[:1] for line in self.run("ls-files -v").split(b"\n")}
        if any(tag.islower() or tag == b"S" for tag in tags):
            raise LongshipError(
                f"{directory}: git ignores changes of some files "
                "(assume-unchanged, skip-worktree, sparse checkout)",
                f"list them: git -C {typed} ls-files -v | grep '^[a-zS]'; "
                "then: git update-index --no-assume-unchanged FILE",
            )

    def begin_work(self) -> None:
        """Begin with an empty state, and list git's locks: those that come are this program's."""
        self.state.forget()
        self.state.directory.mkdir()
        self.state.save("locks", join_names(self._locks()))

    def _locks(self) -> list[str]:
        """Return git's locks; a submodule has its own."""
        found, skipped = [], {"modules", "objects", "longship-update"}
        for directory, directories, files in os.walk(self.own):
            if directory == str(self.own):
                directories[:] = [name for name in directories if name not in skipped]
            found += [os.path.join(directory, name) for name in files if name.endswith(".lock")]
        return found

    def remove_own_locks(self) -> None:
        """Remove what a git was killed with that this program had started."""
        for lock in self.own.glob("longship-*.lock"):  # nobody else's
            lock.unlink(missing_ok=True)
        if self.state.has("locks"):
            for lock in set(self._locks()) - set(self.state.load_names("locks")):
                if not _is_open(lock):
                    os.unlink(lock)


def _is_open(file: str) -> bool:
    """Tell whether a process of this user has a file open: a git that was started since."""
    for opened in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.path.samefile(opened, file):
                return True
        except OSError:
            continue
    return False
