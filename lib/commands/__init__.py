"""What all entry scripts share: their options, the way to run or show a script, and the errors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from lib import ROOT, find_packages
from lib.configuration.layers import Settings, load_settings, warn_of_former_paths
from lib.configuration.paths import Paths, derive_paths
from lib.configuration.sites import load_machines, recognise
from lib.runtimes.choice import Choice, choose_builder, choose_runtime, choose_target_runtime
from lib.runtimes.contract import lost_names
from lib.runtimes.environment import Environment
from lib.script import command, execute
from lib.script.errors import LongshipError, print_messages

if TYPE_CHECKING:
    from lib.script.output import Report  # a launch does not pay for it

find_packages()
try:
    import click

    if sys.version_info < (3, 11):
        import tomli  # noqa: F401  # lib/configuration/tables.py needs it
except ModuleNotFoundError as missing:
    sys.exit(
        f"error: {sys.executable} has no package {missing.name}, which these scripts need\n"
        f"hint: python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt"
    )


class Call(NamedTuple):
    """One call of an entry script: everything that it is computed from.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    dry_run : bool
        Show the script instead of running it.
    environ : mapping
        The caller's environment.
    options : mapping
        What the command line says of machine, stack and configuration.
    """

    settings: Settings
    dry_run: bool
    environ: Mapping[str, str]
    options: Mapping[str, str]

    @classmethod
    def read(cls, options: Mapping[str, str], *, dry_run: bool) -> Call:
        """Read all layers of the configuration, as the options and the environment say."""
        settings = load_settings(Path(ROOT), options, os.environ)
        return cls(settings, dry_run, os.environ, options)

    @property
    def paths(self) -> Paths:
        """Where things lie on the machine that the script is for."""
        return derive_paths(self.settings)

    def changed(self, **options: str) -> Call:
        """Return the same call with other options, such as the machine that a job is for."""
        changed = {**self.options, **options}
        settings = load_settings(self.settings.root, changed, self.environ)
        return self._replace(settings=settings, options=changed)

    def runtime(self, paths: Paths | None = None) -> Choice:
        """Choose what runs the image, and say which where the configuration left it open."""
        return _told(choose_runtime(self.settings, paths or self.paths, execute.succeeds))

    def environment(
        self, purpose: str = "run", *, choice: Choice | None = None, paths: Paths | None = None
    ) -> Environment:
        """Resolve the environment for one purpose, by default on the target machine."""
        runtime = (choice or self.runtime()).runtime
        return Environment(self.settings, paths or self.paths, runtime, purpose)

    def target_runtime(self, here: Paths) -> Choice:
        """Choose what will run the image on a machine that is set up from downloads."""
        return _told(choose_target_runtime(self.settings, here, execute.succeeds))

    def builder(self) -> Choice:
        """Choose what makes the image, in the same way."""
        return _told(choose_builder(self.settings, execute.succeeds))

    def paths_here(self) -> Paths:
        """Return where things lie on the machine at hand, which may be another than the target."""
        root = self.settings.root
        here = recognise(load_machines(root), self.environ, os.uname().nodename)
        return derive_paths(load_settings(root, {**self.options, "machine": here}, self.environ))

    def typed(self, name: str) -> str:
        """Return what the user typed, to be typed again."""
        return _again(name, sys.argv[1:])

    def title(self, usage: str) -> str:
        """Return the second line of a script: what emitted it, for which machine."""
        machine = self.settings.machine
        return f"Longship: {usage}, machine {machine.name} ({machine.site_file})"

    def finish(self, script: str, name: str, arguments: tuple[str, ...] = ()) -> None:
        """Show a script, or become it."""
        finish(script, name, arguments, dry_run=self.dry_run)

    def show(self, usage: str, report: Callable[[], Report]) -> None:
        """Print a report of a command that changes nothing."""
        if self.dry_run:
            finish(script_of_report(self.title(usage)), usage, dry_run=True)
            return
        text, following = report()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head -1` must end quietly
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        sys.stdout.flush()
        if following and not os.environ.get("LONGSHIP_QUICKSTART"):
            print_messages(next=following)


def script_of_report(title: str) -> str:
    """Return what --dry-run prints for a command that changes nothing."""
    note = command.comment("This command only reads and reports; it runs no script.")
    return f"#!/usr/bin/env bash\n{command.comment(title)}\n{note}\n"


def finish(script: str, name: str, arguments: tuple[str, ...] = (), *, dry_run: bool) -> None:
    """Show a script, or become it."""
    if dry_run:
        sys.stdout.buffer.write(script.encode(errors="surrogateescape"))
    else:
        execute.become(script, name, arguments, os.environ)


def before_pip(name: str) -> str:
    """Return what is shown of a download: options of pip can hold the password of an index."""
    arguments = sys.argv[1:]
    return _again(name, arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _again(name: str, arguments: list[str]) -> str:
    """Return a call as it is typed again: to do it, not to show it."""
    return command.call("python3", name, *(each for each in arguments if each != "--dry-run"))


def note_lost_names(environ: Mapping[str, str]) -> None:
    """Name the caller's variables that do not reach the program."""
    names = ", ".join(lost_names(environ))
    if names:
        print_messages(note=f"not passed on, because their names are not POSIX names: {names}")


