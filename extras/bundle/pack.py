"""Packs a bundle: writes what is new, removes what has gone, and never packs a secret."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from shlex import quote

from extras.bundle import tree
from lib.repositories.git import Git
from lib.script.errors import LongshipError, print_messages, write_error
from lib.script.output import size_text
from lib.script.records import content_of, read_record
from lib.script.secrets import SECRET, has_secret

_SECRET_NAME = re.compile(
    r"(.*/)?(\.netrc|_netrc|id_(rsa|dsa|ecdsa|ed25519).*|token|stored_tokens|\.env|\.git-credentials"
    r"|\.pypirc|credentials|configuration\.local\.toml|\.(ssh|aws|gnupg)/.*)"
)
_TEXT_BYTES = 1 << 20  # larger files are data, which can contain anything that looks like a key
_UNFINISHED = re.compile(r"\.partial([./]|$)|\.lock(\..*)?/owner$")
_PIP = (
    *("-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-user", "--no-deps"),
    *("--no-compile", "--only-binary=:all:", "--python-version=3.9", "--implementation=py"),
    *("--abi=none", "--platform=any", "--target"),
)
# Begins the second line of each unpack.sh.
_UNPACK = "# Unpack this bundle on an air-gapped machine"


def pack(options: Namespace) -> None:
    """Write what is new, remove what no longer belongs to the bundle, and write the checksums."""
    bundle, manifest = options.bundle, f"{options.bundle}/SHA256SUMS"
    _check_downloads(options)
    _check_directory(options)
    options.step("Collecting the files of the bundle")
    files, known = _collect(options), {}
    with suppress(LongshipError):  # of a new bundle, or of an interrupted pack
        known = tree.read_sums(manifest)
    sums = _unchanged(bundle, files, known)
    changed = [name for name in files if name not in sums]
    gone = known.keys() - files.keys()
    _check_secrets(files, changed, options)
    if changed or gone:
        options.step(f"Writing {len(changed)} and removing {len(gone)} of {len(files)} files")
        for path in (manifest, *(f"{bundle}/{name}" for name in gone)):
            with suppress(FileNotFoundError):
                os.unlink(path)
        sums.update(tree.copy_files(bundle, {name: files[name] for name in changed}))
    options.step("Comparing the downloads with their records")
    _check_records(options, sums)
    if sums == known and not changed:
        return print_messages(note=f"up to date: {bundle}")
    tree.write_sums(manifest, sums)
    size = sum(os.stat(each).st_size for each in files.values())
    print_messages(note=f"{len(files)} files, {size_text(size)}: {bundle}")


def _check_downloads(options: Namespace) -> None:
    """Stop if something has not been downloaded."""
    missing = {}  # the command that downloads it
    for name, image, command in options.need:
        found = glob.glob(f"{glob.escape(options.offline)}/{name}")
        if not found:
            missing[f"{options.offline}/{name}".replace(".???.json", ".tar or .sif")] = command
        elif image and f"# image: {image}" not in tree.read_lines(found[0]):
            missing[f"packages for the image {image}; {found[0]} is for another one"] = command
    for part in missing:
        print_messages(note=f"missing: {part}")
    if missing:
        message = f"{len(missing)} parts of the bundle have not been downloaded"
        raise LongshipError(message, f"run: {'; '.join(dict.fromkeys(missing.values()))}")


def _check_directory(options: Namespace) -> None:
    """Stop if DIR contains other things than a bundle, or would be packed itself."""
    bundle, hint = options.bundle, "name a new directory"
    if bundle.startswith(f"{options.offline}/"):
        raise LongshipError(f"the bundle would contain itself: {bundle}", hint)
    if os.path.lexists(bundle) and not os.path.isdir(bundle):
        raise LongshipError(f"not a directory: {bundle}", hint)
    if os.path.isdir(bundle) and os.listdir(bundle) and not _is_bundle(bundle):
        raise LongshipError(f"the directory is not empty, and contains no bundle: {bundle}", hint)


def _is_bundle(directory: str) -> bool:
    """Tell whether a directory contains a bundle, or what an interrupted `pack` has left of one."""
    with suppress(LongshipError, OSError):
        tree.read_sums(f"{directory}/SHA256SUMS")
        return True
    with suppress(OSError):
        if any(each.startswith(_UNPACK) for each in tree.read_lines(f"{directory}/unpack.sh")[1:2]):
            return True
    with suppress(OSError):  # tree.copy_files names what is not complete by its thread
        return all(each.isdecimal() for each in os.listdir(f"{directory}/.partial"))
    return False


def _collect(options: Namespace) -> dict[str, str]:
    """Return the source of everything that belongs to the bundle, by its name there."""
    files = {"unpack.sh": f"{options.directory}/extras/bundle/unpack.sh"}
    files.update({**_packages(options), **_history(options)})
    found = [(f"repository/{name}", f"{options.directory}/{name}") for name in _listed(options)]
    found += [(f"offline/{name}", f"{options.offline}/{name}") for name in _downloads(options)]
    for name, source in found:
        if not tree.is_inside(name):
            message = f"the name contains a backslash or a control character: {quote(source)}"
            raise LongshipError(message, "rename that file")
        if os.path.islink(source):
            hint = "replace the link by what it points to; or let git ignore it"
            raise LongshipError(f"cannot pack the symbolic link {source}", hint)
        if os.path.isfile(source):
            files[name] = source
        elif os.path.isdir(source):
            print_messages(note=f"not packed: {source} is a git repository")
        elif os.path.lexists(source):
            hint = f"remove it, then run the same command again: rm {quote(source)}"
            raise LongshipError(f"cannot pack {source}: it is not a regular file", hint)
    for each in sorted({*options.named}.difference(files.values())):
        text = f"not packed: {each}, which the configuration names"
        print_messages(note=f"{text}: git ignores it, or it is not in {options.directory}")
    return files


def _listed(options: Namespace) -> list[str]:
    """Return the names of the files of the repository that git does not ignore."""
    if not os.path.exists(f"{options.directory}/.git"):
        raise LongshipError(f"not a git repository: {options.directory}", "pack from a git clone")
    git = Git(Path(options.directory))
    found = git.names("ls-files -z --cached --others --exclude-standard")
    left_out = tuple(f"{each}/" for each in options.leave_out)
    names = sorted({each.rstrip("/") for each in found})
    return [name for name in names if not f"{name}/".startswith(left_out)]


def _downloads(options: Namespace) -> list[str]:
    """Return the names of the image's archives, and of all other downloads that are complete."""
    names = []
    for record in [name for name, *_ in options.need if name.endswith(".json")]:
        found = glob.glob(f"{glob.escape(options.offline)}/{record}")
        names += [os.path.relpath(each, options.offline) for each in found]
    names += [each[: -len(".json")] for each in names]  # the archive itself
    for part in ("pip", "repos", "assets"):
        names += [f"{part}/{each}" for each in tree.walk(f"{options.offline}/{part}")]
    return sorted(each for each in names if not _UNFINISHED.search(each))


