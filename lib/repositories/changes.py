"""The user's changes in a repository, kept in two ways before anything is touched.

As a commit under refs/longship/saved/ of the form that `git stash` makes, and as patches in a
directory of the project. `git stash` itself cannot: it takes the changes out of the working tree,
and refuses where something was announced with `git add -N`. Nor can `git stash apply --index` put
them on another version: it stops where a three-way merge of what is staged would not.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from lib.repositories.git import READ_ABOVE, GitError, join_names, note, show
from lib.repositories.patches import ALL_PATCH, empty_tree, patch_between, patches_in, write_series
from lib.repositories.repository import Repository
from lib.script.errors import LongshipError, write_error

_MOST_SAVED_BYTES = 100 << 20  # of an untracked file; larger ones are results, not changes
ADDED = "-r -z --name-only --no-renames --diff-filter=A"


def take_snapshot(repository: Repository) -> None:
    """Make commits that hold what is there now, and save what they are.

    ``head``, ``branch``, the ``index`` itself, what is ``staged``, what is ``tracked`` (all that
    git knows, as it is in the working tree) and what is ``untracked``.
    """
    state, head, index = repository.state, repository.commit_of("HEAD"), repository.index
    state.save("head", head)
    state.save("branch", repository.branch())
    shutil.copy2(repository.own / "index", state.path("index"))
    # a file that `git add -N` announced is in the index without content
    state.save("announced", repository.run("diff --name-only --diff-filter=A -z"))
    state.save("staged", repository.own_commit(repository.text("write-tree"), "the index", head))
    # submodules, which have an update of their own, as the index has them
    entries = [each for each in repository.names("ls-files --stage -z") if each[:7] == "160000 "]
    shutil.copy2(state.path("index"), index)
    repository.run("add --update -- :/", GIT_INDEX_FILE=index)
    given = join_names(entries)
    repository.run("update-index -z --index-info", given=given, GIT_INDEX_FILE=index)
    _save_tracked(repository)
    state.save("untracked", _snapshot_untracked(repository))


def _save_tracked(repository: Repository) -> None:
    """Save what is in the local index as ``tracked``."""
    tree, staged = _tree_in(repository, repository.index), repository.state.load("staged")
    repository.state.save("tracked", repository.own_commit(tree, "the files", staged))


def _tree_in(repository: Repository, index: Path) -> str:
    return repository.text("write-tree", GIT_INDEX_FILE=index)


def _snapshot_untracked(repository: Repository) -> str:
    """Return a commit of the files that git does not track, empty where there are none."""
    files, index = [], repository.own / "longship-untracked"
    for name in repository.names("ls-files --full-name --others --exclude-standard -z"):
        path = f"{repository.directory}/{name}"
        if not os.path.lexists(path):
            continue
        if name.endswith("/"):
            note(f"{path} is a git repository itself; left unchanged, and not saved")
        elif os.lstat(path).st_size > _MOST_SAVED_BYTES:
            note(f"{path} is larger than 100 MB; left unchanged, and not saved")
        else:
            files.append(name)
    if not files:
        return ""
    index.unlink(missing_ok=True)
    add_to_index(repository, files, index)
    commit = repository.own_commit(_tree_in(repository, index), "untracked files")
    index.unlink()
    return commit


def add_to_index(repository: Repository, names: list[str], index: Path, option: str = "") -> None:
    """Add files to an index as they are in the working tree, whatever is ignored."""
    command, given = f"update-index --add {option} -z --stdin", join_names(names)
    repository.run(command, given=given, GIT_INDEX_FILE=index)


def has_changes(repository: Repository, commits: list[str]) -> bool:
    """Tell whether there is anything that no server has."""
    state = repository.state
    staged, tracked = (repository.tree_of(state.load(name)) for name in ("staged", "tracked"))
    unchanged = repository.tree_of("HEAD") == staged == tracked
    return bool(commits or state.load("untracked") or not unchanged)


def save_unfiltered(repository: Repository, new: str, directory: Path) -> None:
    """Copy the files that new has and HEAD has not, if a filter of git changes them.

    Such as notebooks, whose output a filter takes out, and line ends.
    """
    options = "-r -z --raw --no-abbrev --no-renames --diff-filter=AMT"
    found = repository.names(f"diff-tree {options} HEAD", new)
    for entry, name in zip(found[::2], found[1::2]):
        path, copy = repository.directory / name, directory / name
        if not path.is_file() or path.is_symlink():
            continue
        if repository.text("hash-object --no-filters --", name) != entry.split()[3]:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def restore_unfiltered(repository: Repository) -> None:
    """Restore the same files, where an update has not changed what git knows of them."""
    raw, tracked = repository.state.path("raw"), repository.state.load("tracked")
    for copy in [path for path in raw.rglob("*") if path.is_file()]:
        name = str(copy.relative_to(raw))
        if is_as_in(repository, name, tracked):
            shutil.copy2(copy, repository.directory / name)


def is_as_in(repository: Repository, name: str, commit: str) -> bool:
    """Tell whether a file is what git would check out of a commit."""
    stored = repository.ask("hash-object", f"--path={name}", "--", name)
    return stored == repository.text("rev-parse", f"{commit}:{name}")


@contextmanager
def private() -> Iterator[None]:
    """Make files that nobody else can read."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def writing(directory: Path, message: str) -> Iterator[None]:
    """Stop with a message if something cannot be written."""
    try:
        yield
    except (OSError, GitError) as error:
        show(str(error))
        raise write_error(directory, message, "read the error above") from error


