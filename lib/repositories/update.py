"""Install and update an external repository, take an update back, save patches."""

from __future__ import annotations

import os
import re
import shutil

from lib.repositories.clone import HEADS, add_upstream, clone, fetch_submodules, find_target
from lib.repositories.git import GitError, note, show
from lib.repositories.move import is_as_in, move, raise_changed
from lib.repositories.patches import (
    Header,
    commit_tree,
    is_as_configured,
    patches_in,
    series_checksum,
    squash,
    wanted_settings,
    write_commit,
)
from lib.repositories.replay import GO_ON, discard, prepare, replay
from lib.repositories.repository import Configured, Progress, Repository
from lib.repositories.snapshot import keep, take_snapshot
from lib.script.errors import LongshipError, write_error

_MOST_ROUNDS = 3  # in which an update replays what is saved while it replays
_UPDATE = "python3 set_up.py update"


def install(configured: Configured) -> None:
    """Clone a repository; what is there is left alone."""
    repository = Repository(configured)
    if not configured.exists():
        _install_new(configured)
    elif not repository.is_cloned():
        note(f"{configured.directory} is not a git repository; left unchanged")
    else:
        progress = repository.progress()
        check_not_waiting(repository, progress)
        base = repository.commit_of("refs/longship/base")
        if (progress and progress.target) or (base and not any(repository.settings())):
            update(configured)  # it was killed while patches were applied
        elif not is_as_configured(repository):
            text = f"{configured.name} is not at the configured version"
            note(f"{text}; to update it, run: {_UPDATE}")


def _install_new(configured: Configured) -> None:
    """Clone a repository, complete or not there, and apply the patches of the group."""
    repository = clone(configured)
    target = repository.commit_of("refs/longship/base")
    if patches_in(configured.patches):
        _replay_on(repository, repository.begin(), target)
    else:
        _save_version(repository, target, target)
    show(f"{configured.name}: {repository.shown('HEAD')}")


def update(configured: Configured) -> None:
    """Update a repository to what is configured."""
    repository = Repository(configured)
    if not configured.exists():
        _install_new(configured)
        return
    repository.check_cloned()
    progress = repository.progress()
    check_not_waiting(repository, progress)
    if progress and progress.moving:
        _finish(repository, progress)
    elif progress:
        if progress.target:
            note(f"{configured.name}: the last update was interrupted; starting again")
        discard(repository, progress)
    repository.check_not_busy()
    repository.check_replayable()
    progress = repository.begin()
    _fetch(repository)
    target = find_target(repository)
    if _is_up_to_date(repository, target):
        show(f"{configured.name} is up to date: {repository.shown(target)}")
        repository.forget(progress)
    else:
        before = repository.shown("HEAD")
        _replay_on(repository, progress, target)
        show(f"{configured.name}: {before} -> {repository.shown(target)}")


def check_not_waiting(repository: Repository, progress: Progress | None) -> None:
    """Stop where an update waits for the user."""
    if progress and progress.conflicts is not None and not progress.moving:
        raise LongshipError(
            f"{repository.worktree().directory}: an update is waiting for you to resolve conflicts",
            f"resolve them (see git status) and git add the files, then {GO_ON}",
        )


def is_in_update(configured: Configured) -> bool:
    """Tell whether an update of a repository is under way."""
    repository = Repository(configured)
    return repository.is_cloned() and repository.state.exists()


def resume(configured: Configured) -> None:
    """Go on with an update after a conflict."""
    repository = Repository(configured)
    progress = repository.progress()
    if not progress or (progress.conflicts is None and not progress.moving):
        update(configured)  # it was killed: nothing to go on with
        return
    if not progress.moving:
        if not is_as_in(repository, progress):
            raise_changed(repository)
        replay(repository, progress)
    target = progress.target
    _finish(repository, progress)
    show(f"{configured.name}: updated to {repository.shown(target)}")


def abort(configured: Configured) -> None:
    """Give an update up; the repository itself was not touched yet."""
    repository = Repository(configured)
    progress = repository.progress()
    if progress and progress.moving:
        raise LongshipError(
            f"{configured.directory}: the files of the new version are in place already",
            f"run: {_UPDATE} --continue; to go back, set the former ref, then run: {_UPDATE}",
        )
    if progress:
        discard(repository, progress)
    show(f"{configured.name} is as before the update")


# ----- from the servers


