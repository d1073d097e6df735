"""Shared by all entry scripts: read the configuration, print or run the script, report errors."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple

from lib import ROOT, find_packages
from lib.configuration.layers import Settings, load_settings
from lib.configuration.paths import Paths, derive_paths
from lib.configuration.sites import read_sites, recognise
from lib.runtimes.choice import Choice, choose_builder, choose_runtime, choose_target_runtime
from lib.runtimes.contract import lost_names
from lib.runtimes.environment import Environment
from lib.script import command, execute
from lib.script.errors import LongshipError, print_messages

if TYPE_CHECKING:
    from lib.script.output import Report  # only reports import it

LAUNCH = "container_run.py; arguments: the command"
_INSTALLS = re.compile(r"(\S*/)?(pip[\d.]*|python[\d.]* -m pip|uv pip) install\b")


class Invocation(NamedTuple):
    """Everything that the script of one command is computed from."""

    settings: Settings
    dry_run: bool
    environ: Mapping[str, str]
    options: Mapping[str, str]  # machine, stack and configuration, as on the command line

    @classmethod
    def read(cls, options: Mapping[str, str], *, dry_run: bool) -> Invocation:
        """Read all layers of the configuration."""
        settings = load_settings(Path(ROOT), options, os.environ)
        return cls(settings, dry_run, os.environ, options)

    @property
    def paths(self) -> Paths:
        """The paths on the target machine."""
        return derive_paths(self.settings)

    def changed(self, **options: str) -> Invocation:
        """Return the same invocation with other options, such as the machine of a job."""
        changed = {**self.options, **options}
        settings = load_settings(self.settings.root, changed, self.environ)
        return self._replace(settings=settings, options=changed)

    def environment(
        self, purpose: str = "run", *, choice: Choice | None = None, paths: Paths | None = None
    ) -> Environment:
        """Resolve the environment for one purpose, by default on the target machine."""
        if choice is None:
            choice = _print_choice(choose_runtime(self.settings, self.paths, execute.succeeds))
        return Environment(self.settings, paths or self.paths, choice.runtime, purpose)

    def target_runtime(self, here: Paths) -> Choice:
        """Choose the runtime of a machine that is installed offline."""
        return _print_choice(choose_target_runtime(self.settings, here, execute.succeeds))

    def builder(self) -> Choice:
        """Choose the runtime that builds the image."""
        return _print_choice(choose_builder(self.settings, execute.succeeds))

    def paths_here(self) -> Paths:
        """Return the paths on this machine, which can be another than the target machine."""
        root = self.settings.root
        here = recognise(read_sites(root), self.environ, os.uname().nodename)
        return derive_paths(load_settings(root, {**self.options, "machine": here}, self.environ))

    def title(self, usage: str) -> str:
        """Return the second line of a script: the command that emitted it, and its machine."""
        machine = self.settings.machine
        return f"Longship: {usage}, machine {machine.name} ({machine.site_file})"

    def finish(
        self,
        script: str,
        name: str,
        arguments: tuple[str, ...] = (),
        later: Callable[[], Iterable[tuple[str, str]]] = tuple,
        note: str = "",
    ) -> None:
        """Print a script, or run it in place of this process.

        A job will run the later ones, each given with where: they are only printed. The note is
        what the script says that a user wants to know before it is run.
        """
        if self.dry_run:
            from lib.commands.dry_run import print_scripts

            if note:
                print_messages(note=note)
            print_scripts(script, later())
        else:
            execute.become(script, name, arguments, self.environ)

    def show(self, usage: str, report: Callable[[], Report]) -> None:
        """Print a report of a command that changes nothing."""
        if self.dry_run:
            print_no_script(self.title(usage))
            return
        import signal

        text, following = report()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head -1` must end quietly
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        sys.stdout.flush()
        if following and not os.environ.get("LONGSHIP_QUICKSTART"):
            print_messages(next=following)


@functools.cache  # two jobs can be submitted at once
def _print_choice(choice: Choice) -> Choice:
    """Name the runtime if the configuration does not, once."""
    if choice.why:
        text = f"runtime {choice.runtime}"
        if choice.runtime == "host":
            text = "running directly on this machine, without a container"
        print_messages(note=f"{text} ({choice.why})")
    return choice


def print_no_script(title: str) -> None:
    """Print what --dry-run shows of a command that changes nothing."""
    note = "This command only reads and reports; it runs no script."
    print("#!/usr/bin/env bash", command.comment(title), command.comment(note), sep="\n")


def command_line(script: str) -> str:
    """Return this command line without pip's options, which can contain an index's password."""
    arguments = sys.argv[1:]
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    return command.call("python3", script, *(each for each in arguments if each != "--dry-run"))


def note_lost_names(environ: Mapping[str, str]) -> None:
    """Name the caller's variables that do not reach the program."""
    names = ", ".join(lost_names(environ))
    if names:
        print_messages(note=f"not passed on, because their names are not POSIX names: {names}")


