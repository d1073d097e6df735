"""Commits as files, in the form in which `git show` prints one.

The author and the message, each line of it behind four blanks, then the changes, which `git apply`
reads. A mail, as `git format-patch` writes it, loses or breaks what commits may have: messages
with a diff or a line `From ...`, `[WIP]`, nothing changed, odd authors::

    author NAME <EMAIL> SECONDS ZONE
    no newline at the end of the message
"""

from __future__ import annotations

import email.utils
import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from lib.repositories.git import Git
from lib.repositories.repository import Configured, Repository
from lib.script.errors import LongshipError

_NO_NEWLINE = b"no newline at the end of the message"
_INDENT = b"    "
_LONGSHIP = b"Longship <longship@localhost> "


class Header(NamedTuple):
    """What a replayed commit keeps of the first one, byte for byte."""

    author: bytes  # with the name of the header, as the committer
    committer: bytes
    message: bytes


def header_of(repository: Git, commit: str) -> Header:
    """Return author, committer and message of a commit; stop for what git cannot replay."""
    lines, _, message = repository.run("cat-file commit", commit).partition(b"\n\n")
    author, committer = (
        next(line for line in lines.split(b"\n") if line.startswith(name + b" "))
        for name in (b"author", b"committer")
    )
    reason = ""
    if not all(re.search(rb"> \d+ [-+]\d+$", line) for line in (author, committer)):
        reason = "has a date before 1970"
    try:
        message.decode()
    except UnicodeDecodeError:
        reason = "has a message that is not UTF-8"
    if reason or b"\nencoding " in lines:
        raise LongshipError(
            f"{repository.directory}: commit {commit[:10]} "
            f"{reason or 'has a message that is not UTF-8'}, which an update cannot replay",
            "write it again: git commit --amend --reset-author for the newest commit, "
            "git rebase -i for an older one; then run the command again",
        )
    return Header(author, committer, message)


def commit_tree(repository: Git, tree: str, parent: str, header: Header) -> str:
    """Make a commit byte for byte: git's own commands clean messages and authors."""
    lines = (f"tree {tree}\nparent {parent}".encode(), header.author, header.committer, b"")
    given = b"\n".join((*lines, header.message))
    return repository.text("hash-object -t commit -w --stdin --literally", given=given)


def write_commit(repository: Git, commit: str, file: Path) -> None:
    """Write a commit to a file."""
    header = header_of(repository, commit)
    lines = header.message.split(b"\n")
    end = b"" if not lines[-1] else _NO_NEWLINE + b"\n"
    body = b"".join(_INDENT + line + b"\n" for line in (lines if end else lines[:-1]))
    file.write_bytes(
        header.author + b"\n" + end + b"\n" + body + b"\n" + changes_of(repository, commit)
    )


def changes_of(repository: Git, commit: str) -> bytes:
    """Return what a commit changes as one patch."""
    options = "--root --no-commit-id -p -U3 -r --binary --full-index --no-renames --no-ext-diff"
    return repository.run(f"diff-tree {options} --no-textconv", commit)


def read_header(repository: Git, file: Path) -> Header:
    """Return author and message of a patch; the same for everybody, so with no time of its own."""
    text = file.read_bytes()
    if text.startswith(b"author "):
        head, _, rest = text.partition(b"\n\n")
        indented = re.match(b"(?:" + _INDENT + b".*\n)*", rest)
        message = re.sub(b"(?m)^" + _INDENT, b"", indented[0] if indented else b"")
        if _NO_NEWLINE in head.split(b"\n"):
            message = message[:-1]
        author = head.split(b"\n")[0]
    elif text.startswith(b"From "):
        author, message = _read_mail(repository, text)
    else:  # as `git diff` writes it
        author, message = b"author " + _LONGSHIP + b"946684800 +0000", os.fsencode(file.name)
        message += b"\n"
    return Header(author, b"committer " + _LONGSHIP + author.rpartition(b"> ")[2], message)


def _read_mail(repository: Git, text: bytes) -> tuple[bytes, bytes]:
    """Return author and message of a patch that `git format-patch` wrote."""
    own = repository.text("rev-parse --absolute-git-dir")
    body = Path(own, "longship-mail")
    command = "mailinfo -k --encoding=UTF-8"
    lines = repository.run(command, body, "/dev/null", given=text).split(b"\n")
    found = dict(line.partition(b": ")[::2] for line in lines if line)
    sent = email.utils.parsedate_to_datetime(os.fsdecode(found[b"Date"]))
    date = f"{int(sent.timestamp())} {sent:%z}".encode()
    author = b"author %s <%s> %s" % (found[b"Author"], found[b"Email"], date)
    message = found[b"Subject"] + b"\n\n" + body.read_bytes()
    body.unlink()
    return author, message.rstrip(b"\n") + b"\n"


def has_merge(repository: Git, commits: list[str]) -> bool:
    """Tell whether one of the commits has several parents."""
    return bool(commits and repository.text("rev-list --no-walk --merges", *commits))


def squash(repository: Repository, commits: list[str], base: str) -> list[str]:
    """Return the commits, or one for all of them where a merge is among them."""
    for each in commits:
        header_of(repository, each)  # or it stops
    if not has_merge(repository, commits):
        return commits
    listed = repository.run("log --no-walk=unsorted", "--format=%h %s", *commits)
    title = f"Local changes, {len(commits)} commits with merges\n\n".encode()
    header = header_of(repository, commits[-1])._replace(message=title + listed)
    return [commit_tree(repository, repository.tree_of(commits[-1]), base, header)]


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
