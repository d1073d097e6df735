"""An external repository on this machine: as configured, as git knows it, and in an update."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote

from lib.repositories.git import OWN_AUTHOR, OWN_COMMITTER, Git
from lib.script.errors import LongshipError, check_owner

_BUSY = {"rebase-merge": "rebase", "rebase-apply": "rebase", "MERGE_HEAD": "merge"}
_BUSY |= {"CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "BISECT_LOG": "bisect"}
_BUSY |= {"sequencer": "cherry-pick or revert"}  # of several commits, some of them to come
_AGAIN = "then run the command again"

BRING_BUNDLES = (
    "on a machine with network access, run: python3 set_up.py download --machine MACHINE; "
    "then copy the bundles here"
)


@dataclass(frozen=True)
class Configured:
    """One of the configured repositories, and where it and what belongs to it are."""

    repositories: Path  # the directory of all of them
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


@dataclass
class Progress:
    """An update under way: one file, which is replaced as a whole."""

    locks: list[str]  # git's lock files before the update: not its own
    target: str = ""  # the commit to go to; "" while it is fetched
    saved: str = ""  # the ref of the user's changes
    branch: str = ""
    tree: str = ""  # the snapshot that is replayed
    # what is still to be replayed: a kind of replay.KINDS, and a commit or the file of a patch
    todo: list[list[str]] = field(default_factory=list)
    done: dict[str, str] = field(default_factory=dict)  # for each kind the commit that has it all
    head: str = ""  # what has been replayed
    conflicts: list[str] | None = None  # of the last stop; None if the user was never asked
    stopped: bool = False  # it waits for the user
    moving: str = ""  # "files": they are replaced; "submodules": only these are left


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

    def copy_index(self) -> dict[str, Path]:
        """Return the variable by which git works on a copy of the index."""
        copy = self.own / "longship-index"
        copy.with_name("longship-index.lock").unlink(missing_ok=True)  # of a killed git
        shutil.copy2(self.own / "index", copy)
        return {"GIT_INDEX_FILE": copy}

    def is_cloned(self) -> bool:
        """Tell whether there is a repository."""
        return (self.directory / ".git").exists()

    def commit_of(self, name: str) -> str:
        """Return the commit that a name stands for, empty where there is none."""
        return self.ask("rev-parse --verify --quiet", f"{name}^{{commit}}") if name else ""

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""
        return self.text("rev-parse --verify --quiet", f"{commit}^{{tree}}")

    def changed_files(self, old: str, new: str) -> set[str]:
        """Return the files that differ between two commits."""
        return {*self.names("diff-tree -r -z --name-only --no-renames", old, new)}

    def branch(self) -> str:
        """Return the branch as a full name, empty where HEAD is detached."""
        return self.ask("symbolic-ref --quiet HEAD")

    def shown(self, commit: str) -> str:
        """Return a commit as a person says it."""
        return self.ask("describe --always --tags", commit) or commit[:10]

    def own_commit(self, tree: str, message: str, parent: str) -> str:
        """Make a commit that only this program looks at."""
        words = ("commit-tree", tree, "-m", message, "-p", parent)
        return self.text(*words, **OWN_COMMITTER, **OWN_AUTHOR)

    def settings(self) -> list[str]:
        """Return URL, ref and patches' checksum that it was last updated to, "" if unknown."""
        file = self.own / "longship-settings"
        return [
            *(file.read_text(encoding="utf-8").split("\n") if file.exists() else ()),
            "",
            "",
            "",
        ][:3]

    def save_settings(self, settings: list[str]) -> None:
        """Save what it was updated to."""
        _replace(self.own / "longship-settings", "".join(f"{each}\n" for each in settings))

    def submodules(self) -> Iterator[tuple[str, str, Repository]]:
        """Give commit, path and repository of each submodule in the index."""
        for entry in self.names("ls-files --stage -z"):
            words, _, path = entry.partition("\t")
            if words.startswith("160000 "):
                submodule = Repository(
                    self.configured, self.directory / path, f"{self.name}/{path}"
                )
                yield words.split()[1], path, submodule

    # ----- an update under way

    @property
    def state(self) -> Path:
        """Return the directory that exists while an update is under way."""
        return self.own / "longship-update"

    def worktree(self) -> Repository:
        """Return the second working tree, in which the changes are replayed."""
        directory = Path(f"{os.path.realpath(self.directory)}.update")
        return Repository(self.configured, directory, self.name)

    def progress(self) -> Progress | None:
        """Return the update under way, if there is one."""
        file = self.state / "progress.json"
        if file.exists():
            return Progress(**json.loads(file.read_text(encoding="utf-8")))
        return Progress([]) if self.state.exists() else None

    def begin(self) -> Progress:
        """Begin an update."""
        progress = Progress(self._locks())
        self.save(progress)
        return progress

    def save(self, progress: Progress) -> None:
        """Save how far an update is."""
        self.state.mkdir(exist_ok=True)
        _replace(self.state / "progress.json", json.dumps(asdict(progress)))

    def check_place(self) -> None:
        """Stop where something else is in the place of the second working tree."""
        work = self.worktree().directory
        if os.path.lexists(work):
            message = f"{work} is in the way: an update works there"
            raise LongshipError(message, "move it away, then run the command again")

    def forget(self, progress: Progress) -> None:
        """End an update: its working tree and its state go, nothing else.

        Without a target it has made no working tree: what is in its place is the user's.
        """
        work = self.worktree().directory
        if progress.target:
            shutil.rmtree(work, ignore_errors=True)
            for file in self.own.glob("worktrees/*/gitdir"):
                if file.read_text(encoding="utf-8") == f"{work}/.git\n":
                    shutil.rmtree(file.parent)
        if self.state.exists():
            removed = self.state.with_name("longship-update.removed")
            shutil.rmtree(removed, ignore_errors=True)
            self.state.rename(removed)  # at once: half of a state would mislead
            shutil.rmtree(removed)

    def _locks(self) -> list[str]:
        """Return git's locks; a submodule has its own."""
        found = []
        for directory, directories, files in os.walk(self.own):
            directories[:] = [each for each in directories if each != "objects"]
            found += [os.path.join(directory, name) for name in files if name.endswith(".lock")]
        return found

    def remove_locks(self, progress: Progress, *kept: Path) -> None:
        """Remove what a git was killed with that this program had started."""
        for lock in set(self._locks()) - {*progress.locks, *map(str, kept)}:
            if not _is_open(lock):
                os.unlink(lock)

    # ----- what no update begins with

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
        directory, git = self.directory, f"git -C {quote(str(self.directory))}"
        if not self.commit_of("HEAD"):
            raise self._unusable("has no commit")
        for mark, kind in _BUSY.items():
            if (self.own / mark).exists():
                hint = f"finish or abort it, see: {git} status; {_AGAIN}"
                raise LongshipError(f"{directory}: a {kind} is in progress", hint)
        if self.text("ls-files --unmerged"):
            hint = f"resolve them, see: {git} status; {_AGAIN}"
            raise LongshipError(f"{directory}: unresolved conflicts", hint)
        for name in ("index", "HEAD", self.branch() or "HEAD"):
            lock = self.own / f"{name}.lock"
            if lock.exists():
                hint = f"if none is running: rm {quote(str(lock))}; {_AGAIN}"
                message = f"{directory}: another git process is running, or was killed"
                raise LongshipError(message, hint)
        # by the setting: what it hides can come with the new version
        if self.ask("config --type=bool core.sparseCheckout") == "true":
            hint = f"run: {git} sparse-checkout disable; {_AGAIN}"
            raise LongshipError(f"{directory}: a sparse checkout cannot be updated", hint)
        tags = {line[:1] for line in self.run("ls-files -v").split(b"\n")}
        if any(tag.islower() or tag == b"S" for tag in tags):
            raise LongshipError(
                f"{directory}: git ignores changes of some files (assume-unchanged, skip-worktree)",
                f"list them: {git} ls-files -v | grep '^[a-zS]'; then for S: {git} update-index "
                "--no-skip-worktree FILE; for others: "
                f"{git} update-index --no-assume-unchanged FILE",
            )

    def check_replayable(self) -> None:
        """Stop for what a commit cannot hold."""
        directory, git = self.directory, f"git -C {quote(str(self.directory))}"
        if announced := self.names("diff --name-only --diff-filter=A -z"):
            message = f"{directory}: an update cannot keep the mark of git add -N: {announced[0]}"
            hint = f"add its content: {git} add -- {quote(f':/{announced[0]}')}; {_AGAIN}"
            raise LongshipError(message, hint)
        changed = self.names("diff-index -z --raw --ignore-submodules=untracked HEAD")
        for entry, path in zip(changed[::2], changed[1::2]):
            if "160000" in entry[:14]:
                raise LongshipError(
                    f"{directory}: the submodule {path} has changes, which an update cannot replay",
                    "commit and push them to a branch of your own; or, to lose them: "
                    f"{git} reset -q -- {quote(path)} && "
                    f"{git} submodule update --init --force -- {quote(path)}; {_AGAIN}",
                )


def _replace(file: Path, text: str) -> None:
    """Write a file, complete or as it was."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def _is_open(file: str) -> bool:
    """Tell whether a process of this user has a file open: a git that was started since."""
    for opened in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.path.samefile(opened, file):
                return True
        except OSError:
            continue
    return False
