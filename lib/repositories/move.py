"""The user's files, index and HEAD are exchanged for what was replayed.

git checks its files first and overwrites them afterwards: what the user saves in between is lost.
Here a file is moved aside, looked at, and the new one is linked into its place, which fails if
something is there. What cannot be had from git is kept under a ref. Each step can be repeated.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from lib.repositories.git import note
from lib.repositories.repository import Progress, Repository
from lib.repositories.snapshot import keep
from lib.script.errors import LongshipError

_SUBMODULE = "160000"
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.ENOTSUP)  # a file system without hard links
_PATIENCE = 50  # tenths of a second, for an editor that asks git for the status


class Change(NamedTuple):
    """A file to exchange: mode and object before and after, empty where there is none."""

    old_mode: str
    new_mode: str
    old: str
    new: str


def move(repository: Repository, progress: Progress) -> None:
    """Exchange everything; can be repeated after a kill or a full disk."""
    lock, before = repository.own / "index.lock", f"{progress.tree}^^"
    changes = _list_changes(repository, progress.tree, progress.done["files"])
    if not progress.moving:
        check_room(repository, changes)
        _check_complete(repository.worktree(), changes)
        _lock_index(repository, lock)
        if not is_as_in(repository, progress):
            lock.unlink()
            raise_changed(repository)
        progress.moving = "files"
        repository.save(progress)
    repository.remove_locks(progress, lock)
    head = repository.commit_of("HEAD")
    if head not in (repository.commit_of(before), progress.done["commit"]):
        raise LongshipError(
            f"{repository.directory}: HEAD has moved since the update was interrupted",
            f"your changes are in {progress.saved}; to keep the files as they are now, run: "
            f"rm -rf {quote(str(lock))} {quote(str(repository.state))}",
        )
    update = ("update-ref -m", "longship: update", "HEAD", progress.done["commit"], head)
    repository.run(*update)
    _exchange(repository, changes)
    # the new index keeps what git knows of files that stay
    index = repository.copy_index()
    repository.run("read-tree -i -m", progress.done["staged"], **index)
    os.replace(index["GIT_INDEX_FILE"], repository.own / "index")
    lock.unlink(missing_ok=True)
    repository.succeeds("update-index -q --refresh")


def is_as_in(repository: Repository, progress: Progress) -> bool:
    """Tell whether HEAD and index are still those of the snapshot."""
    index = repository.copy_index()
    head, staged = (repository.commit_of(f"{progress.tree}{each}") for each in ("^^", "^"))
    return (
        repository.branch(),
        repository.commit_of("HEAD"),
        repository.text("write-tree", **index),
    ) == (
        *(progress.branch, head),
        repository.tree_of(staged),
    )


def raise_changed(repository: Repository) -> None:
    """Stop because the user has worked on."""
    raise LongshipError(
        f"{repository.directory}: you have committed or staged something since the update began",
        "run: python3 set_up.py update --abort; then: python3 set_up.py update",
    )


def _list_changes(repository: Repository, old: str, new: str) -> dict[str, Change]:
    listed = repository.names("diff-tree -r -z --raw --no-abbrev --no-renames", old, new)
    changes = {}
    for entry, name in zip(listed[::2], listed[1::2]):
        old_mode, new_mode, before, after = entry[1:].split()[:4]
        modes = (each if each != "000000" else "" for each in (old_mode, new_mode))
        changes[name] = Change(*modes, before, after)
    return changes


def _lock_index(repository: Repository, lock: Path) -> None:
    """Keep other gits from staging and committing meanwhile."""
    for _ in range(_PATIENCE):
        with suppress(FileExistsError):
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return
        time.sleep(0.1)
    message = f"{repository.directory}: another git process is running, or was killed"
    hint = f"if none is running: rm {quote(str(lock))}; then run: python3 set_up.py update"
    raise LongshipError(message, hint)


def check_room(repository: Repository, changes: dict[str, Change]) -> None:
    """Stop where something that git does not track is in the place of a new file."""
    leaving = {name for name, each in changes.items() if each.old_mode}
    for name, change in changes.items():
        if not change.new_mode or name in leaving and change.old_mode != _SUBMODULE:
            continue
        if change.old_mode == change.new_mode:
            continue
        if blocked := _in_the_way(repository.directory, name, leaving):
            path = str(repository.directory / blocked)
            if change.old_mode == _SUBMODULE:
                git = f"git -C {quote(str(repository.directory))}"
                raise LongshipError(
                    f"{path}: the new version has a file in the place of this submodule",
                    f"{git} submodule deinit -- {quote(blocked)}; "
                    "then run: python3 set_up.py update",
                )
            raise LongshipError(
                f"{path} blocks the update and is not tracked by git",
                f"move it away: mv {quote(path)} {quote(f'{path}.mine')}; then run: "
                "python3 set_up.py update",
            )


def _check_complete(work: Repository, changes: dict[str, Change]) -> None:
    """Stop where the second working tree lacks a new file, which is missed too late otherwise."""
    for name, change in changes.items():
        path = work.directory / name
        if change.new_mode not in ("", _SUBMODULE) and not os.path.lexists(path):
            raise LongshipError(
                f"{path} not found: the second working tree is not complete",
                "run: python3 set_up.py update --abort; then: python3 set_up.py update",
            )


def _in_the_way(directory: Path, name: str, leaving: set[str]) -> str:
    """Return what would have to go for a file, but stays; or nothing."""
    parts = Path(name).parts
    for count in range(1, len(parts)):
        parent = str(Path(*parts[:count]))
        path = directory / parent
        if parent in leaving or not os.path.lexists(path):
            return ""
        if path.is_symlink() or not path.is_dir():
            return parent
    path = directory / name
    if path.is_dir() and not path.is_symlink():
        for folder, folders, files in os.walk(path):
            links = [each for each in folders if os.path.islink(os.path.join(folder, each))]
            for each in (*files, *links):
                relative = os.path.relpath(os.path.join(folder, each), directory)
                if relative not in leaving:
                    return name
        return ""
    return name if os.path.lexists(path) else ""


# ----- files


def _exchange(repository: Repository, changes: dict[str, Change]) -> None:
    """Replace the files that are as in the snapshot; leave and report all others."""
    aside = repository.state / f"aside/{os.getpid()}"
    files = {
        name: Change(*(mode.replace(_SUBMODULE, "") for mode in each[:2]), *each[2:])
        for name, each in changes.items()
    }
    seen = {name: _look(repository.directory / name) for name in files}
    old = _unchanged(repository, {n: (e.old_mode, e.old) for n, e in files.items() if e.old_mode})
    new = _unchanged(repository, {n: (e.new_mode, e.new) for n, e in files.items() if e.new_mode})
    left = []
    for name, change in sorted(files.items(), key=lambda item: bool(item[1].new_mode)):
        path, former = repository.directory / name, aside / name
        if name in new or (not change.new_mode and not seen[name]):
            continue
        if name in old:
            _make_parents(former)
            with suppress(FileNotFoundError):
                os.rename(path, former)
            if _look(former) != seen[name]:
                if _put(former, path):
                    former.unlink()
                left.append(name)
                continue
        elif seen[name] or (change.old_mode and not _was_moved(repository, name)):
            left.append(name)
            continue
        if change.new_mode:
            if not _put(repository.worktree().directory / name, path):
                left.append(name)
        else:
            _remove_empty(path.parent, repository.directory)
    for name, change in changes.items():
        if change.new_mode == _SUBMODULE:  # empty, as git leaves it, until it is fetched
            with suppress(FileExistsError):
                (repository.directory / name).mkdir(parents=True, exist_ok=True)
    _keep_contents(repository, changes)
    for name in left:
        note(
            f"{repository.directory / name} was changed during the update and is left as it is; "
            f"compare it with the new version: git diff -- {quote(name)}"
        )


def _look(path: Path, algorithm: str = "sha1") -> tuple[str, ...]:
    """Return mode and content of a file, as git would name them; empty where there is none."""
    try:
        mode = os.lstat(path).st_mode
        link = stat.S_ISLNK(mode)
        data = os.fsencode(os.readlink(path)) if link else path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ()
    kind = "120000" if link else "100755" if mode & stat.S_IXUSR else "100644"
    return kind, hashlib.new(algorithm, b"blob %d\0" % len(data) + data).hexdigest()


def _unchanged(repository: Repository, files: dict[str, tuple[str, str]]) -> set[str]:
    """Return the files that git would store as they are given here."""
    index = repository.own / "longship-look"
    index.unlink(missing_ok=True)
    given = "".join(f"{mode} {sha}\t{name}\0" for name, (mode, sha) in files.items())
    own = {"GIT_INDEX_FILE": index}
    repository.run("update-index --add -z --index-info", given=os.fsencode(given), **own)
    repository.succeeds("update-index -q --refresh", **own)
    changed = repository.names("diff-files --name-only -z", **own)
    index.unlink(missing_ok=True)
    return set(files) - set(changed)


def _was_moved(repository: Repository, name: str) -> bool:
    """Tell whether an earlier, killed call has moved a file aside."""
    return any(os.path.lexists(each / name) for each in (repository.state / "aside").glob("*"))


def _put(source: Path, path: Path) -> bool:
    """Give a file its name, unless something has it."""
    try:
        _make_parents(path)
        with suppress(OSError):
            path.rmdir()  # an empty directory, such as of a submodule
        os.link(source, path, follow_symlinks=False)
    except (FileExistsError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        partial = path.with_name(f".{path.name}.longship")
        shutil.copy2(source, partial, follow_symlinks=False)
        os.rename(partial, path)
    return True


def _make_parents(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


def _remove_empty(directory: Path, top: Path) -> None:
    with suppress(OSError):
        while directory != top:
            directory.rmdir()
            directory = directory.parent


def _keep_contents(repository: Repository, changes: dict[str, Change]) -> None:
    """Keep what was moved aside and is not in git byte for byte, such as files that it filters."""
    kept = {}
    for top in (repository.state / "aside").glob("*"):
        for path in (each for each in top.rglob("*") if each.is_symlink() or each.is_file()):
            name = str(path.relative_to(top))
            mode, sha = _look(path, "sha1" if len(changes[name].old) == 40 else "sha256")
            if sha == changes[name].old or _is_same(path, repository.directory / name):
                continue
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            kept[name] = (mode, repository.text("hash-object -w --stdin", given=data))
    if not kept:
        return
    index = {"GIT_INDEX_FILE": repository.own / "longship-look"}
    given = "".join(f"{mode} {sha}\t{name}\0" for name, (mode, sha) in kept.items())
    repository.run("read-tree --empty", **index)
    repository.run("update-index --add -z --index-info", given=os.fsencode(given), **index)
    tree = repository.text("write-tree", **index)
    ref = keep(
        repository,
        "refs/longship/replaced",
        repository.own_commit(tree, "files as they were", "HEAD"),
    )
    note(f"{repository.directory}: files that git stores otherwise are kept as they were in {ref}")
    note(f"to see one: git -C {quote(str(repository.directory))} show {ref}:{next(iter(kept))}")


def _is_same(path: Path, other: Path) -> bool:
    return os.path.lexists(other) and os.path.samestat(os.lstat(path), os.lstat(other))
