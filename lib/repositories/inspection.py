"""What doctor.py asks of an external repository."""

from __future__ import annotations

from shlex import quote

from lib.repositories.git import GitError
from lib.repositories.patches import is_as_configured
from lib.repositories.repository import Configured, Repository
from lib.repositories.update import check_not_waiting
from lib.script.errors import LongshipError, print_messages

_PATIENCE = 30  # seconds, for a working tree on a slow file system


def check(configured: Configured) -> None:
    """Print where a repository is, and whether the user's changes are saved anywhere else.

    Stop where it is missing or in a state that no update begins from.
    """
    name, directory, repository = configured.name, configured.directory, Repository(configured)
    if not configured.exists():
        raise LongshipError(f"{name} not found: {directory}", "python3 set_up.py install")
    repository.check_cloned()
    progress = repository.progress()
    check_not_waiting(repository, progress)
    if progress and progress.target:
        message = f"{directory}: an update was interrupted"
        raise LongshipError(message, "run: python3 set_up.py update")
    repository.check_not_busy()
    text = f"{name} is at {repository.shown('HEAD')}"
    on_base = repository.succeeds("merge-base --is-ancestor refs/longship/base HEAD")
    if not on_base or not is_as_configured(repository):
        warning = f"{text}, not at the configured version"
        print_messages(warning=warning, hint="python3 set_up.py update")
    elif not _is_changed(repository):
        print(f"{text}, unchanged")
    else:
        warning = f"{text}, with changes that may not be in patches/"
        print_messages(warning=warning, hint="python3 set_up.py save-patches")


def _is_changed(repository: Repository) -> bool:
    """Tell whether the user has changed it, apart from the group's patches."""
    base = "refs/longship/base"
    patched = repository.commit_of("refs/longship/patched") or base
    theirs = (base, patched, "--remotes", "--glob=refs/longship/tags")
    if repository.text("rev-list HEAD --not", *theirs):
        return True
    try:
        return bool(repository.run("--no-optional-locks status --porcelain", timeout=_PATIENCE))
    except GitError as error:
        hint = f"run: git -C {quote(str(repository.directory))} status"
        raise LongshipError(f"cannot tell whether it is changed: {error}", hint) from error