def _unchanged(bundle: str, files: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    """Return the checksums of the files that the bundle already contains as they are."""
    sums, doubtful = {}, []
    for name, source in files.items():
        new, old = os.stat(source), None
        with suppress(OSError):
            old = os.lstat(f"{bundle}/{name}")
        if not old or old.st_size != new.st_size or (old.st_mode ^ new.st_mode) & 0o100:
            continue
        if name in known and old.st_mtime_ns == new.st_mtime_ns:
            sums[name] = known[name]
        else:
            doubtful.append(name)
    there = tree.hash_files(bundle, doubtful)
    right = tree.hash_files("/", (files[name] for name in doubtful))
    for name in doubtful:
        if right[files[name]] == there[name] != "":
            sums[name] = there[name]
            shutil.copystat(files[name], f"{bundle}/{name}")
    return sums


def _check_records(options: Namespace, sums: dict[str, str]) -> None:
    """Stop if a download is damaged, or if something is missing that its record promises."""
    commands = "; ".join(dict.fromkeys(command for *_, command in options.need))
    for name in [each[len("offline/") :] for each in sums if each.startswith("offline/")]:
        record, directory, promised = f"{options.offline}/{name}", os.path.dirname(name), {}
        hint = f"run: {commands}; or, if it is not needed: rm {quote(record)}"
        if name.endswith((".sha256", ".asset")):
            promised = tree.read_sums(record, hint)
        elif name.endswith((".tar.json", ".sif.json")):
            checksum = read_record(Path(record)).get("sha256", "")
            promised = {os.path.basename(name)[: -len(".json")]: checksum[len("sha256:") :]}
        for each, checksum in promised.items():
            if sums.get(f"offline/{directory}/{each}") != checksum:
                file = quote(f"{options.offline}/{directory}/{each}")
                message = f"{file} is missing, or does not match its checksum in {record}"
                raise LongshipError(message, hint.replace("run:", f"run: rm -f {file};", 1))


def _check_secrets(files: dict[str, str], changed: list[str], options: Namespace) -> None:
    """Stop if one of the changed files is a secret, or a text that contains one."""
    for each in changed:
        source, (part, _, name) = Path(files[each]), each.partition("/")
        if part not in ("repository", "offline") or name in options.allow:
            continue
        text = content_of(source, _TEXT_BYTES)
        if _SECRET_NAME.fullmatch(name) or (b"\0" not in text and has_secret(text)):
            hint = f"move that file elsewhere; or, if it is not a secret: --allow {quote(name)}"
            raise LongshipError(f"{source} looks like a token or key", hint)


def _packages(options: Namespace) -> dict[str, str]:
    """Return the files of the scripts' own packages, for every Python; pip installs them once."""
    lines = tree.read_lines(f"{options.directory}/requirements/host.txt")
    needed = [re.sub("[#;].*", "", line).strip() for line in lines]  # pip would judge the markers
    needed = [each for each in needed if each]
    directory, record = f"{options.work}/host", f"{options.work}/host.sha256"
    names: list[str] = []
    with suppress(LongshipError):
        sums = tree.read_sums(record)
        if tree.hash_files(directory, sums) == sums and f"# {needed}" in tree.read_lines(record):
            names = list(sums)
    if not names:
        print_messages(note=f"downloading {' '.join(needed)}")
        shutil.rmtree(directory, ignore_errors=True)  # damaged, or of a pip that was killed
        own = f"{options.directory}/.venv/bin/python"
        python = own if os.path.exists(own) else sys.executable
        if subprocess.run([python, *_PIP, directory, *needed], stdout=sys.stderr).returncode:
            message = f"cannot download the packages of the scripts: {' '.join(needed)}"
            hint = "pip's output above has the details; without pip, run: python3 -m venv .venv"
            raise write_error(options.work, message, hint)
        names = tree.walk(directory)
        tree.write_sums(record, tree.hash_files(directory, names), f"# {needed}")
    return {f"host/{name}": f"{directory}/{name}" for name in names}


def _history(options: Namespace) -> dict[str, str]:
    """Return a git bundle of the current branch, or nothing."""
    git, file = Git(Path(options.directory)), f"{options.work}/longship.bundle"
    commit = git.ask("rev-parse -q --verify HEAD")
    if options.no_history:
        return {}
    if not commit or git.ask("rev-parse --is-shallow-repository") == "true":
        print_messages(note="no git history is packed: this clone has no commits, or is shallow")
        return {}
    refs = ["HEAD", *git.ask("symbolic-ref -q HEAD").split()]
    heads = git.ask("bundle list-heads", file).splitlines()
    if set(heads) != {f"{commit} {ref}" for ref in refs}:
        _check_history(git, options)
        Path(f"{file}.partial.lock").unlink(missing_ok=True)  # of a git that was killed
        git.run("bundle create -q", f"{file}.partial", *refs)
        os.replace(f"{file}.partial", file)
    return {"longship.bundle": file}


def _check_history(git: Git, options: Namespace) -> None:
    """Stop if a commit contains what looks like a secret."""
    message = "the git history contains a file named like a secret"
    names = git.names("log --name-only --format= --no-renames -z HEAD")
    found = [each for each in names if _SECRET_NAME.fullmatch(each) and each not in options.allow]
    if not found:
        message = "the git history contains what looks like a token or key"
        exclude = [f":(exclude,top,literal){each}" for each in options.allow]
        log = "log --name-only -m --no-ext-diff --no-textconv --format=commit:%h"
        found = git.text(log, f"-G{SECRET}", "HEAD", "--", ".", *exclude).split("\n")[:3]
    if any(found):
        hint = (
            "remove it from the history (git filter-repo); or leave out the history: "
            "--no-history; or accept it: --allow FILE"
        )
        raise LongshipError(f"{message}: {' '.join(found)}", hint)
