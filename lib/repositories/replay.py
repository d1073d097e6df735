"""Replay: patches, the user's commits, index and files are put on another commit.

It happens in a second working tree, so the user's files are as they were until all is replayed: a
conflict, a full disk or a kill leaves nothing to restore (docs/explanation/replay.md).
`git rebase` would clean and re-encode messages, give each commit another date, and need a working
tree without changes; so each commit is picked, and what it says is copied byte for byte.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from shlex import quote
from typing import NoReturn

from lib.repositories.git import READ_ABOVE, GitError, note, show_output
from lib.repositories.patches import commit_tree, header_of, patches_in, read_header
from lib.repositories.repository import Progress, Repository
from lib.repositories.snapshot import keep, take_snapshot
from lib.script.errors import LongshipError, write_error

KINDS = ("patch", "commit", "staged", "files")
# A merge driver decides for upstream, or for both, unseen; git's own merge stops at a conflict.
_MERGE = "git merge-file --marker-size=%L -L HEAD -L base -L 'your change' %A %O %B || exit 1"
_MOST_NAMED = 20  # files; the next call names the others
_UPDATE = "python3 set_up.py update"
GO_ON = f"run: {_UPDATE} --continue; or cancel: {_UPDATE} --abort"
_RESOLVE = f"resolve them there and git add the files, then {GO_ON}"


def prepare(
    repository: Repository,
    progress: Progress,
    target: str,
    patches: Path | None,
    commits: list[str],
) -> None:
    """Write down what is to be replayed on the target, and check it out next to the repository."""
    work, copies = repository.worktree(), repository.state / "patches"
    repository.check_place()
    copies.mkdir()
    for patch in patches_in(patches) if patches else ():
        shutil.copy(patch, copies)
    progress.todo = [["patch", str(each)] for each in patches_in(copies)]
    progress.todo += [["commit", each] for each in commits]
    progress.todo += [["staged", f"{progress.tree}^"], ["files", progress.tree]]
    progress.target = progress.head = target
    progress.done = dict.fromkeys(KINDS, target)
    repository.save(progress)
    add = "worktree add --quiet --force --force --detach"
    added, output = repository.attempt(add, work.directory, target)
    try:
        if not added:
            show_output(output)
            message = f"cannot check out {repository.shown(target)} in {work.directory}"
            hint = "read git's output above; the repository is unchanged"
            raise write_error(work.directory.parent, message, hint)
        _check_checked_out(repository, _UPDATE)
    except LongshipError:
        repository.forget(progress)
        raise


def _check_checked_out(repository: Repository, again: str) -> None:
    """Stop where the second working tree is not what git has checked out there."""
    work = repository.worktree()
    names = work.names("diff-files --name-only -z")[:_MOST_NAMED]
    if any(not os.path.lexists(work.directory / each) for each in names):
        message = f"{work.directory} is not complete"
        raise write_error(work.directory, message, f"run: {again}")
    if names:
        asked = work.names("check-attr -z filter text eol crlf ident --", names[0])
        said = [f"{name}={text}" for name, text in zip(asked[1::3], asked[2::3])]
        reasons = " ".join(each for each in said if not each.endswith("=unspecified"))
        # a pattern for exactly this file: what would need quotes is any byte
        patterns = [re.sub(rb"[^\w./+-]", b"?", os.fsencode(f"/{each}")) for each in names]
        attributes = quote(str(repository.own / "info/attributes"))
        raise LongshipError(
            f"{repository.directory}: git calls files modified as soon as they are checked out "
            f"({reasons}): {', '.join(names)}",
            f"switch the conversion off: printf '%s -filter -text -ident\\n' "
            f"{' '.join(quote(os.fsdecode(each)) for each in patterns)} >>{attributes}; "
            f"then run: {again}",
        )


def replay(repository: Repository, progress: Progress) -> None:
    """Replay what is left, and stop for each conflict."""
    work = repository.worktree()
    if not progress.stopped:
        work.run("reset --quiet --hard", progress.head)  # a git may have been killed
        work.run("clean -ffdqx")
    while progress.todo:
        kind, what = progress.todo[0]
        if progress.stopped:
            _check_resolved(work, progress)
        else:
            _pick(repository, work, progress)
        _commit(repository, work, progress)
        progress.todo.pop(0)
        progress.stopped = False
        for each in KINDS[KINDS.index(kind) :]:
            progress.done[each] = progress.head
        repository.save(progress)
        work.run("reset --quiet --hard", progress.head)
    _check_checked_out(repository, f"{_UPDATE} --continue")


def _pick(repository: Repository, work: Repository, progress: Progress) -> None:
    """Put what is next into index and files of the second working tree."""
    kind, what = progress.todo[0]
    drivers = work.ask(r"config --name-only --get-regexp ^merge\..*\.driver$").split("\n")
    names = (*filter(None, drivers), "merge.union.driver")
    merge = [word for name in names for word in ("-c", f"{name}={_MERGE}")]
    if kind == "patch":
        if not _has_changes(Path(what)) or _is_upstreamed(work, what):
            return
        picked, output = work.attempt(*merge, "apply", "--3way", "--index", what)
    elif work.tree_of(what) == _tree_before(work, what):
        return
    else:
        picked, output = work.attempt(*merge, "cherry-pick", "--no-commit", what)
    if picked:
        return
    files = work.names("diff --name-only --diff-filter=U -z")
    if files:
        progress.conflicts, progress.stopped = files, True
        repository.save(progress)
        _stop(work, progress)
    show_output(output)
    message = f"{repository.directory}: cannot apply {_name(work, kind, what)} to the new version"
    hint = (
        f"read git's output above; the repository is unchanged; to cancel, run: {_UPDATE} --abort"
    )
    if kind == "patch":
        hint = f"correct or remove the patch; then run: {_UPDATE}"
    raise write_error(work.directory, message, hint)


def _has_changes(patch: Path) -> bool:
    """Tell whether a patch changes anything: `git apply` insists on it."""
    lines = patch.read_bytes().split(b"\n")
    return any(line.startswith((b"diff --git ", b"--- ")) for line in lines)


def _is_upstreamed(work: Repository, patch: str) -> bool:
    """Tell whether upstream has taken a patch in: it could be undone, and not be applied."""
    applies, undoes = "apply --check", "apply --check --reverse"
    return not work.succeeds(applies, patch) and work.succeeds(undoes, patch)


def _tree_before(work: Repository, commit: str) -> str:
    return work.ask("rev-parse --verify --quiet", f"{commit}^^{{tree}}")


def _commit(repository: Repository, work: Repository, progress: Progress) -> None:
    """Commit what was picked, or resolved, as `progress.head`."""
    kind, what = progress.todo[0]
    tree = work.text("write-tree")
    if kind == "patch":
        header, empty = read_header(work, Path(what)), not _has_changes(Path(what))
    else:
        header, empty = header_of(work, what), work.tree_of(what) == _tree_before(work, what)
    if tree != work.tree_of(progress.head) or (empty and kind in ("patch", "commit")):
        progress.head = commit_tree(work, tree, progress.head, header)
    elif not empty:
        reason = "was left out" if progress.stopped else "is already in the new version"
        rest = "save-patches leaves it out" if kind == "patch" else f"see: {progress.saved}"
        note(f"{repository.directory}: {_name(work, kind, what)} {reason}; {rest}")


def _name(work: Repository, kind: str, what: str) -> str:
    if kind == "commit":
        return "your commit " + work.text("show --no-patch", '--format=%h "%s"', what)
    return f"the patch {Path(what).name}" if kind == "patch" else "your uncommitted changes"


# ----- conflicts


def _stop(work: Repository, progress: Progress) -> NoReturn:
    """Leave a conflict to the user, as git would."""
    name, files = _name(work, *progress.todo[0]), ", ".join(progress.conflicts or ())
    raise LongshipError(
        f"{work.directory}: cannot apply {name} to the new version: conflicts in {files}",
        f"{_RESOLVE}; until then your repository is unchanged",
    )


def _check_resolved(work: Repository, progress: Progress) -> None:
    """Stop unless all that the user has done in the second working tree is staged."""
    status = work.names("status --porcelain -z --no-renames --untracked-files=all")
    if files := ", ".join(work.names("diff --name-only --diff-filter=U -z")):
        raise LongshipError(f"{work.directory}: unresolved conflicts in {files}", _RESOLVE)
    if files := ", ".join(each[3:] for each in status if each[1] != " "):
        message = f"{work.directory}: changes are not staged in {files}"
        raise LongshipError(message, f"git add or remove the files, then {GO_ON}")
    if files := ", ".join(each for each in progress.conflicts or () if _has_markers(work, each)):
        message = f"{work.directory}: conflict markers left in {files}"
        raise LongshipError(message, f"remove them and git add the files, then {GO_ON}")


def _has_markers(work: Repository, name: str) -> bool:
    lines = work.ask("show", f":{name}").split("\n")
    return any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in lines)


def discard(repository: Repository, progress: Progress) -> None:
    """Remove the second working tree; what the user has resolved in it is kept under a ref."""
    work = repository.worktree()
    if progress.conflicts is not None and work.is_cloned():
        try:
            if work.text("ls-files --unmerged"):
                work.run("add --update -- :/")
            ref = keep(repository, "refs/longship/given-up", take_snapshot(work))
        except GitError as error:
            raise write_error(
                work.directory, "cannot save what you resolved", READ_ABOVE
            ) from error
        note(f"{work.directory}: the state before this command is saved: git show {ref}")
    repository.remove_locks(progress)
    repository.forget(progress)
