"""Git in a directory, with what would make it behave differently for each user switched off."""

from __future__ import annotations

import fcntl
import os
import subprocess
import termios
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from lib.script.errors import check_owner, print_messages, write_error

# No hooks, signatures, editors, questions; submodules are handled one by one.
_SETTINGS = (
    "-c core.hooksPath=/dev/null -c commit.gpgSign=false -c gc.auto=0 -c advice.detachedHead=false "
    "-c submodule.recurse=false -c fetch.recurseSubmodules=false -c apply.whitespace=nowarn "
    "-c diff.noprefix=false -c diff.mnemonicPrefix=false -c diff.orderFile=/dev/null "
    "-c merge.renames=true -c rerere.enabled=false -c core.quotePath=false -c core.safecrlf=false "
    "-c status.showUntrackedFiles=normal -c log.showSignature=false -c safe.bareRepository=all "
    "-c core.fsmonitor=false -c worktree.useRelativePaths=false"
)
READ_ABOVE = "read git's output above, then run the command again"
OWN_COMMITTER = {"GIT_COMMITTER_NAME": "Longship", "GIT_COMMITTER_EMAIL": "longship@localhost"}
OWN_AUTHOR = {"GIT_AUTHOR_NAME": "Longship", "GIT_AUTHOR_EMAIL": "longship@localhost"}


class GitError(Exception):
    """A git that failed; it has printed why."""


class Git:
    """Git in a directory. Of a command, the first string is split at its blanks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _start(
        self, words: tuple[Any, ...], errors: int | None, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git; options are ``given`` for its input, a ``timeout``, and more variables."""
        given, timeout = options.pop("given", b""), options.pop("timeout", None)
        try:
            return subprocess.run(
                ["git", "-C", self.directory, *_SETTINGS.split(), *words[0].split(), *words[1:]],
                input=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **{name: str(value) for name, value in options.items()}},
                close_fds=False,  # the lock of the repositories is held as long as it is open
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            find = f"look for a FIFO: find {quote(str(self.directory))} -type p"
            raise GitError(f"git {words[0]}: no response within {timeout} s; {find}") from error

    def run(self, *words: Any, **options: Any) -> bytes:
        """Return what git prints; a failure is an error."""
        done = self._start(words, None, **options)
        if done.returncode:
            raise GitError(f"git {words[0]} failed in {self.directory}")
        return done.stdout

    def attempt(self, *words: Any, **options: Any) -> tuple[bool, str]:
        """Tell whether git succeeds, and return all that it prints."""
        done = self._start(words, subprocess.STDOUT, **options)
        return done.returncode == 0, os.fsdecode(done.stdout).rstrip("\n")

    def ask(self, *words: Any, **options: Any) -> str:
        """Return what git prints; nothing where it fails, which is an answer."""
        done = self._start(words, subprocess.DEVNULL, **options)
        return "" if done.returncode else os.fsdecode(done.stdout).rstrip("\n")

    def succeeds(self, *words: Any, **options: Any) -> bool:
        """Tell whether git succeeds, without a sound."""
        return self._start(words, subprocess.DEVNULL, **options).returncode == 0

    def text(self, *words: Any, **options: Any) -> str:
        """Return what git prints, without the newline at the end."""
        return os.fsdecode(self.run(*words, **options)).rstrip("\n")

    def names(self, *words: Any, **options: Any) -> list[str]:
        """Return the names that git prints with ``-z``."""
        return split_names(self.run(*words, **options))

    def fetch(self, name: str, url: str, *words: Any, writes: Path | None = None) -> None:
        """Run git where it needs a server; stop where it fails, with what git says."""
        succeeded, output = self.attempt(*words)
        if not succeeded:
            check_owner(output, f"{name}: {url}")
            show_output(output)
            hint = (
                f"read git's output above, and try: git ls-remote {quote(url)}; without network: "
                "python3 set_up.py download --machine MACHINE on a machine with one, then here: "
                "python3 set_up.py offline"
            )
            message = f"{name}: git cannot fetch {url}"
            raise write_error(writes or self.directory, message, hint)


def split_names(output: bytes) -> list[str]:
    """Return names that end in NUL."""
    return [os.fsdecode(each) for each in output.split(b"\0") if each]


def join_names(names: list[str]) -> bytes:
    """Return names for ``-z``."""
    return os.fsencode("".join(f"{name}\0" for name in names))


def prepare_environment() -> None:
    """Give git the same environment for everybody."""
    git = Git(Path())
    # inside a hook or an alias of git's they name another repository
    for variable in git.ask("rev-parse --local-env-vars").split():
        os.environ.pop(variable, None)
    # git's messages are examined, names of files are left as they are
    if os.environ.get("LC_ALL"):
        os.environ["LC_CTYPE"] = os.environ["LC_ALL"]
    os.environ.pop("LC_ALL", None)
    os.environ.update(LC_MESSAGES="C", GIT_TERMINAL_PROMPT="0", GIT_EDITOR="true")
    os.environ["GIT_OPTIONAL_LOCKS"] = "0"  # an index is not refreshed behind the user's git
    os.environ["GIT_MERGE_AUTOEDIT"] = "no"
    # a worker is in the background of the terminal: it would be stopped when an ssh asked there
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    if not git.succeeds("var GIT_COMMITTER_IDENT"):
        os.environ.update({**OWN_COMMITTER, **OWN_AUTHOR})


def note(text: str) -> None:
    """Print something that is no error."""
    print_messages(note=text)


def show(text: str) -> None:
    """Print a result."""
    os.write(2, os.fsencode(f"{text}\n"))


def show_output(text: str) -> None:
    """Print what a program has printed: its errors are not those of this program."""
    show("\n".join(f"  {line}" for line in text.split("\n")))
