"""The working tree of a repository: its files as they are, and how they differ from a commit."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from lib.repositories.git import Git, GitError, join_names
from lib.script.errors import printable
from lib.script.execute import write_file
from lib.script.records import content_of, read_file
from lib.script.secrets import has_secret

_READING = r"^(core\.(autocrlf|eol|filemode|ignorecase|symlinks)|extensions\.objectformat)$"
_STATUS = "--porcelain=v2 --untracked-files=all --no-renames --ignore-submodules=all"
_SECONDS = 300  # that git can take: a FIFO that is not found before would stop it for ever
_MOST_INDEX = 1 << 28  # bytes: some million files
_MOST_BYTES, _MOST_FILES = 10_000_000, 1000  # of a new file or directory: more is data, not code
_DIFF = "--cached --binary --no-color --no-renames --no-ext-diff --no-textconv"


class WorkingTree(Git):
    """The files of a repository: what git tracks, with local changes, and new files.

    Nothing is written to the repository, which can be another user's. Git works in a directory of
    its own, without any user's settings, and with only those of the repository that say how files
    are read: others can start programs (filters, monitors, hooks, transports), in submodules too.

    The files follow from `commit`, HEAD, and `base`, the version that the repository was last
    updated to; both are empty, and `reason` says why, where that is not known.
    """

    def __init__(self, top: Path, unread: Path | None = None) -> None:
        """Read TOP, except the directory UNREAD in it."""
        super().__init__(top)
        _check_files(top, ".gitattributes", ".gitignore")
        self.commit, self.base, self.reason = "", "", "not a git repository"
        self.work = Path(tempfile.mkdtemp())
        self._borrow(top / ".git", unread)

    def _start(self, words: tuple[Any, ...], errors: int | None, **options: Any) -> Any:
        environment = {
            **{"GIT_DIR": self.work, "GIT_COMMON_DIR": self.work, "GIT_WORK_TREE": self.directory},
            **{"GIT_INDEX_FILE": self.work / "index", "GIT_NAMESPACE": ""},
            **{"GIT_OBJECT_DIRECTORY": self.work / "objects", "GIT_CONFIG_NOSYSTEM": 1},
            **{"GIT_CONFIG_GLOBAL": os.devnull, "HOME": self.work, "XDG_CONFIG_HOME": self.work},
            **{"GIT_CONFIG_COUNT": 0, "GIT_CONFIG_PARAMETERS": ""},
        }
        return super()._start(words, errors, **{"timeout": _SECONDS, **environment, **options})

    def _borrow(self, own: Path, unread: Path | None) -> None:
        """Give git's directory the HEAD and index of the repository, and some of its settings."""
        for name in ("refs", "info", "objects/info"):
            (self.work / name).mkdir(parents=True)
        settings = "[core]\nrepositoryFormatVersion = 1\nfsmonitor = false\n"
        excluded = b""
        if unread and self.directory in unread.parents:
            path = re.sub(r"[][\\*?]", r"\\\g<0>", str(unread.relative_to(self.directory)))
            excluded = os.fsencode(f"/{path}/\n")
        if own.is_file():  # of a submodule, or one of several work trees
            own = own.parent / os.fsdecode(content_of(own)).partition("gitdir: ")[2].rstrip("\n")
        if own.exists():
            _check_files(own, "config", "HEAD")
            self._find_commit(own)
        if self.commit:
            shared = own / os.fsdecode(content_of(own / "commondir")).rstrip("\n")
            alternates = os.fsencode(f"{shared / 'objects'}\n")
            (self.work / "objects/info/alternates").write_bytes(alternates)
            words = ("config --get-regexp", _READING)
            found = Git(self.directory).ask(*words, GIT_DIR=own, timeout=_SECONDS)
            for key, name, value in re.findall(r"^(\w+)\.(\w+) ?([a-z0-9]*)$", found, re.MULTILINE):
                settings += f"[{key}]\n{name} = {value or 'true'}\n"
            excluded += content_of(shared / "info/exclude")
            attributes = content_of(shared / "info/attributes")
            (self.work / "info/attributes").write_bytes(attributes)
            # with its time, by which git knows files that were changed in the same moment
            for index in (own / "index", *own.glob("sharedindex.*")):
                with suppress(OSError):
                    (self.work / index.name).write_bytes(read_file(index, _MOST_INDEX))
                    shutil.copystat(index, self.work / index.name)
        (self.work / "HEAD").write_text(
            f"{self.commit or 'ref: refs/heads/none'}\n", encoding="utf-8"
        )
        (self.work / "config").write_text(settings, encoding="utf-8")
        (self.work / "info/exclude").write_bytes(excluded)

    def _find_commit(self, own: Path) -> None:
        words = ("rev-parse --revs-only", "HEAD", "refs/longship/base")
        succeeded, output = Git(self.directory).attempt(*words, GIT_DIR=own, timeout=_SECONDS)
        found = re.findall("^[0-9a-f]{40,64}$", output, re.MULTILINE)
        if succeeded and found:
            self.commit, self.base = found[0], found[-1]
        else:
            self.reason = output.rpartition("\n")[2] or "no commit yet"

    def _index(self) -> dict[str, tuple[str, str]]:
        """Return what is in the index: a tag, and mode and ID."""
        found = {}
        for line in self.names("ls-files -z -v --stage"):
            facts, _, path = line.partition("\t")
            tag, mode, identity, _ = facts.split(" ")
            found[path] = tag, f"{mode} {identity}"
        return found

    def _read(self) -> list[str]:
        """Put the files into the index, and return those that are left out, each after why."""
        index = self._index() if self.commit else {}
        changed, gone, new = [], set(), []
        self.is_changed = self.base != self.commit
        for line in self.names(f"status -z {_STATUS}"):
            kind, _, rest = line.partition(" ")
            path = rest.split(" ", 9 if kind == "u" else 7)[-1]
            self.is_changed = True
            if kind == "?":
                new += self._new(rest)
            elif rest[1] == "D":
                gone.add(path)
            elif rest[1] != ".":
                changed.append(path)
        # git was told to ignore their changes
        hidden = [path for path, (tag, _) in index.items() if tag.islower() or tag == "S"]
        gone.update(path for path in hidden if not os.path.lexists(self.directory / path))
        filtered = [path for path in self._filtered([*index, *new]) if path not in gone]
        small, large, unreadable = self.sort_out([*new, *filtered], index)
        gone.update(path for path in (*large, *unreadable) if path in index)
        again = [path for path in (*hidden, *filtered) if path not in gone]
        lines = [f"0 {'0' * len(self.commit)}\t{path}" for path in gone]
        lines += [f"{index[path][1]} 0\t{path}" for path in again]
        if lines:  # without the times of these files, so that git reads them
            self.run("update-index -z --index-info", given=join_names(lines))
        submodules = [path for path, (_, entry) in index.items() if self._is_submodule(path, entry)]
        paths = [*changed, *hidden, *small, *submodules]
        if paths:
            options = "-z --add --remove --replace --stdin"
            self.run(f"update-index {options}", given=join_names(paths))
        if lines or paths:
            self.is_changed = True
        return [
            *(f"large {each}" for each in large),
            *(f"unreadable {each}" for each in unreadable),
        ]

    def _new(self, path: str) -> list[str]:
        """Return a new file; a repository ends in a slash, and git adds one that has a commit."""
        is_file, inner = not path.endswith("/"), Git(self.directory / path)
        if is_file or inner.succeeds("rev-parse --verify -q HEAD", timeout=_SECONDS):
            return [path.rstrip("/")]
        return []

    def _is_submodule(self, path: str, entry: str) -> bool:
        return entry.startswith("160000 ") and (self.directory / path / ".git").exists()

    def _filtered(self, paths: Iterable[str]) -> list[str]:
        """Return the tracked files whose content a filter keeps elsewhere (LFS)."""
        files = [each for each in paths if PurePosixPath(each).name == ".gitattributes"]
        attributes = [self.work / "info/attributes", *(self.directory / each for each in files)]
        if self.commit and any(b"filter" in content_of(each) for each in attributes):
            return self.names("ls-files -z --", ":(exclude,attr:!filter)")
        return []

    def sort_out(
        self, paths: Iterable[str], known: Iterable[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the files that are code, those that are too large for it, and unreadable ones.

        A new directory, one that is not among the parents of known files, is large as a whole.
        """
        parents = parents_of(known)
        groups: dict[str, list[str]] = {}  # by new directory
        for path in paths:
            new = (each for each in parents_of([path]) if each not in parents)
            groups.setdefault(next(new, path), []).append(path)
        small, large, unreadable = [], [], []
        for name, members in groups.items():
            if len(members) > _MOST_FILES or sum(map(self._size, members)) > _MOST_BYTES:
                large.append(name)
                continue
            for path in members:
                place = self.directory / path
                readable = place.is_symlink() or os.access(place, os.R_OK)
                (small if readable else unreadable).append(path)
        return small, large, unreadable

    def _size(self, path: str) -> int:
        with suppress(OSError):  # removed just now
            return (self.directory / path).lstat().st_size
        return 0

    def describe(self, file: Path) -> None:
        """Write FILE.commit, and FILE.patch with all changes since the base.

        FILE.commit names the files that the patch lacks.
        """
        left_out = self._read()
        patch, left = self._patch() if self.commit and self.is_changed else (b"", [])
        lines = [f"commit {self.commit or f'unknown: {self.reason}'}"]
        lines += [f"base {self.base}"] if self.commit else []
        lines += left_out
        lines += [f"left out, because it contains a password: {each}" for each in left]
        write_file(Path(f"{file}.commit"), "".join(f"{printable(line)}\n" for line in lines))
        Path(f"{file}.patch").unlink(missing_ok=True)
        if patch:  # new files can contain what others are not to read
            write_file(Path(f"{file}.patch"), os.fsdecode(patch), 0o600)

    def _patch(self) -> tuple[bytes, list[str]]:
        """Return all changes since the base, and the files left out; of submodules the commit."""
        patch, left = self.run(f"diff {_DIFF}", self.base), []
        if has_secret(patch):
            for name in self.names(f"diff {_DIFF} --name-only -z", self.base):
                changes = self.run(f"diff {_DIFF}", self.base, "--", f":(literal){name}")
                left += [name] if has_secret(changes) else []
            others = [f":(exclude,literal){each}" for each in left]
            patch = self.run(f"diff {_DIFF}", self.base, "--", ".", *others)
        return patch, left


def _check_files(directory: Path, *names: str) -> None:
    """Stop at a file that git would open, and wait for its end."""
    for name in names:
        try:
            read_file(directory / name)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EFBIG):
                raise GitError(f"{directory / name}: {error.strerror}") from error


def parents_of(paths: Iterable[str]) -> dict[str, None]:
    """Return the directories that paths are in, the outer ones first."""
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        found.update(dict.fromkeys("/".join(parts[:end]) for end in range(1, len(parts))))
    return found