def _this_time() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%S')}.{os.getpid()}"


def save_changes(repository: Repository, commits: list[str]) -> None:
    """Keep snapshot and commits under a ref, and as patches in a directory."""
    state, this, saved = repository.state, _this_time(), repository.configured.saved
    directory, ref = saved / repository.name / this, f"refs/longship/saved/{this}"
    partial = directory.with_name(f"{this}.partial")
    parents = filter(None, [state.load(each) for each in ("head", "staged", "untracked")])
    tree = repository.tree_of(state.load("tracked"))
    commit = repository.own_commit(tree, "On update: saved by Longship", *parents)
    repository.run("update-ref", ref, commit)
    state.save("saved_directory", str(directory))
    with writing(saved, f"cannot write {directory}"), private():
        partial.mkdir(parents=True)
    with writing(partial, f"cannot write the patches {directory}"):
        _write_patches(repository, partial, directory, ref, commits)
        partial.rename(directory)


def save_unfiltered_changes(repository: Repository) -> None:
    """Keep files before filters, and next to the patches; there are none if all are too large."""
    state = repository.state
    raw, saved = state.path("raw"), state.load("saved_directory")
    save_unfiltered(repository, state.load("tracked"), raw)
    if saved and raw.is_dir():
        with writing(Path(saved), f"cannot write {saved}/before-filters"), private():
            shutil.copytree(raw, Path(saved, "before-filters"), dirs_exist_ok=True)


def _write_patches(
    repository: Repository, partial: Path, directory: Path, ref: str, commits: list[str]
) -> None:
    """Write the changes as files that `git apply` reads, and how."""
    shown, apply = quote(str(directory)), []
    if commits:
        base = repository.state.load("base")
        write_series(repository, partial / "commits", f"{ref}^1", commits, base)
        apply = [
            f'for each in {shown}/commits/*.patch; do git apply --3way --index "$each" &&',
            "  git commit --quiet --cleanup=verbatim "
            '-F <(sed "1,/^$/d; /^    /!Q; s/^    //" "$each") || break; done',
        ]
        if (partial / "commits" / ALL_PATCH).exists():
            apply = [f"git apply --3way {shown}/commits/{ALL_PATCH}"]
    sides = {"staged": (f"{ref}^1", f"{ref}^2"), "unstaged": (f"{ref}^2", ref)}
    if repository.commit_of(f"{ref}^3"):
        sides["untracked"] = (empty_tree(repository), f"{ref}^3")
    for name, (old, new) in sides.items():
        if patch := patch_between(repository, old, new):
            (partial / f"{name}.patch").write_bytes(patch)
            apply.append(f"git apply --3way {shown}/{name}.patch")
    commands = "".join(f"  {each}\n" for each in apply)
    text = f"""\
The changes in {repository.directory}, as they were before an update.

Exactly as they were, in a second working tree (DIR: a directory that does not exist yet):
  git -C {quote(str(repository.directory))} worktree add DIR {ref}^1
  git -C DIR stash apply --index {ref}

On top of the current files, in this order:
{commands}"""
    (partial / "README.txt").write_bytes(os.fsencode(text))


