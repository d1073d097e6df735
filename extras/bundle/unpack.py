"""Verifies and unpacks a bundle; what somebody has changed since the last time is kept."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import zipfile
from argparse import Namespace
from collections.abc import Iterable
from contextlib import suppress
from filecmp import cmp
from shlex import quote

from extras.bundle import tree
from lib.script.errors import LongshipError, print_messages


def verify(options: Namespace) -> None:
    """Verify the bundle; if it is to be unpacked, create the directory for this repository."""
    bundle, directory = options.bundle, options.target
    if directory and f"{directory}/".startswith(f"{bundle}/"):
        raise LongshipError(
            f"{directory} is in the bundle", f"name a directory outside of {bundle}"
        )
    # an interrupted unpacking has recorded what it was about to write
    own = [f"{directory}/bundle.py", f"{directory}/.cache/bundle"]
    if directory and os.path.lexists(directory) and not any(map(os.path.exists, own)):
        names = os.listdir(directory) if os.path.isdir(directory) else [directory]
        if not all(name == ".cache" or name.startswith(".unpack.") for name in names):
            message = f"the directory contains other files than this repository: {directory}"
            raise LongshipError(message, "name a new directory: bash unpack.sh TARGET")
    options.step("Verifying the bundle")
    print_messages(note=f"complete, {tree.verify(bundle)} files: {bundle}")
    if directory:
        os.makedirs(directory, exist_ok=True)


def unpack_offline(options: Namespace) -> None:
    """Unpack what the offline modes read."""
    directory = options.target
    options.step(f"Unpacking the image, packages, repositories and assets to {directory}")
    _unpack(options.bundle, "offline", directory, f"{directory}/.unpacked")


def unpack_repository(options: Namespace) -> None:
    """Unpack this repository, the packages of its scripts and its history."""
    bundle, directory = options.bundle, options.target
    options.step(f"Unpacking the repository to {directory}")
    _unpack(bundle, "repository", directory, f"{directory}/.cache/bundle")
    options.step("Installing the packages of the scripts")
    _install_packages(glob.glob(f"{glob.escape(bundle)}/host/*.whl"), directory)
    options.step("Restoring the git history")
    if os.path.exists(f"{bundle}/longship.bundle"):
        _restore_history(f"{bundle}/longship.bundle", directory)


def _unpack(bundle: str, part: str, directory: str, memory: str) -> None:
    """Unpack a directory of the bundle; MEMORY/unpacked lists what was unpacked."""
    manifest = tree.read_manifest(bundle)
    sums, links = (
        {name[len(part) + 1 :]: each for name, each in all_.items() if name.startswith(f"{part}/")}
        for all_ in (manifest, tree.read_links(bundle, manifest))
    )
    _check_parents(directory, [*sums, *links])
    before = set(tree.read_lines(f"{memory}/unpacked"))
    now = [f"{sums[name]} {name}" for name in sums] + [f"-> {links[name]} {name}" for name in links]
    new, kept = _compare(directory, sums, before)
    os.makedirs(memory, exist_ok=True)
    tree.replace_file(f"{memory}/unpacked", {*before, *now})
    copies = {f"{directory}/{name}": f"{bundle}/{part}/{name}" for name in new}
    for name in kept:
        source, beside = f"{bundle}/{part}/{name}", f"{directory}/{name}.new"
        number = 1
        while os.path.lexists(beside) and not (
            tree.is_regular(beside) and cmp(source, beside, shallow=False)
        ):
            number += 1
            beside = f"{directory}/{name}.new{number}"
        text = f"kept your modified {directory}/{name}; the bundle's version is {beside}"
        print_messages(note=text)
        if not os.path.lexists(beside):
            copies[beside] = source
    tree.copy_files(copies, f"{directory}/.unpack.partial")
    count = len(copies) + sum(_make_link(directory, name, links[name], before) for name in links)
    if part == "repository":
        _remove_former(directory, before, sums)
    else:  # downloads of another bundle stay, and can be in the next one again
        files = (line for line in before if not line.startswith("-> "))
        now += [line for line in files if line.partition(" ")[2] not in sums]
    tree.replace_file(f"{memory}/unpacked", now)
    print_messages(note=f"{count} new files in {directory}")


def _check_parents(directory: str, names: Iterable[str]) -> None:
    """Stop if a link, which leads elsewhere, or a file has the name of a directory."""
    for parent, name in {each: file for file in names for each in tree.parents(file)}.items():
        path = f"{directory}/{parent}"
        if os.path.islink(path):
            hint = "replace the link by a directory, then run the same command again"
            raise LongshipError(f"cannot unpack {name}: {path} is a symbolic link", hint)
        if os.path.lexists(path) and not os.path.isdir(path):
            hint = "move that file, then run the same command again"
            raise LongshipError(f"cannot unpack {name}: {path} is not a directory", hint)


def _compare(directory: str, sums: dict[str, str], before: set[str]) -> tuple[list[str], list[str]]:
    """Return the names of files to write, and of those that somebody has changed."""
    present = [f"{directory}/{name}" for name in sums if tree.is_regular(f"{directory}/{name}")]
    found = tree.hash_files(present)
    if len(found) < len(present):
        message = f"cannot read some files in {directory}, to compare them with the bundle"
        raise LongshipError(message, f"run: chmod -R u+r {quote(directory)}")
    new, kept = [], []
    for name, wanted in sums.items():
        checksum = found.get(f"{directory}/{name}")
        if checksum != wanted:
            is_ours = f"{checksum} {name}" in before or not os.path.lexists(f"{directory}/{name}")
            (new if is_ours else kept).append(name)
    return new, kept


def _make_link(directory: str, name: str, target: str, before: set[str]) -> bool:
    """Make a link, unless somebody has put something else there; tell whether it is new."""
    link, new = f"{directory}/{name}", f"{directory}/.unpack.link"
    found = os.readlink(link) if os.path.islink(link) else ""
    if found == target:
        return False
    if os.path.lexists(link) and f"-> {found} {name}" not in before:
        text = f"kept your modified {link}; the bundle's version is a link to {target}"
        print_messages(note=text)
        return False
    os.makedirs(os.path.dirname(link), exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(new)
    os.symlink(target, new)
    os.replace(new, link)
    return True


def _remove_former(directory: str, before: set[str], sums: dict[str, str]) -> None:
    """Remove what was unpacked before, has not changed, and is not part of the repository any more.

    Its functions would still be found. Downloads can belong to another bundle, and stay.
    """
    names = {line.partition(" ")[2] for line in before if not line.startswith("-> ")} - sums.keys()
    paths = (f"{directory}/{name}" for name in names if tree.is_inside(name))
    for path, checksum in tree.hash_files(filter(tree.is_regular, paths)).items():
        if f"{checksum} {path[len(directory) + 1 :]}" in before:
            os.unlink(path)


def _install_packages(wheels: list[str], directory: str) -> None:
    """Install wheels into .venv, unless it has them already."""
    if glob.glob(f"{glob.escape(directory)}/.venv/lib/*/site-packages/click/__init__.py"):
        return
    version = "python{}.{}".format(*sys.version_info)
    packages, new = f"{directory}/.venv/lib/{version}/site-packages", f"{directory}/.venv.partial"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(packages, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(new)
    for name in sorted(os.listdir(new), key="click".__eq__):  # click is the mark of a complete one
        if not os.path.lexists(f"{packages}/{name}"):
            os.rename(f"{new}/{name}", f"{packages}/{name}")
    shutil.rmtree(new)


def _restore_history(file: str, directory: str) -> None:
    """Make a clone like the packed one, or bring it up to date.

    Its files are there already: those that differ from the commit are the changes packed with it.
    """
    if not shutil.which("git"):
        text = (
            "git not found: unpacked without history; once git is installed, run the same command"
        )
        return print_messages(note=f"{text} again")
    git = ("git", "-C", directory)
    heads = tree.run("git", "bundle", "list-heads", file).stdout.split()
    commit, branch = heads[0], "".join(name for name in heads[1::2] if name != "HEAD")
    short = branch[len("refs/heads/") :] or "HEAD"  # it was packed on no branch
    if not os.path.lexists(f"{directory}/.git"):
        return _make_clone(file, directory)
    done = tree.run(*git, "fetch", "-q", file, f"+HEAD:refs/remotes/bundle/{short}")
    if done.returncode:
        text = f"git cannot fetch the history of the bundle: {tree.last_line(done)}"
        print_messages(note=text)
    elif tree.run(*git, "rev-parse", "HEAD").stdout.strip() == commit:
        pass
    elif tree.run(*git, "symbolic-ref", "-q", "HEAD").stdout.strip() == branch and not any(
        tree.run(*git, *each).returncode
        for each in (
            ("diff", "--cached", "--quiet"),
            ("merge-base", "--is-ancestor", "HEAD", commit),
        )
    ):
        tree.run(*git, "update-ref", "-m", "bundle: unpack", "HEAD", commit)
        tree.run(*git, "reset", "-q", "--mixed")
    else:  # the branch has commits of its own
        text = f"your branch is unchanged; show the bundle's branch: git log bundle/{short}"
        print_messages(note=text)


def _make_clone(file: str, directory: str) -> None:
    """Put the packed history around the files; the clone is complete or does not exist."""
    new = f"{directory}/.unpack.partial"
    shutil.rmtree(new, ignore_errors=True)
    for command in (
        ("clone", "-q", "--no-checkout", file, new),
        ("-C", new, "remote", "remove", "origin"),
        (f"--git-dir={new}/.git", f"--work-tree={directory}", "reset", "-q", "--mixed"),
    ):
        done = tree.run("git", *command)
        if done.returncode:
            reason = tree.last_line(done)
            print_messages(note=f"unpacked without history: git failed: {reason}")
            break
    else:
        os.rename(f"{new}/.git", f"{directory}/.git")
    shutil.rmtree(new, ignore_errors=True)