def _fetch(repository: Repository) -> None:
    """Fetch; a configured commit that is there needs no network."""
    name, configured = repository.name, repository.configured
    add_upstream(repository)
    current = repository.ask("config --get remote.origin.url")
    if current != configured.url:
        words = "remote set-url origin" if current else "remote add origin"
        repository.run(words, configured.url)
        note(f"{name}: the remote origin is now {configured.url}; before: {current or 'none'}")
    elif re.fullmatch("[0-9a-f]{40}", configured.ref) and repository.commit_of(configured.ref):
        return
    shallow = repository.text("rev-parse --is-shallow-repository") == "true"
    # pruned, or a ref that the server no longer has would be found for ever
    fetch = "fetch --quiet --prune --unshallow" if shallow else "fetch --quiet --prune"
    # a bundle is no remote; of a server it must be told which one, for what is fetched later
    source = configured.source()
    refs = [HEADS, "+refs/tags/*:refs/longship/tags/*"]
    refs += [] if configured.ref else ["+HEAD:refs/longship/default"]
    repository.fetch(name, source, fetch, source if configured.bundles else "origin", *refs)
    if configured.upstream and not configured.bundles:
        repository.fetch(name, configured.upstream, "fetch --quiet upstream")


def _list_local_commits(repository: Repository, *excluded: str) -> list[str]:
    """Return the user's commits, oldest first.

    Those that neither some commits (such as the target) nor the server's default branch, configured
    branch and tags have. Other branches there can be where the user has pushed them.
    """
    branch = repository.settings()[1]
    names = ["refs/longship/base", "refs/longship/default", "refs/remotes/origin/HEAD"]
    names += [f"refs/remotes/origin/{branch}"] if branch else []
    theirs = [name for name in names if repository.commit_of(name)]
    others = ("--remotes=upstream", "--glob=refs/longship/tags")
    listed = "rev-list --reverse --topo-order HEAD --not"
    return repository.text(listed, *excluded, *theirs, *others).split()


def _is_up_to_date(repository: Repository, target: str) -> bool:
    """Tell whether HEAD is the target, the patches, and the user's commits."""
    patched = repository.commit_of("refs/longship/patched")
    return bool(
        patched
        and repository.commit_of("refs/longship/base") == target
        and is_as_configured(repository)
        and repository.succeeds("merge-base --is-ancestor", patched, "HEAD")
        # without an order: that of a history with merges depends on its dates
        and {*repository.text("rev-list HEAD --not", patched).split()}
        == {*_list_local_commits(repository, target, patched)}
    )


# ----- to the new version


def _replay_on(repository: Repository, progress: Progress, target: str) -> None:
    """Save the user's changes, replay them on the target, and exchange the files."""
    patches, base = repository.configured.patches, repository.commit_of("refs/longship/base")
    progress.tree, progress.branch = take_snapshot(repository), repository.branch()
    everything = _list_local_commits(repository, target)
    patched = repository.commit_of("refs/longship/patched") or target
    commits = _list_local_commits(repository, target, patched)
    common = repository.ask("merge-base HEAD", target) or target
    _check_submodules(repository, common, commits)
    commits = squash(repository, commits, common)
    if everything or repository.tree_of(progress.tree) != repository.tree_of("HEAD"):
        progress.saved = keep(repository, "refs/longship/saved", progress.tree)
    before = int(repository.text("rev-list --count", patched, "--not", base)) if base else 0
    if before > len(patches_in(patches)):
        now = len(patches_in(patches))
        text = f"{repository.name}: of {before} applied patches, {now} still exist"
        note(f"{text}; all are saved in {progress.saved}")
    prepare(repository, progress, target, patches, commits)
    replay(repository, progress)
    _finish(repository, progress)


def _check_submodules(repository: Repository, base: str, commits: list[str]) -> None:
    """Stop where the user's commits move a submodule."""
    changed = repository.names("diff-tree -r -z --raw", base, "HEAD") if commits else []
    for entry, path in zip(changed[::2], changed[1::2]):
        if "160000" in entry[:14]:
            raise LongshipError(
                f"{repository.directory}: your commits change the submodule {path}, which an "
                "update cannot replay",
                "push them to a branch of your own, and set it as ref in configuration.toml",
            )


def _finish(repository: Repository, progress: Progress) -> None:
    """Exchange the files, with what the user has saved meanwhile; let the submodules follow."""
    if not progress.moving:
        _replay_later_edits(repository, progress)
    if progress.moving != "submodules":
        move(repository, progress)
        _save_version(repository, progress.target, progress.done["patch"])
        progress.moving = "submodules"
        repository.save(progress)
        if progress.saved:
            text = f"your changes are replayed; saved as they were in {progress.saved}"
            show(f"{repository.name}: {text}")
    repository.remove_locks(progress)
    fetch_submodules(repository)
    repository.forget(progress)


