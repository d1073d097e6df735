"""An external repository: cloned once; from then on the state of its code is the user's.

On its way to a machine without network it is a git bundle with all branches and tags; each
submodule of the configured commit has one of its own.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import sys
from pathlib import Path
from shlex import quote

from lib.repositories.git import READ_ABOVE, Git, GitError, show, show_output
from lib.repositories.repository import (
    BRING_BUNDLES,
    Configured,
    Progress,
    Repository,
    bundle_of,
)
from lib.script.errors import LongshipError, write_error

HEADS = "+refs/heads/*:refs/remotes/origin/*"


def clone(configured: Configured) -> Repository:
    """Clone a repository to its place, complete or not at all, at the configured commit.

    Without old files' contents, where the server can do that: git fetches them when needed.
    """
    partial = configured.directory.with_name(f"{configured.name}.partial")
    # when the script ends this process, what is not complete is removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        shutil.rmtree(partial, ignore_errors=True)
        _clone_to(configured, partial)
        partial.rename(configured.directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return Repository(configured)


def _clone_to(configured: Configured, partial: Path) -> None:
    repository, source = Repository(configured, partial), configured.source()
    blobless = "" if configured.bundles else "--filter=blob:none"
    clone_from(configured.name, source, partial, f"--origin origin --no-checkout {blobless}")
    repository.run("remote set-url origin", configured.url)
    # default branch and tags of the server, apart from what the user makes
    repository.run("update-ref refs/longship/default HEAD")
    create = "--format=create refs/longship/tags/%(refname:strip=2) %(objectname)"
    tags = repository.run("for-each-ref", create, "refs/tags")
    repository.run("update-ref --stdin", given=tags)
    target = find_target(repository)
    try:
        _check_out(repository, target)
    except GitError as error:
        message = f"cannot create {configured.directory}"
        raise write_error(configured.repositories, message, READ_ABOVE) from error
    fetch_submodules(repository)
    add_upstream(repository)
    # what an installation from it leaves there is no change of the user's
    (partial / ".git/info").mkdir(exist_ok=True)
    with open(partial / ".git/info/exclude", "a", encoding="utf-8") as file:
        file.write("*.egg-info/\n/build/\n__pycache__/\n")
    repository.run("update-ref refs/longship/base", target)


def clone_from(name: str, source: str | Path, directory: Path, options: str) -> None:
    """Let git clone; stop with a reason where it fails."""
    command = f"clone --quiet {options} --"
    Git(Path()).fetch(name, str(source), command, source, directory, writes=directory.parent)


def _check_out(repository: Repository, target: str) -> None:
    """Check a commit out, on a branch that follows the configured one, else on none."""
    ref = repository.configured.ref
    if not ref:
        repository.run("checkout --quiet")
    elif repository.commit_of(f"refs/remotes/origin/{ref}") == target:
        repository.run("checkout --quiet -B", ref, "--track", f"origin/{ref}")
    else:
        repository.run("checkout --quiet --detach", target)


def add_upstream(repository: Repository) -> None:
    """Add the original of a fork as a second remote."""
    upstream = repository.configured.upstream
    if upstream and not repository.succeeds("remote get-url upstream"):
        repository.run("remote add upstream", upstream)


def find_target(repository: Repository) -> str:
    """Return the commit that is configured."""
    configured = repository.configured
    ref = configured.ref
    if ref:
        names = (f"refs/longship/tags/{ref}", f"refs/remotes/origin/{ref}")
        return find_commit(repository, *names)
    return repository.commit_of("refs/longship/default")


def find_commit(repository: Repository, *names: str) -> str:
    """Return the commit of the first of some names that there is, or the one that ref is itself."""
    for name in names:
        if found := repository.commit_of(name):
            return found
    configured = repository.configured
    name, url, ref = configured.name, configured.url, configured.ref
    if re.fullmatch("[0-9a-f]{7,64}", ref):
        if not repository.commit_of(ref):
            repository.succeeds("fetch --quiet --", configured.source(), ref)
        if found := repository.commit_of(ref):
            return found
    if configured.bundles:
        message = f"{name}: ref not found in {configured.source()}: {ref}"
        raise LongshipError(message, BRING_BUNDLES)
    raise LongshipError(
        f"{name}: tag, branch or commit not found in {url}: {ref}",
        f"list the refs: git ls-remote {quote(url)}; then set ref in configuration.toml",
    )


def fetch_submodules(repository: Repository) -> None:
    """Check all submodules out at the commits that their repositories name, with theirs."""
    name, bundles = repository.name, repository.configured.bundles
    if not (repository.directory / ".gitmodules").exists():
        return
    command = "submodule --quiet update --init --checkout"
    if not bundles:
        repository.run("submodule --quiet sync --recursive")
        _update_submodules(repository, f"{command} --recursive")
        return
    for wanted, path, submodule in repository.submodules():
        repository.run("submodule --quiet init --", path)
        bundle = bundle_of(bundles, submodule.name)
        if not submodule.is_cloned():
            listed = r"config -z --file .gitmodules --get-regexp ^submodule\..*\.path$"
            keys = dict(each.split("\n")[::-1] for each in repository.names(listed))
            repository.run("config", f"{keys[path][: -len('path')]}url", bundle)
        elif not submodule.commit_of(wanted):
            submodule.fetch(name, str(bundle), "fetch --quiet", bundle, HEADS, "HEAD")
        _update_submodules(repository, f"-c protocol.file.allow=always {command} --", path)
        repository.run("submodule --quiet sync --", path)
        fetch_submodules(submodule)


def _update_submodules(repository: Repository, *command: str) -> None:
    fetched, output = repository.attempt(*command)
    if not fetched:
        show_output(output)
        message = f"{repository.name}: cannot fetch its submodules"
        without = "without network: python3 set_up.py offline"
        hint = f"{READ_ABOVE}; {BRING_BUNDLES if repository.configured.bundles else without}"
        raise write_error(repository.directory, message, hint)


# ----- bundles


def download(configured: Configured, bundles: Path, mirrors: Path) -> None:
    """Make or renew the bundles of a repository; mirrors are kept for the next time."""
    name, url, ref = configured.name, configured.url, configured.ref
    mirror = Repository(configured, mirrors / f"{name}.git")
    _clone_once(name, url, mirror.directory, "--bare")
    _begin(mirror)
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


def _begin(repository: Repository) -> None:
    """Remove the locks that a killed git has left since the last time: nobody else works here."""
    repository.remove_locks(Progress([]))


def _make_bundle(repository: Repository, file: Path, refs: str) -> None:
    """Make a bundle, complete or not there; one that holds the same and is unchanged is kept."""
    refs_there = hashlib.sha256(repository.run("show-ref --head")).hexdigest()
    state_file, partial = (file.with_name(f"{file.name}.{each}") for each in ("state", "partial"))
    if file.exists() and state_file.exists():
        made, written = file.stat(), state_file.stat()
        state = f"{refs_there} {made.st_size}".encode()
        if made.st_mtime_ns <= written.st_mtime_ns and state_file.read_bytes() == state:
            return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.with_name(f"{partial.name}.lock").unlink(missing_ok=True)  # of a killed git
        repository.run("bundle create --quiet", partial, *refs.split())
        partial.replace(file)
        state_file.write_bytes(f"{refs_there} {file.stat().st_size}".encode())
    except (OSError, GitError) as error:
        show(str(error))
        partial.unlink(missing_ok=True)
        raise write_error(file.parent, f"cannot write {file}", READ_ABOVE) from error


def _download_submodules(mirror: Repository, bundles: Path, target: str) -> None:
    """Let git itself find and fetch submodules, in a working tree for that."""
    configured = mirror.configured
    work = Repository(configured, mirror.directory.with_name(f"{configured.name}.work"))
    _clone_once(work.name, mirror.directory, work.directory, "--no-checkout")
    _begin(work)
    work.run("remote set-url origin", configured.url)
    work.run("fetch --quiet", mirror.directory, "refs/longship/wanted")
    work.run("checkout --quiet --force --detach", target)
    for words in ("sync --recursive", "update --init --recursive --force"):
        fetched, output = work.attempt(f"submodule --quiet {words}")
        if not fetched:
            show_output(output)
            raise LongshipError(f"{work.name}: cannot fetch its submodules", READ_ABOVE)
    listed = 'printf "%s\\0" "$displaypath"'
    for path in work.names("submodule --quiet foreach --recursive", listed):
        submodule = Repository(configured, work.directory / path, f"{work.name}/{path}")
        submodule.run("update-ref refs/longship/wanted HEAD")
        refs = "HEAD refs/longship/wanted --branches --remotes --tags"
        _make_bundle(submodule, bundles / f"{submodule.name}.bundle", refs)