def _told(choice: Choice) -> Choice:
    if choice.why:
        text = f"runtime {choice.runtime}"
        if choice.runtime == "host":
            text = "running directly on this machine, without a container"
        print_messages(note=f"{text} ({choice.why})")
    return choice


def offered(kind: str) -> Callable[..., list]:
    """Return what answers on TAB: a kind of value of `lib/commands/values.py`."""

    def values(context: click.Context, parameter: click.Parameter, word: str) -> list:
        from lib.commands.values import values_of  # a launch does not pay for it

        return values_of(kind, context, word)

    return values


def script_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that every entry script has; it receives a `Call`."""

    def with_call(*, dry_run: bool, options: Mapping[str, str], **others: Any) -> None:
        call = Call.read(options, dry_run=dry_run)
        warn_of_former_paths(call.settings)
        function(call, **others)

    with_call.__doc__ = function.__doc__
    with_call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return plain_options(with_call)


def plain_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the same options; it receives ``dry_run``, and the others as ``options``."""

    def with_options(machine: str, stack: str, configuration: str, **others: Any) -> None:
        options = {"machine": machine, "stack": stack, "configuration": configuration}
        function(options=options, **others)

    # click's mark of a paragraph that is not wrapped, which a raw docstring cannot hold
    with_options.__doc__ = (function.__doc__ or "").replace("\\b\n", "\b\n")
    with_options.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for add in (
        click.option("--dry-run", is_flag=True, help="Print the script instead of running it."),
        _text_option("configuration", "FILE", "Configuration file (default: configuration.toml)."),
        _text_option("stack", "NAME", "Stack to use, a directory under stacks/."),
        _text_option("machine", "NAME", "Target machine (default: detected)."),
    ):
        with_options = add(with_options)
    return with_options


def _text_option(name: str, metavar: str, about: str) -> Callable[..., Any]:
    option = f"--{name}"
    return click.option(
        option, metavar=metavar, default="", help=about, shell_complete=offered(name)
    )


def main(script: click.Command, name: str) -> None:
    """Run an entry script's command; the one place where errors become messages and exit codes.

    0         done
    1         error, with a hint; for `doctor.py`: at least one problem found
    2         usage error: unknown option, mode or argument
    126       `container_run.py`: the command is a file that cannot be executed
    127       `container_run.py`: command not found inside the environment
    128 + n   ended by signal n: 130 after Ctrl-C, 143 at a time limit or after `scancel`
    other     `container_run.py`: exit code of the command
    """
    try:
        _check_folder()
        script.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except LongshipError as error:
        error.print()
        sys.exit(1)
    except click.ClickException as error:
        from lib.commands.usage_errors import told  # it imports click, which is looked for above

        told(error, name).print()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried
        if not isinstance(error, BrokenPipeError):
            what = error.filename or "the output"
            LongshipError(
                f"cannot read or write {what}: {error.strerror}",
                "check for free space (df -h, df -i) and for permissions (ls -ld)",
            ).print()
        sys.exit(1)


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise LongshipError(
            f"cannot use the current directory: {error.strerror}", "run: cd"
        ) from error
