"""Replay: a repository is moved to another commit, and the user's changes are put on top.

What is done is saved in steps (docs/explanation/replay.md), so that the user can resolve a conflict
with git's own commands. After the step ``restored`` all is as it was before.

`git rebase --onto` could pick the commits, but it stores their messages in another encoding, and
what is staged and what is not must be merged anyway.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NoReturn

from lib.repositories.changes import ADDED, add_to_index, blocking, is_as_in, restore_unfiltered
from lib.repositories.git import OWN_AUTHOR, OWN_COMMITTER, GitError, note, show
from lib.repositories.patches import (
    commit_like,
    commit_staged,
    is_commit,
    patches_in,
    read_commit,
    words_of,
)
from lib.repositories.repository import Repository
from lib.script.errors import LongshipError, write_error

_STEPS = ("move", "series", "commits", "changes")
_UPDATE = "python3 set_up.py update"
GO_ON = f"run: {_UPDATE} --continue; or cancel: {_UPDATE} --abort"
_RESOLVE = f"resolve them and git add the files, then {GO_ON}"


class ConflictError(GitError):
    """Something that the user has to resolve; its text is what git has printed."""


def replay(repository: Repository) -> None:
    """Go on at the saved step."""
    works = (_move, _replay_series, _replay_commits, _replay_changes)
    step = repository.state.load("step")
    for work in works[_STEPS.index(step) :] if step in _STEPS else ():
        work(repository)


def _move(repository: Repository) -> None:
    """Go from the tracked changes, as if they were committed, to the target."""
    state, directory = repository.state, repository.directory
    target = state.load("target")
    _set_head(repository, state.load("tracked"), "update")
    repository.index.replace(repository.own / "index")
    checkout = "checkout --quiet --no-overwrite-ignore --detach"
    moved, output = repository.attempt(checkout, target)
    if not moved:
        undo_update(repository)
        show(output)
        message = f"cannot move {directory} to {repository.shown(target)}"
        raise write_error(
            directory, message, "read git's output above; the repository is unchanged"
        )
    state.save("step", "series")


def _set_head(repository: Repository, commit: str, why: str, branch: str = "") -> None:
    """Set HEAD to a commit; on a branch, if there is one, which moves along."""
    log = ("-m", f"longship: {why}")
    if branch:
        repository.run("update-ref", *log, branch, commit)
        repository.run("symbolic-ref", *log, "HEAD", branch)
    else:
        repository.run("update-ref --no-deref", *log, "HEAD", commit)


def undo_update(repository: Repository) -> None:
    """Bring a repository back exactly as it was before the update, whatever step it is at."""
    state, own, tracked = repository.state, repository.own, repository.state.load("tracked")
    repository.remove_own_locks()
    repository.succeeds("cherry-pick --quit")
    if (own / "rebase-apply").exists():
        shutil.rmtree(own / "rebase-apply")
    for name in ("CHERRY_PICK_HEAD", "MERGE_MSG"):
        (own / name).unlink(missing_ok=True)
    # killed on its way, it may hold files of the target that the index does not know of
    if state.load("step") == "move":
        _remove_left_over(repository, tracked)
        repository.run("read-tree", tracked)
    try:
        repository.run("read-tree --reset -u", tracked)
        _set_head(repository, state.load("head"), "abort", state.load("branch"))
        shutil.copy2(state.path("index"), own / "index")
    except (OSError, GitError) as error:
        hint = "read the output above, then run: python3 set_up.py update --abort"
        message = f"cannot restore {repository.directory}"
        raise write_error(repository.directory, message, hint) from error
    restore_unfiltered(repository)
    repository.succeeds("update-index -q --refresh")
    state.save("step", "restored")


def _remove_left_over(repository: Repository, tracked: str) -> None:
    """Remove new files of the target that a killed move has left, be it empty.

    No file of the user's was in their place, or there would have been no move.
    """
    target = repository.state.load("target")
    for name in repository.names(f"diff-tree {ADDED}", tracked, target):
        path = repository.directory / name
        if blocking(repository.directory, name) != name:
            continue  # nothing is there, or it is in a directory to which a link of the user leads
        if path.is_symlink() or (
            path.is_file() and (not path.stat().st_size or is_as_in(repository, name, target))
        ):
            path.unlink()


# ----- the group's patches


def _replay_series(repository: Repository) -> None:
    """Apply the saved patches, and forget each that is in."""
    state, directory = repository.state, repository.directory
    for patch in patches_in(state.path("patches")):
        if state.has("stopped"):
            _finish_patch(repository, patch)
        elif _is_upstreamed(repository, patch):
            there = f"{patch.name} is already in the new version"
            note(f"{directory}: {there}; save-patches leaves it out")
        else:
            try:
                _apply_patch(repository, patch)
            except ConflictError as conflict:
                _stop_for_conflict(repository, f"the patch {patch.name}", conflict)
        patch.unlink()
    state.save("patched", repository.commit_of("HEAD"))
    state.save("step", "commits")


def _is_upstreamed(repository: Repository, patch: Path) -> bool:
    """Tell whether upstream has taken a patch in: it could be undone, and not be applied.

    A line more in a file of equal lines could be both.
    """
    applies, undoes = "apply --check", "apply --check --reverse"
    return not repository.succeeds(applies, patch) and repository.succeeds(undoes, patch)


def _apply_patch(repository: Repository, patch: Path) -> None:
    """Apply a patch with a three-way merge, as a commit that is the same for everybody."""
    repository.state.save("patched_on", repository.commit_of("HEAD"))
    text = patch.read_bytes()
    if text.startswith(b"From "):  # `git format-patch` made it; `git diff` writes no header
        options = "-k --keep-cr --no-scissors --committer-date-is-author-date"
        _try(repository, f"am --quiet --3way {options}", patch, **OWN_COMMITTER)
        return
    # `git apply` insists on a change
    if not is_commit(text) or any(
        line.startswith((b"diff --git ", b"--- ")) for line in text.split(b"\n")
    ):
        _try(repository, "apply --3way --index", patch)
    _commit_patch(repository, patch, text)


def _try(repository: Repository, *words: Any, **environment: str) -> None:
    """Run git; a failure is a conflict."""
    succeeded, output = repository.attempt(*words, **environment)
    if not succeeded:
        raise ConflictError(output)


def _commit_patch(repository: Repository, patch: Path, text: bytes) -> None:
    """Commit what a patch has changed, which may have no author and message."""
    if is_commit(text):
        commit_staged(repository, read_commit(text))
        return
    dates = dict.fromkeys(("GIT_COMMITTER_DATE", "GIT_AUTHOR_DATE"), "2000-01-01T00:00:00Z")
    environment = {**OWN_AUTHOR, **OWN_COMMITTER, **dates}
    _try(repository, "commit --quiet --no-verify -m", patch.name, **environment)


def _finish_patch(repository: Repository, patch: Path) -> None:
    """After a stop, commit what the user has resolved, unless that is done."""
    _check_resolved(repository)
    directory, text = repository.directory, patch.read_bytes()
    staged = _has_staged(repository)
    if not staged and not repository.succeeds("diff-files --quiet"):
        raise LongshipError(
            f"{directory}: your changes for the patch {patch.name} are not staged",
            f"git add the files, then {GO_ON}",
        )
    picking = (repository.own / "rebase-apply").exists()
    unmoved = repository.state.load("patched_on") == repository.commit_of("HEAD")
    if picking:
        repository.run("am --quiet", "--continue" if staged else "--skip")
    elif staged and (unmoved or not is_commit(text)):
        _commit_patch(repository, patch, text)
    if not staged and (picking or (unmoved and is_commit(text))):
        note(f"{directory}: the patch {patch.name} was left out")
    repository.state.remove("stopped")


def _has_staged(repository: Repository) -> bool:
    return not repository.succeeds("diff-index --cached --quiet HEAD")


# ----- the user's commits


def _replay_commits(repository: Repository) -> None:
    """Pick the saved commits, one after the other."""
    state = repository.state
    while commits := state.load("commits").split():
        if state.has("stopped"):
            _finish_cherry_pick(repository, commits[0])
        else:
            state.save("picked_on", repository.commit_of("HEAD"))
            try:
                _cherry_pick(repository, commits[0], "--allow-empty")
            except ConflictError as conflict:
                title = _title(repository, commits[0])
                _stop_for_conflict(repository, f"your commit {title}", conflict)
        state.save("commits", "\n".join(commits[1:]))
    state.save("replayed", repository.commit_of("HEAD"))
    state.save("step", "changes")


def _title(repository: Repository, commit: str) -> str:
    return repository.text("show --no-patch", '--format=%h "%s"', commit)


def _cherry_pick(repository: Repository, commit: str, option: str) -> None:
    """Pick a commit; one whose changes are there already is left out."""
    directory = repository.directory
    pick = f"-c commit.cleanup=verbatim cherry-pick {option}"
    picked, output = repository.attempt(pick, commit)
    if picked:
        # git changes the encoding of a message to that of the configuration
        if option == "--allow-empty" and words_of(repository, "HEAD") != words_of(
            repository, commit
        ):
            repository.run("update-ref --no-deref HEAD HEAD^")
            commit_like(repository, commit)
        return
    if repository.text("ls-files --unmerged"):
        raise ConflictError(output)
    title = _title(repository, commit)
    if (repository.own / "CHERRY_PICK_HEAD").exists() and repository.succeeds(
        "diff-index --quiet HEAD"
    ):
        repository.run("cherry-pick --quit")
        note(f"{directory}: {title} is already in the new version")
        return
    show(output)
    hint = f"read git's output above; to cancel the update, run: {_UPDATE} --abort"
    raise write_error(directory, f"{directory}: git cannot cherry-pick {title}", hint)


def _finish_cherry_pick(repository: Repository, commit: str) -> None:
    """After a stop, commit what the user has resolved, unless that is done."""
    _check_resolved(repository)
    own, state = repository.own, repository.state
    if (own / "CHERRY_PICK_HEAD").exists():
        staged = _has_staged(repository)
        if staged:
            commit_like(repository, commit)  # git would take out lines that begin with #
        repository.run("cherry-pick --quit")
        if staged:
            (own / "MERGE_MSG").unlink(missing_ok=True)
    if state.load("picked_on") == repository.commit_of("HEAD"):
        left_out = f"your commit {_title(repository, commit)} was left out"
        note(f"{repository.directory}: {left_out}; it is saved in {state.load('saved_directory')}")
    state.remove("stopped")


# ----- conflicts


def _check_resolved(repository: Repository) -> None:
    directory = repository.directory
    if files := ", ".join(_conflicts(repository)):
        raise LongshipError(f"{directory}: unresolved conflicts in {files}", _RESOLVE)
    names = repository.state.load_names("conflicts")
    if files := ", ".join(name for name in names if _has_markers(repository, name)):
        raise LongshipError(
            f"{directory}: conflict markers left in {files}",
            f"remove them and git add the files, then {GO_ON}",
        )


def _has_markers(repository: Repository, name: str) -> bool:
    """Tell whether a file is staged with the markers of its conflict."""
    lines = repository.ask("show", f":{name}").split("\n")
    return any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in lines)


def _conflicts(repository: Repository) -> list[str]:
    return repository.names("diff --name-only --diff-filter=U -z")


def _stop_for_conflict(repository: Repository, what: str, conflict: ConflictError) -> NoReturn:
    """Leave a conflict to the user, as git would."""
    state, files = repository.state, _conflicts(repository)
    if not files:
        show("\n".join(f"  {line}" for line in str(conflict).split("\n")))
    state.save("conflicts", "\0".join(files))
    state.save("stopped", "")
    where = f": conflicts in {', '.join(files)}" if files else ""
    saved = state.load("saved_directory")
    raise LongshipError(
        f"{repository.directory}: cannot apply {what} to the new version{where}",
        _RESOLVE + (f"; your changes are saved in {saved}" if saved else ""),
    )


# ----- what was not committed


def _replay_changes(repository: Repository) -> None:
    """Merge what was staged, and then what was not, on top of the new HEAD."""
    state = repository.state
    if state.has("stopped"):
        _check_resolved(repository)
        _restore_index(repository)
        state.remove("stopped")
    else:
        conflict = None
        try:
            _merge_changes(repository)
        except ConflictError as found:
            conflict = found
        restore_unfiltered(repository)  # now: what the user does before --continue is the user's
        if conflict:
            _stop_for_conflict(repository, "your uncommitted changes", conflict)
        repository.run("read-tree -m", state.load("new_index"))
    for name in state.load_names("announced"):  # what `git add -N` did
        repository.succeeds("add -N -f --", f":(literal){name}")
    repository.succeeds("update-index -q --refresh")
    if state.load("branch"):
        _set_head(repository, "HEAD", "update", state.load("branch"))
    state.save("step", "finished")


def _merge_changes(repository: Repository) -> None:
    """Merge the index, then the files; save ``new_index``, the tree that is staged in the end.

    A conflict is left as markers in the files.
    """
    state = repository.state
    head, staged, tracked = (state.load(name) for name in ("head", "staged", "tracked"))
    trees = {each: repository.tree_of(each) for each in (head, staged, tracked)}
    if trees[staged] != trees[head]:
        try:
            _merge_into_index(repository, staged)
        except ConflictError:
            # not even what was staged merges: all at once, for one conflict instead of two
            repository.run("reset --quiet --hard")
            state.save("new_index", repository.tree_of("HEAD"))
            _merge_into_index(repository, repository.own_commit(trees[tracked], "all", head))
            return
    state.save("new_index", repository.text("write-tree"))
    if trees[tracked] != trees[staged]:
        _merge_into_index(repository, tracked)


def _merge_into_index(repository: Repository, commit: str) -> None:
    """Merge what a commit changes into index and files."""
    try:
        _cherry_pick(repository, commit, "--no-commit")
    finally:
        (repository.own / "MERGE_MSG").unlink(missing_ok=True)


def _restore_index(repository: Repository) -> None:
    """Make the index as it was, but stage resolved files that had been staged.

    Where the user has committed meanwhile, the index is left alone.
    """
    state = repository.state
    head, staged, new = (state.load(name) for name in ("head", "staged", "new_index"))
    if state.load("replayed") == repository.commit_of("HEAD"):
        names = "diff-tree -r -z --name-only --no-renames"
        files = repository.names(names, head, staged)
        repository.run("read-tree -m", new)
        if new != repository.tree_of("HEAD"):
            add_to_index(repository, files, repository.own / "index", "--remove")