def launch(
    invocation: Invocation, command: tuple[str, ...], *, online: bool = False, purpose: str = "run"
) -> None:
    """Run a command, or an interactive shell, inside the environment in place of this process."""
    from lib.runtimes.launch import run_lines
    from lib.script.render import render

    note_lost_names(invocation.environ)
    env = invocation.environment(purpose)
    if env.overlay and not env.venv:
        _check_install(command)
    lines = run_lines(env, online=online)
    invocation.finish(render(invocation.title(LAUNCH), lines), "container_run.py", command)


def _check_install(command: tuple[str, ...]) -> None:
    """Stop at a `pip install` into an overlay."""
    elsewhere = ("-t", "--target", "--prefix", "--root", "--python")
    if _INSTALLS.match(" ".join(command[:4])) and not any(
        each.startswith(elsewhere) for each in command
    ):
        raise LongshipError(
            "the packages are in an overlay, which cannot be changed",
            "add the package to the requirements and run: python3 build_overlay.py; "
            "to try it first: docs/how-to/overlays.md",
        )


def main(name: str) -> None:
    """Run an entry script; the one place where errors become messages and exit codes.

    0         done
    1         error, with a hint; for the checks of `doctor.py`: at least one problem found
    2         usage error: unknown option, mode or argument; for an option of sbatch: 1
    126       `container_run.py`: the command is a file that cannot be executed
    127       `container_run.py`: command not found inside the environment
    130       interrupted by Ctrl-C; building and installing also by SIGTERM or SIGHUP
    128 + n   ended by signal n: 143 at a time limit or after `scancel`
    other     `container_run.py`: exit code of the command
    """
    find_packages()
    try:
        _check_directory()
        if name == "container_run" and sys.argv[1:2] and not sys.argv[1].startswith("-"):
            invocation = Invocation.read(
                {}, dry_run=False
            )  # without options, a launch does not import click
            launch(invocation, tuple(sys.argv[1:]))
        else:
            from lib.commands.options import run_command

            run_command(name)
        sys.stdout.flush()
    except LongshipError as error:
        error.print()
        sys.exit(1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drop unwritten output
        if not isinstance(error, BrokenPipeError):
            what = error.filename or "the output"
            LongshipError(
                f"cannot read or write {what}: {error.strerror}",
                "check for free space (df -h, df -i) and for permissions (ls -ld)",
            ).print()
        sys.exit(1)
    except ModuleNotFoundError as missing:
        extra = (missing.name or "").split(".")[:2]
        if extra[0] == "extras" and len(extra) > 1:
            directory = "/".join(extra)
            LongshipError(
                f"{directory} is incomplete: no module {missing.name}",
                f"restore it: git checkout -- {directory}; or remove all of it: rm -r {directory}",
            ).print()
            sys.exit(1)
        if missing.name not in ("click", "tomli"):
            raise
        LongshipError(
            f"{sys.executable} has no package {missing.name}, which these scripts need",
            "python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt",
        ).print()
        sys.exit(1)


def _check_directory() -> None:
    try:
        os.getcwd()
    except OSError as error:
        message = f"cannot use the current directory: {error.strerror}"
        raise LongshipError(message, "run: cd") from error
