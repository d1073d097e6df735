"""Verifies and unpacks a bundle; what somebody has changed since the last time is kept."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shlex import quote

from extras.bundle import tree
from lib import VERSION
from lib.repositories.git import Git, GitError
from lib.script.errors import LongshipError, print_messages
from lib.script.records import content_of

_VERSION = re.compile(rb'^VERSION = "([0-9.]+)"', re.MULTILINE)


def verify(options: Namespace) -> None:
    """Verify the bundle; if it is to be unpacked, create the directory for this repository."""
    bundle, directory = options.bundle, options.directory
    if directory and f"{directory}/".startswith(f"{bundle}/"):
        hint = f"name a directory outside of {bundle}"
        raise LongshipError(f"{directory} is in the bundle", hint)
    memory = f"{directory}/.cache/bundle"  # as of an earlier unpacking, complete or interrupted
    if directory and os.path.lexists(directory) and not os.path.isdir(memory):
        message = f"{directory} exists, and was not unpacked from a bundle"
        raise LongshipError(message, "name a new directory: bash unpack.sh TARGET")
    options.step("Verifying the bundle")
    print_messages(note=f"complete, {tree.verify(bundle)} files: {bundle}")
    if directory:
        os.makedirs(memory, exist_ok=True)


def unpack_offline(options: Namespace) -> None:
    """Unpack what the offline modes read."""
    options.step(f"Unpacking the image, packages, repositories and assets to {options.directory}")
    _unpack_part(options.bundle, "offline", options.directory)


def unpack_repository(options: Namespace) -> None:
    """Unpack this repository, the packages of its scripts and its history."""
    bundle, directory = options.bundle, options.directory
    options.step(f"Unpacking the repository to {directory}")
    _check_age(bundle, directory)
    _unpack_files(bundle, directory, f"{directory}/.cache/bundle/unpacked")
    options.step("Installing the packages of the scripts")
    version = "python{}.{}".format(*sys.version_info)
    _unpack_part(bundle, "host", f"{directory}/.venv/lib/{version}/site-packages")
    options.step("Restoring the git history")
    try:
        if "longship.bundle" in tree.read_sums(f"{bundle}/SHA256SUMS"):
            _restore_history(f"{bundle}/longship.bundle", directory)
    except GitError as error:
        print_messages(note=f"unpacked without history: {error}")


def _check_age(bundle: str, directory: str) -> None:
    """Stop at a bundle that is older than the last one: `git commit -a` would undo the newer one.

    Without a history of both, only Longship's own version is known.
    """
    found = re.search(_VERSION, content_of(Path(directory, "lib/__init__.py")))
    new, old = VERSION, found[1].decode() if found else ""
    days = [[int(each) for each in re.findall("[0-9]+", version)] for version in (new, old)]
    is_older, file, git = days[0] < days[1], f"{bundle}/longship.bundle", Git(Path(directory))
    if shutil.which("git") and os.path.exists(file) and os.path.exists(f"{directory}/.git"):
        with suppress(GitError):  # told where the history is restored
            commit, _, shown = _packed_head(git, file)
            last = git.ask("rev-parse -q --verify", f"refs/remotes/{shown}")
            if last != commit and git.succeeds("merge-base --is-ancestor", commit, last):
                is_older, new, old = True, _described(git, commit), _described(git, last)
    if is_older:
        raise LongshipError(
            f"the bundle is older than {directory}: {new}, which has {old}",
            "unpack the newer bundle; or this one elsewhere: bash unpack.sh NEW_DIRECTORY",
        )


def _packed_head(git: Git, file: str) -> tuple[str, str, str]:
    """Return the commit of a history, its branch if it has one, and its name in a clone."""
    heads = git.text("bundle list-heads", file).split()
    branch = "".join(name for name in heads[1::2] if name != "HEAD")
    return heads[0], branch, f"bundle/{branch[len('refs/heads/') :] or 'HEAD'}"


def _described(git: Git, commit: str) -> str:
    """Return a commit and its day, for a message."""
    return git.text("log -1 --date=short --format=%h%x20of%x20%cd", commit)


def _unpack_part(bundle: str, part: str, directory: str) -> None:
    """Unpack a part of the bundle in place of what is there: nobody edits it."""
    sums = _sums(bundle, part)
    _check_parents(directory, sums)
    found = tree.hash_files(directory, sums)
    new = {name: f"{bundle}/{part}/{name}" for name in sums if found[name] != sums[name]}
    print_messages(note=f"{len(tree.copy_files(directory, new, sums))} new files in {directory}")


def _sums(bundle: str, part: str) -> dict[str, str]:
    """Return the checksums of a part of the bundle, by the names there."""
    sums = tree.read_sums(f"{bundle}/SHA256SUMS")
    return {name[len(part) + 1 :]: sums[name] for name in sums if name.startswith(f"{part}/")}


def _check_parents(directory: str, names: Iterable[str]) -> None:
    """Stop if a link, which leads elsewhere, has the name of a directory."""
    parents = {name[: found.start()] for name in names for found in re.finditer("/", name)}
    for path in (f"{directory}/{each}" for each in sorted(parents)):
        if os.path.islink(path):
            hint = "replace the link by a directory, then run the same command again"
            raise LongshipError(f"cannot unpack: {path} is a symbolic link", hint)


def _unpack_files(bundle: str, directory: str, memory: str) -> None:
    """Unpack the repository. MEMORY lists all that was unpacked: what differs was changed since."""
    sums, before = _sums(bundle, "repository"), set(tree.read_lines(memory))
    _check_parents(directory, sums)
    names = {line.partition(" ")[2] for line in before}
    names |= {each for name in sums for each in (name, f"{name}.new")}
    found = tree.hash_files(directory, filter(tree.is_inside, names))
    wanted, sources = {}, {}
    for name, checksum in sums.items():
        for target in (name, f"{name}.new"):
            path = f"{directory}/{target}"
            is_ours = f"{found[target]} {target}" in before or not os.path.lexists(path)
            if is_ours or found[target] == checksum:
                wanted[target] = checksum
                if found[target] != checksum:
                    sources[target] = f"{bundle}/repository/{name}"
                break
            print_messages(note=f"kept your modified {path}; the bundle's version is {path}.new")
        else:
            hint = f"move or remove {quote(path)}; then run the same command again"
            raise LongshipError(f"{path} is modified too", hint)
    # before a file is written: an interrupted unpacking must not take its own file for the user's
    tree.replace_file(memory, before | {f"{wanted[name]} {name}" for name in wanted})
    new = tree.copy_files(directory, sources, wanted)
    for name, checksum in found.items():  # what is not part of the repository any more
        if name not in wanted and f"{checksum} {name}" in before:
            os.unlink(f"{directory}/{name}")
    print_messages(note=f"{len(new)} new files in {directory}")


def _restore_history(file: str, directory: str) -> None:
    """Make a clone like the packed one, or bring it up to date.

    Its files are there already: those that differ from the commit are the changes packed with it.
    """
    if not shutil.which("git"):
        text = "git not found: unpacked without history; once git is installed, unpack again"
        return print_messages(note=text)
    git = Git(Path(directory))
    commit, branch, shown = _packed_head(git, file)
    if not os.path.lexists(f"{directory}/.git"):
        git.run("init -q")
        git.run("symbolic-ref HEAD", branch or "refs/heads/main")
    git.run("fetch -q", file, f"+HEAD:refs/remotes/{shown}")
    own, on = git.ask("rev-parse -q --verify HEAD"), git.ask("symbolic-ref -q HEAD")
    follows = git.succeeds("diff --cached --quiet") and git.succeeds(
        "merge-base --is-ancestor HEAD", commit
    )
    if not own or (on == branch and follows):
        git.run("update-ref HEAD" if branch else "update-ref --no-deref HEAD", commit)
        git.run("reset -q --mixed")
    elif own != commit:  # the branch has commits of its own
        kept, new = _described(git, own), _described(git, commit)
        text = f"your branch is unchanged, at {kept}, but files are the bundle's, of {new}"
        print_messages(note=f"{text}: before you commit, compare: git diff; git log {shown}")
