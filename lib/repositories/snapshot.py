"""The user's changes as git's own commits, before anything is touched.

HEAD <- what is staged <- the files, with untracked ones. The last is kept as a ref.
"""

from __future__ import annotations

import os
import time

from lib.repositories.git import READ_ABOVE, GitError, join_names, note
from lib.repositories.repository import Repository
from lib.script.errors import write_error

_MOST_SAVED_BYTES = 100 << 20  # of an untracked file; larger ones are results, not changes


def take_snapshot(repository: Repository, reported: bool = False) -> str:
    """Return a commit of all files; its parent is what is staged, and the parent of that is HEAD.

    Files that are left out are reported, unless they were before.
    """
    try:
        index = repository.copy_index()
        tree = repository.text("write-tree", **index)
        staged = repository.own_commit(tree, "the index", "HEAD")
        repository.run("add --update -- :/", **index)
        files = join_names(_list_untracked(repository, reported))
        repository.run("update-index --add --remove -z --stdin", given=files, **index)
        return repository.own_commit(repository.text("write-tree", **index), "the files", staged)
    except (OSError, GitError) as error:
        message = f"{repository.directory}: cannot save your changes"
        raise write_error(repository.directory, message, READ_ABOVE) from error


def _list_untracked(repository: Repository, reported: bool) -> list[str]:
    files = []
    for name in repository.names("ls-files --full-name --others --exclude-standard -z"):
        path, reason = f"{repository.directory}/{name}", ""
        if name.endswith("/"):
            reason = "is a git repository itself"
        elif os.path.lexists(path) and os.lstat(path).st_size > _MOST_SAVED_BYTES:
            reason = "is larger than 100 MB"
        elif os.path.lexists(path):
            files.append(name)
        if reason and not reported:
            note(f"{path} {reason}; left unchanged, and not saved")
    return files


def keep(repository: Repository, kind: str, commit: str, ref: str = "") -> str:
    """Keep a commit under a ref, by default a new one KIND/TIME, and return the ref."""
    ref = ref or f"{kind}/{time.strftime('%Y%m%dT%H%M%S')}.{os.getpid()}"
    repository.run("update-ref", ref, commit)
    return ref