def save_current_state(repository: Repository) -> None:
    """Save what the user has done since an update began, before it is taken back."""
    state, index, directory = repository.state, repository.index, repository.directory
    if not state.has("stopped") and state.load("step") == "restored":
        return
    this, configured = _this_time(), repository.configured
    ref, raw = f"refs/longship/given-up/{this}", configured.saved / "given-up" / this
    try:
        repository.run("read-tree HEAD", GIT_INDEX_FILE=index)
        repository.run("add --update -- :/", GIT_INDEX_FILE=index)
    except GitError as error:
        message = f"{directory}: cannot save the current state"
        raise write_error(directory, message, READ_ABOVE) from error
    # without a file that nobody may read
    repository.succeeds("add --all --ignore-errors -- :/", GIT_INDEX_FILE=index)
    tree = _tree_in(repository, index)
    index.unlink()
    repository.run("update-ref", ref, repository.own_commit(tree, "given up", "HEAD"))
    note(f"{directory}: the state before this command is saved: git show {ref}")
    with private():
        save_unfiltered(repository, tree, raw / repository.name)
    if raw.is_dir():
        note(f"{directory}: files that git filters change are saved in {raw / repository.name}")


def commit_uncommitted(repository: Repository) -> str:
    """Return a commit of all that is not committed, untracked too; empty where there is nothing."""
    state, index = repository.state, repository.index
    repository.run("read-tree", state.load("tracked"), GIT_INDEX_FILE=index)
    if state.load("untracked"):
        given = repository.run("ls-tree -r -z", state.load("untracked"))
        repository.run("update-index --add -z --index-info", given=given, GIT_INDEX_FILE=index)
    tree = _tree_in(repository, index)
    index.unlink()
    if tree == repository.tree_of("HEAD"):
        return ""
    # no time of its own, or the same changes would be another patch each time
    date, words = repository.text("log -1 --format=%aI"), ("-m", "Changes that were not committed")
    return repository.text("commit-tree -p HEAD", *words, tree, GIT_AUTHOR_DATE=date)


def clear_untracked(repository: Repository, target: str) -> None:
    """Make untracked files that block the target's files part of the changes, before the move.

    An ignored one is the user's to decide about.
    """
    names = _new_names(repository, target)
    blocked = [found for name in names if (found := blocking(repository.directory, name))]
    files = _list_untracked(repository, blocked)
    ignored = _list_untracked(repository, blocked, "--ignored")
    ignored += [name for name in files if name.endswith("/")]  # repositories in this one
    if ignored:
        path = str(repository.directory / ignored[0].rstrip("/"))
        raise LongshipError(
            f"{path} blocks the update and is not tracked by git",
            f"move it away: mv {quote(path)} {quote(f'{path}.mine')}; then run the command again",
        )
    if files:
        add_to_index(repository, files, repository.index)
        _save_tracked(repository)
        save_unfiltered_changes(repository)


def _list_untracked(repository: Repository, names: list[str], option: str = "") -> list[str]:
    """Return those of some files, and of what is in them, that git does not track."""
    found, command = [], f"ls-files -z --others --exclude-standard {option} --"
    for at in range(0, len(names), 500):  # an argument list has an end
        found += repository.names(command, *(f":(literal){each}" for each in names[at : at + 500]))
    return found


def blocking(directory: Path, name: str) -> str:
    """Return what is at a name already, or is a file where the name has a directory; or nothing."""
    path = directory
    for part in Path(name).parts:
        path = path / part
        if not path.is_dir() or path.is_symlink():
            break
    return str(path.relative_to(directory)) if os.path.lexists(path) else ""


def _new_names(repository: Repository, target: str) -> list[str]:
    """Return what comes with the target, the patches, and the user's commits.

    Those may add what later ones take out again.
    """
    state, names = repository.state, []
    if commits := state.load("commits"):
        given = f"{commits}\n".encode()
        names = repository.names(f"diff-tree --stdin --root --no-commit-id {ADDED}", given=given)
    names += repository.names(f"diff-tree {ADDED}", state.load("tracked"), target)
    for patch in patches_in(state.path("patches")):
        listed = repository.ask("apply --numstat -z", patch).split("\0")
        names += [entry.split("\t", 2)[2] for entry in listed if entry]
    return names
