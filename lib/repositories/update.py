"""Updates of an external repository: fetch, save changes, move, replay; and the way back.

A submodule is a repository of its own, which follows the commit that its repository names, with
the user's changes in it replayed in the same way. `git submodule update --rebase` refuses one with
changes that are not committed.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
from pathlib import Path

from lib.repositories.changes import (
    clear_untracked,
    commit_uncommitted,
    has_changes,
    save_changes,
    save_current_state,
    save_unfiltered_changes,
    take_snapshot,
    writing,
)
from lib.repositories.clone import HEADS, add_upstream, clone, fetch_submodules, find_target
from lib.repositories.git import note, show
from lib.repositories.patches import (
    has_merge,
    is_as_configured,
    patches_in,
    series_checksum,
    wanted_settings,
    write_series,
)
from lib.repositories.replay import GO_ON, replay, undo_update
from lib.repositories.repository import Configured, Repository
from lib.script.errors import LongshipError


def install(configured: Configured) -> None:
    """Clone a repository; what is there is left alone."""
    repository = Repository(configured)
    if not configured.exists():
        _install_new(configured)
    elif not repository.is_cloned():
        note(f"{configured.directory} is not a git repository; left unchanged")
    else:
        check_no_conflict(repository)
        if repository.state.has("step"):
            update(configured)  # it was killed while patches were applied
        elif not is_as_configured(repository):
            text = f"{configured.name} is not at the configured version"
            note(f"{text}; to update it, run: python3 set_up.py update")


def _install_new(configured: Configured) -> None:
    """Clone a repository, complete or not there, and apply the patches of the group."""
    partial = configured.directory.with_name(f"{configured.name}.partial")
    # when the script ends this process, what is not complete is removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        repository = clone(configured, partial)
        repository.begin_work()
        target = repository.commit_of("refs/longship/base")
        _start_update(repository, target, configured.patches)
        repository.state.save("step", "series")
        partial.rename(configured.directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    repository = Repository(configured)
    replay(repository)
    _finish_update(repository)
    show(f"{configured.name}: {repository.shown('HEAD')}")


def update(configured: Configured) -> None:
    """Update a repository to what is configured."""
    name, repository = configured.name, Repository(configured)
    if not configured.exists():
        _install_new(configured)
        return
    repository.check_cloned()
    state = repository.state
    check_no_conflict(repository)
    step = state.load("step")
    if step == "finished":
        _finish_update(repository)  # it stopped at a submodule
    else:
        if step:
            note(f"{name}: the last update was interrupted; restarting from the state before it")
        _restore_all(repository)
    repository.check_not_busy()
    repository.begin_work()
    _follow_url(repository)
    _fetch(repository)
    target = find_target(repository)
    if _is_up_to_date(repository, target):
        show(f"{name} is up to date: {repository.shown(target)}")
        state.forget()
        return
    _move(repository, target, configured.patches)
    _finish_update(repository)


def check_no_conflict(repository: Repository) -> None:
    """Stop where an update waits for the user."""
    if repository.state.has("stopped"):
        raise LongshipError(
            f"{repository.directory}: an update is waiting for you to resolve conflicts",
            f"resolve them (see git status) and git add the files, then {GO_ON}",
        )
    for submodule in repository.submodules_in_update():
        check_no_conflict(submodule)


def is_in_update(configured: Configured) -> bool:
    """Tell whether an update of a repository is under way."""
    repository = Repository(configured)
    return repository.is_cloned() and repository.state.directory.exists()


def resume(configured: Configured) -> None:
    """Go on with an update after a conflict."""
    repository = Repository(configured)
    finished = repository.state.load("step") == "finished"
    if not finished and not repository.state.has("stopped"):
        update(configured)  # it was killed: nothing to go on with
        return
    if not finished:
        replay(repository)
        _report_update(repository)
    _finish_update(repository)


def abort(configured: Configured) -> None:
    """Bring a repository back to what was before an update."""
    repository = Repository(configured)
    _restore_all(repository)
    repository.state.forget()
    show(f"{configured.name} is restored to its state before the update")


def _restore_all(repository: Repository) -> None:
    """Restore a repository with its submodules; those that the update brought go."""
    state = repository.state
    repository.remove_own_locks()
    for submodule in repository.submodules_in_update():
        _restore_all(submodule)
        submodule.state.forget()
    if state.has("step"):
        for path in state.load_names("new_submodules"):
            # it was not there before; if the user has worked in it meanwhile, it stays
            submodule = repository.submodule(path)
            fetched = repository.ask("rev-parse --verify", f"{state.load('replayed')}:{path}")
            if submodule.is_cloned() and not submodule.has_work(fetched):
                shutil.rmtree(submodule.directory)
        _restore(repository)


def _restore(repository: Repository) -> None:
    repository.remove_own_locks()
    save_current_state(repository)
    undo_update(repository)


# ----- from the servers


def _follow_url(repository: Repository) -> None:
    """Make a changed URL the remote origin; the old remote is kept under another name."""
    name, url = repository.name, repository.configured.url
    current = repository.ask("config --get remote.origin.url")
    add_upstream(repository)
    if current == url:
        return
    if not repository.configured.bundles:
        repository.fetch(name, url, "ls-remote --heads --", url)
    if current:
        former, number = "former-origin", 1
        while repository.succeeds("config --get", f"remote.{former}.url"):
            number += 1
            former = f"former-origin-{number}"
        repository.fetch(name, current, "remote rename origin", former)
        note(f"{name}: the former remote, {current}, is now called {former}")
    repository.run("remote add origin", url)
    branch = repository.branch()
    if branch and current:
        short = branch[len("refs/heads/") :]
        repository.run("config", f"branch.{short}.remote", "origin")


def _fetch(repository: Repository) -> None:
    """Fetch; a configured commit that is there needs no network."""
    name, configured = repository.name, repository.configured
    if re.fullmatch("[0-9a-f]{40}", configured.ref) and repository.commit_of(configured.ref):
        return
    shallow = repository.text("rev-parse --is-shallow-repository") == "true"
    fetch = "fetch --quiet --unshallow" if shallow else "fetch --quiet"
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


def _move(repository: Repository, target: str, patches: Path | None, *excluded: str) -> None:
    """Move a repository to the target, with everything replayed but the EXCLUDED commits."""
    _start_update(repository, target, patches, *excluded)
    clear_untracked(repository, target)
    repository.state.save("step", "move")
    replay(repository)
    _report_update(repository)


def _start_update(
    repository: Repository, target: str, patches: Path | None, *excluded: str
) -> None:
    """Save all that an update needs before anything is touched; parameters as of `_move`."""
    state = repository.state
    take_snapshot(repository)
    state.save("target", target)
    state.save("base", repository.ask("merge-base HEAD", target) or target)
    state.path("patches").mkdir(exist_ok=True)
    for patch in patches_in(patches) if patches else ():
        shutil.copy(patch, state.path("patches"))
    commits = _list_local_commits(repository, target, *excluded)
    state.save("commits", "")
    if has_changes(repository, commits):
        save_changes(repository, commits)
        save_unfiltered_changes(repository)
        # the group's patches are applied anew
        patched = repository.commit_of("refs/longship/patched") or target
        commits = _list_local_commits(repository, target, *excluded, patched)
        state.save("commits", "\n".join(_list_cherry_picks(repository, commits)))
        base = repository.commit_of("refs/longship/base")
        before = int(repository.text("rev-list --count", patched, "--not", base)) if base else 0
        now = len(patches_in(state.path("patches")))
        if before > now:
            text = f"{repository.name}: of {before} applied patches, {now} still exist"
            note(f"{text}; all are saved in {state.load('saved_directory')}")


def _list_cherry_picks(repository: Repository, commits: list[str]) -> list[str]:
    """Return what is picked: the commits, or one for all where they hold a merge."""
    if not has_merge(repository, commits):
        return commits
    listed = repository.text("log --no-walk=unsorted", "--format=%h %s", *commits)
    title = f"Local changes, {len(commits)} commits with merges"
    words = (repository.state.load("base"), "-m", title, "-m", listed)
    return [repository.text("commit-tree HEAD^{tree} -p", *words)]


def _report_update(repository: Repository) -> None:
    name, state = repository.name, repository.state
    before, after = (repository.shown(state.load(each)) for each in ("head", "target"))
    show(f"{name}: {before} -> {after}")
    if saved := state.load("saved_directory"):
        show(f"{name}: your changes are replayed; saved as they were in {saved}")


def _finish_update(repository: Repository) -> None:
    """Let the submodules follow, and save that all is there."""
    _update_submodules(repository)
    for name, ref in (("target", "base"), ("patched", "patched")):
        repository.run("update-ref", f"refs/longship/{ref}", repository.state.load(name))
    repository.save_settings(wanted_settings(repository.configured))
    _forget_update(repository)


def _forget_update(repository: Repository) -> None:
    for submodule in repository.submodules_in_update():
        _forget_update(submodule)
    repository.state.forget()


# ----- submodules


def _update_submodules(repository: Repository) -> None:
    """Update submodules after their repository was moved; save which are new."""
    state = repository.state
    staged = state.load("staged")
    for wanted, submodule in repository.submodules():
        path = str(submodule.directory.relative_to(repository.directory))
        before = repository.ask("rev-parse --verify --quiet", f"{staged}:{path}")
        if submodule.is_cloned() and before and before != wanted:
            _update_submodule(repository, submodule, path, before, wanted)
        elif not submodule.is_cloned() and not before:
            state.save("new_submodules", "\0".join([*state.load_names("new_submodules"), path]))
            fetch_submodules(repository, path)


def _update_submodule(
    repository: Repository, submodule: Repository, path: str, before: str, wanted: str
) -> None:
    state = submodule.state
    if state.has("stopped"):
        replay(submodule)
    elif state.load("step") not in ("", "finished"):
        _restore(submodule)
    if state.load("step") != "finished":
        submodule.remove_own_locks()
        submodule.check_not_busy()
        submodule.begin_work()
        repository.run("submodule --quiet sync --", path)
        if not submodule.commit_of(wanted):
            _fetch_submodule(submodule, wanted)
        _move(submodule, wanted, None, before)
    _update_submodules(submodule)


def _fetch_submodule(submodule: Repository, wanted: str) -> None:
    name, bundles = submodule.name, submodule.configured.bundles
    source = f"{bundles}/{name}.bundle" if bundles else "origin"
    for what in (HEADS, wanted):
        _, output = submodule.attempt("fetch --quiet", source, what)
        if submodule.commit_of(wanted):
            return
    show(output)
    message = f"{name}: commit not found in {source}: {wanted}"
    raise LongshipError(message, "ask the maintainers of the repository")


# ----- patches of the group


def save_patches(configured: Configured) -> None:
    """Write the changes of a repository to its directory in patches/."""
    name, directory, repository = configured.name, configured.directory, Repository(configured)
    if not repository.is_cloned():
        note(f"repository not found: {directory}")
        return
    state, again = repository.state, "then: python3 set_up.py save-patches"
    check_no_conflict(repository)
    if state.has("step"):
        message = f"{directory}: an update was interrupted"
        raise LongshipError(message, f"run: python3 set_up.py update; {again}")
    repository.remove_own_locks()
    state.forget()
    repository.check_not_busy()
    base = repository.commit_of("refs/longship/base")
    if not base:
        raise LongshipError(
            f"{directory} was not cloned by set_up.py, so the start of your changes is unknown",
            "run: python3 set_up.py update",
        )
    # patches that somebody else has added must not be overwritten
    if repository.settings()[2] != series_checksum(configured.patches):
        message = f"{configured.patches} has changed since it was applied to {directory}"
        raise LongshipError(message, f"run: python3 set_up.py update; {again}")
    repository.begin_work()
    take_snapshot(repository)
    theirs = (base, "--remotes", "--glob=refs/longship/tags")
    commits = repository.text("rev-list --reverse --topo-order HEAD --not", *theirs).split()
    commits += filter(None, [commit_uncommitted(repository)])
    common = repository.ask("merge-base", base, "HEAD") or base
    if commits:
        write_series(repository, state.path("new"), commits[-1], commits, common)
    _replace_series(repository)
    for wanted, submodule in repository.submodules():
        if submodule.is_cloned() and (
            wanted != submodule.commit_of("HEAD") or submodule.text("status --porcelain")
        ):
            path = submodule.directory.relative_to(directory)
            note(f"{name}: the patches do not contain your changes in the submodule {path}")
    state.forget()


def _replace_series(repository: Repository) -> None:
    directory, new = repository.configured.patches, patches_in(repository.state.path("new"))
    if not new and not patches_in(directory):
        note(f"{repository.name} has no local changes")
        return
    partial = directory / ".partial"
    with writing(directory, f"cannot write {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        for patch in new:
            shutil.copy(patch, partial)
        for patch in new:
            (partial / patch.name).replace(directory / patch.name)
        partial.rmdir()
    for name in {each.name for each in patches_in(directory)} - {each.name for each in new}:
        (directory / name).unlink()
    repository.save_settings([*repository.settings()[:2], series_checksum(directory)])
    repository.run("update-ref refs/longship/patched HEAD")
    plural = "" if len(new) == 1 else "es"
    show(f"{repository.name}: {len(new)} patch{plural} in {directory}")