def _replay_later_edits(repository: Repository, progress: Progress) -> None:
    """Replay what the user has saved since the snapshot, in files that are to be exchanged."""
    for rounds in range(_MOST_ROUNDS + 1):
        if not is_as_in(repository, progress):
            raise_changed(repository)
        now = take_snapshot(repository, reported=True)
        exchanged = repository.changed_files(progress.tree, progress.done["files"])
        edited = repository.changed_files(progress.tree, now) & exchanged
        if not edited:
            return
        if rounds == _MOST_ROUNDS:
            raise LongshipError(
                f"{repository.directory / min(edited)} changes all the time, and an update "
                "replaces it",
                f"end the program that writes to it; then {GO_ON}",
            )
        edits = repository.own_commit(repository.tree_of(now), "the files", progress.tree)
        saved = keep(repository, "refs/longship/saved", now, progress.saved)
        progress.saved, progress.tree = saved, now
        progress.todo = [["files", edits]]
        repository.save(progress)
        replay(repository, progress)


def _save_version(repository: Repository, target: str, patched: str) -> None:
    repository.run("update-ref refs/longship/base", target)
    repository.run("update-ref refs/longship/patched", patched)
    repository.save_settings(wanted_settings(repository.configured))


# ----- patches of the group


def save_patches(configured: Configured) -> None:
    """Write the changes of a repository to its directory in patches/."""
    directory, repository = configured.directory, Repository(configured)
    if not repository.is_cloned():
        note(f"repository not found: {directory}")
        return
    again = "then: python3 set_up.py save-patches"
    progress = repository.progress()
    check_not_waiting(repository, progress)
    if progress and progress.target:
        message = f"{directory}: an update was interrupted"
        raise LongshipError(message, f"run: {_UPDATE}; {again}")
    repository.check_not_busy()
    repository.check_replayable()
    base = repository.commit_of("refs/longship/base")
    if not base:
        raise LongshipError(
            f"{directory} was not cloned by set_up.py, so the start of your changes is unknown",
            f"run: {_UPDATE}",
        )
    # patches that somebody else has added must not be overwritten
    if repository.settings()[2] != series_checksum(configured.patches):
        message = f"{configured.patches} has changed since it was applied to {directory}"
        raise LongshipError(message, f"run: {_UPDATE}; {again}")
    theirs = (base, "--remotes", "--glob=refs/longship/tags")
    commits = repository.text("rev-list --reverse --topo-order HEAD --not", *theirs).split()
    if patches_in(configured.patches) and not commits and not _is_patched(repository):
        raise LongshipError(
            f"{directory} is at a commit without the changes in {configured.patches}",
            "check out the branch that has them; or, if your uncommitted changes replace them, "
            f"commit those; {again}; or, to drop the changes, delete {configured.patches}, "
            f"and run: {_UPDATE}",
        )
    commits += _commit_uncommitted(repository)
    common = repository.ask("merge-base", base, "HEAD") or base
    _check_submodules(repository, common, commits)
    _replace_series(repository, squash(repository, commits, common))


def _is_patched(repository: Repository) -> bool:
    """Tell whether HEAD has the commits that the patches were applied or saved as."""
    patched = repository.commit_of("refs/longship/patched")
    return not patched or repository.succeeds("merge-base --is-ancestor", patched, "HEAD")


def _commit_uncommitted(repository: Repository) -> list[str]:
    """Return a commit of all that is not committed, untracked too, if there is anything."""
    tree = repository.tree_of(take_snapshot(repository))
    if tree == repository.tree_of("HEAD"):
        return []
    ident = repository.text("var GIT_AUTHOR_IDENT")
    # no time of its own, or the same changes would be another patch each time
    author = b"author " + os.fsencode(ident.rpartition("> ")[0]) + b"> 946684800 +0000"
    header = Header(author, b"committer" + author[6:], b"Changes that were not committed\n")
    return [commit_tree(repository, tree, repository.commit_of("HEAD"), header)]


def _replace_series(repository: Repository, commits: list[str]) -> None:
    directory = repository.configured.patches
    if not commits and not patches_in(directory):
        note(f"{repository.name} has no local changes")
        return
    partial, names = directory / ".partial", set()
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for number, commit in enumerate(commits, 1):
            subject = repository.text("log -1 --format=%f", commit)
            names.add(re.sub("[-.]$", "", f"{number:04d}-{subject[:52]}") + ".patch")
            write_commit(repository, commit, partial / max(names))
        for name in names:
            (partial / name).replace(directory / name)
        partial.rmdir()
    except (OSError, GitError) as error:
        message = f"cannot write {directory}"
        raise write_error(directory, message, "read the error above", str(error)) from error
    replaced = sorted({each.name for each in patches_in(directory)} - names)
    for name in replaced:
        (directory / name).unlink()
    if replaced:
        note(f"{repository.name}: deleted the former {' '.join(replaced)}")
    repository.save_settings([*repository.settings()[:2], series_checksum(directory)])
    repository.run("update-ref refs/longship/patched HEAD")
    plural = "" if len(commits) == 1 else "es"
    show(f"{repository.name}: {len(commits)} patch{plural} in {directory}")
