"""The command lines of the entry scripts: options that all of them have, modes, usage errors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, Callable

import click

from lib import VERSION
from lib.commands import Invocation
from lib.commands.verbs import find_command
from lib.script.errors import LongshipError, closest, suggest

version_option = click.version_option(VERSION, prog_name="Longship", message="%(prog)s %(version)s")


class WrongCall(click.UsageError):
    """A usage error with a better hint than ``--help``."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Mode(click.Choice):
    """The mode of a script; the error for a mistyped one names the closest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the mode unchanged."""
        if value not in self.choices:
            raise WrongCall(f'unknown mode: "{value}"', suggest(value, self.choices))
        return value


def run_command(name: str) -> None:
    """Run the command of an entry script; a usage error is two lines, and exit code 2."""
    script = f"{name}.py"
    try:
        find_command(name).main(prog_name=script, standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        usage = f"python3 {context.command_path if context else script} --help"
        _as_longship_error(error, usage).print()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)


def _as_longship_error(error: click.ClickException, usage: str) -> LongshipError:
    """Return the error with a hint: the closest option, the choices, or how to get help."""
    if isinstance(error, WrongCall):
        return LongshipError(error.message, error.hint)
    if isinstance(error, click.NoSuchOption):
        close = closest(error.option_name, error.possibilities or (), cutoff=0.65)
        near = f"did you mean {close}? " if close else ""
        return LongshipError(f"no such option: {error.option_name}", f"{near}see: {usage}")
    if isinstance(error, click.MissingParameter) and error.param:
        choices = getattr(error.param.type, "choices", ())
        hint = f"one of: {', '.join(choices)}; " if choices else ""
        name = error.param.human_readable_name
        return LongshipError(f"missing argument: {name}", f"{hint}run: {usage}")
    message = error.format_message().removesuffix(".")
    return LongshipError(message[:1].lower() + message[1:], f"run: {usage}")


def complete(kind: str) -> Callable[..., list]:
    """Return the function that completes a kind of value: extras/completion, which asks, knows."""
    return lambda context, parameter, word: context.obj(kind, context, word)


def script_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that every entry script has; it receives an `Invocation`."""

    @functools.wraps(function)
    def with_invocation(*, dry_run: bool, options: Mapping[str, str], **others: Any) -> None:
        function(Invocation.read(options, dry_run=dry_run), **others)

    return plain_options(with_invocation)


def plain_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the same options; it receives ``dry_run``, and the others as ``options``."""

    @functools.wraps(function)
    def with_options(machine: str, stack: str, configuration: str, **others: Any) -> None:
        options = {"machine": machine, "stack": stack, "configuration": configuration}
        function(options=options, **others)

    # click's mark of a paragraph that is not wrapped, which a raw docstring cannot contain
    with_options.__doc__ = (function.__doc__ or "").replace("\\b\n", "\b\n")
    for add in (
        version_option,
        click.option("--dry-run", is_flag=True, help="Print the script instead of running it."),
        _option("configuration", "FILE", "Configuration file (default: configuration.toml)."),
        _option("stack", "NAME", "Stack to use, a directory under stacks/."),
        _option("machine", "NAME", "Target machine (default: detected)."),
    ):
        with_options = add(with_options)
    return with_options


def _option(name: str, metavar: str, about: str) -> Callable[..., Any]:
    return click.option(
        f"--{name}", metavar=metavar, default="", help=about, shell_complete=complete(name)
    )
