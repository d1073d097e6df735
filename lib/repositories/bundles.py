"""An external repository on its way to a machine without network: a git bundle.

It has all branches and tags; each submodule of the configured commit has one of its own.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from lib.repositories.clone import clone_from, find_commit
from lib.repositories.git import READ_ABOVE, GitError, show, stop_writing
from lib.repositories.repository import Configured, Repository
from lib.script.errors import LongshipError


def download(configured: Configured, bundles: Path, mirrors: Path) -> None:
    """Make or renew the bundles of a repository; mirrors are kept for the next time."""
    name, url, ref = configured.name, configured.url, configured.ref
    mirror = Repository(configured, mirrors / f"{name}.git")
    _clone_once(name, url, mirror.directory, "--bare")
    refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+HEAD:refs/longship/default")
    mirror.fetch(name, url, "fetch --quiet --prune --", url, *refs)
    mirror.run("update-ref --no-deref HEAD refs/longship/default")
    names = (f"refs/tags/{ref}", f"refs/heads/{ref}") if ref else ("HEAD",)
    target = find_commit(mirror, *names)
    mirror.run("update-ref refs/longship/wanted", target)
    bundle = bundles / f"{name}.bundle"
    _make_bundle(mirror, bundle, "HEAD --branches --tags refs/longship/wanted")
    if mirror.text("ls-tree --name-only", target, ".gitmodules"):
        _download_submodules(mirror, bundles, target)
    show(f"{name}: {mirror.shown(target)}, {bundle}")


def _clone_once(name: str, source: str | Path, directory: Path, option: str) -> None:
    """Clone what is not there yet, complete or not at all."""
    partial = directory.with_name(f"{directory.name}.partial")
    if not directory.exists():
        if partial.exists():
            shutil.rmtree(partial)
        clone_from(name, source, partial, option)
        partial.rename(directory)


def _make_bundle(repository: Repository, file: Path, refs: str) -> None:
    """Make a bundle, complete or not there; one that holds the same is left as it is."""
    state = hashlib.sha256(repository.run("show-ref --head")).hexdigest().encode()
    state_file, partial = (file.with_name(f"{file.name}.{each}") for each in ("state", "partial"))
    if file.exists() and state_file.exists() and state_file.read_bytes() == state:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        repository.run("bundle create --quiet", partial, *refs.split())
        partial.replace(file)
        state_file.write_bytes(state)
    except (OSError, GitError) as error:
        show(str(error))
        partial.unlink(missing_ok=True)
        stop_writing(file.parent, f"cannot write {file}", READ_ABOVE)


def _download_submodules(mirror: Repository, bundles: Path, target: str) -> None:
    """Let git itself find and fetch submodules, in a working tree for that."""
    configured = mirror.configured
    work = Repository(configured, mirror.directory.with_name(f"{configured.name}.work"))
    _clone_once(work.name, mirror.directory, work.directory, "--no-checkout")
    work.run("remote set-url origin", configured.url)
    work.run("fetch --quiet", mirror.directory, "refs/longship/wanted")
    work.run("checkout --quiet --force --detach", target)
    for words in ("sync --recursive", "update --init --recursive --force"):
        fetched, output = work.attempt(f"submodule --quiet {words}")
        if not fetched:
            show(output)
            raise LongshipError(f"{work.name}: cannot fetch its submodules", READ_ABOVE)
    listed = 'printf "%s\\0" "$displaypath"'
    for path in work.names("submodule --quiet foreach --recursive", listed):
        submodule = work.submodule(path)
        submodule.run("update-ref refs/longship/wanted HEAD")
        refs = "HEAD refs/longship/wanted --branches --remotes --tags"
        _make_bundle(submodule, bundles / f"{submodule.name}.bundle", refs)
