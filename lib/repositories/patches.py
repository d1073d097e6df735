"""Commits as files, in the form in which `git show` prints one.

Author, encoding and message, each line of it behind four blanks, then the changes, which
`git apply` reads. A mail, as `git format-patch` writes it, loses or breaks what commits may have:
messages with a diff or a line `From ...`, `[WIP]`, nothing changed, odd authors::

    author NAME <EMAIL> SECONDS ZONE
    encoding NAME                       of the message, where git has recorded it
    no newline at the end of the message
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from lib.repositories.git import Git
from lib.repositories.repository import Configured, Repository

_NO_NEWLINE = b"no newline at the end of the message"
_INDENT = b"    "
# the only patch of a history with merges, which no series can hold
ALL_PATCH = "0001-all-of-a-history-with-merges.patch"


class Words(NamedTuple):
    """What a replayed commit keeps of the first one."""

    author: bytes
    encoding: bytes  # with the name of the header; empty where git has recorded none
    message: bytes


def words_of(repository: Git, commit: str) -> Words:
    """Return author, encoding and message of a commit, byte for byte."""
    header, _, message = repository.run("cat-file commit", commit).partition(b"\n\n")
    return Words(_header(header, b"author "), _header(header, b"encoding "), message)


def _header(text: bytes, name: bytes) -> bytes:
    return next((line for line in text.split(b"\n") if line.startswith(name)), b"")


def commit_staged(repository: Repository, words: Words, committer: bytes = b"") -> None:
    """Commit what is staged, byte for byte: git's own commands clean messages and authors.

    Without a committer (name and time) the commit is the same for everybody.
    """
    committer = committer or b"Longship <longship@localhost> " + words.author.rpartition(b"> ")[2]
    tree, parent = repository.run("write-tree"), repository.run("rev-parse HEAD")
    lines = [b"tree " + tree, b"parent " + parent]
    lines += [words.author + b"\n", b"committer " + committer + b"\n"]
    lines += [words.encoding + b"\n"] if words.encoding else []
    given = b"".join([*lines, b"\n", words.message])
    commit = repository.text("hash-object -t commit -w --stdin --literally", given=given)
    repository.run("update-ref -m", "longship: update", "HEAD", commit)


def commit_like(repository: Repository, commit: str) -> None:
    """Commit what is staged with author and message of a commit."""
    committer = repository.run("var GIT_COMMITTER_IDENT").rstrip(b"\n")
    commit_staged(repository, words_of(repository, commit), committer)


def write_commit(repository: Git, commit: str, file: Path) -> None:
    """Write a commit to a file."""
    words = words_of(repository, commit)
    lines = words.message.split(b"\n")
    end = lines.pop() if not lines[-1] else _NO_NEWLINE
    header = [line + b"\n" for line in (words.author, words.encoding, end) if line]
    body = [_INDENT + line + b"\n" for line in lines]
    parent = repository.ask("rev-parse --verify --quiet", f"{commit}^") or empty_tree(repository)
    changes = patch_between(repository, parent, commit)
    file.write_bytes(b"".join([*header, b"\n", *body, b"\n", changes]))


def is_commit(text: bytes) -> bool:
    """Tell whether `write_commit` wrote a file."""
    return re.match(rb"author .* <.*> ", text) is not None


def read_commit(text: bytes) -> Words:
    """Return author, encoding and message of a commit in a file."""
    header, _, rest = text.partition(b"\n\n")
    message = b""
    for line in rest.split(b"\n"):
        if not line.startswith(_INDENT):
            break
        message += line[len(_INDENT) :] + b"\n"
    if _NO_NEWLINE in header.split(b"\n"):
        message = message[:-1]
    return Words(_header(header, b"author "), _header(header, b"encoding "), message)


def empty_tree(repository: Git) -> str:
    """Return the tree without a file."""
    return repository.text("hash-object -t tree /dev/null")


def patch_between(repository: Git, old: str, new: str) -> bytes:
    """Return one patch from a commit or tree to another."""
    options = "-p -U3 -r --binary --full-index --no-renames --no-ext-diff --no-textconv"
    return repository.run(f"diff-tree {options}", old, new)


def write_series(
    repository: Git, directory: Path, head: str, commits: list[str], base: str
) -> None:
    """Write a patch for each commit, oldest first; one from base to head if there is a merge."""
    directory.mkdir(parents=True)
    if has_merge(repository, commits):
        (directory / ALL_PATCH).write_bytes(patch_between(repository, base, head))
        return
    for number, commit in enumerate(commits, 1):
        subject = repository.text("log -1 --format=%f", commit)
        name = re.sub("[-.]$", "", f"{number:04d}-{subject[:52]}")
        write_commit(repository, commit, directory / f"{name}.patch")


def has_merge(repository: Git, commits: list[str]) -> bool:
    """Tell whether one of the commits has several parents."""
    return bool(commits and repository.text("rev-list --no-walk --merges", *commits))


def patches_in(directory: Path) -> list[Path]:
    """Return the patches of a directory, in order."""
    found = directory.glob("*.patch") if directory.is_dir() else ()
    return sorted(path for path in found if not path.name.startswith("."))


def series_checksum(directory: Path) -> str:
    """Return one checksum over all patches of a directory, empty where there are none."""
    patches = patches_in(directory)
    text = b"".join(path.read_bytes() for path in patches)
    return hashlib.sha256(text).hexdigest() if patches else ""


def wanted_settings(configured: Configured) -> list[str]:
    """Return what decides where a repository has to be, as `Repository.settings` does."""
    return [configured.url, configured.ref, series_checksum(configured.patches)]


def is_as_configured(repository: Repository) -> bool:
    """Tell whether a repository was last updated to what is configured now."""
    return repository.settings() == wanted_settings(repository.configured)
