"""Usage errors: click's exceptions as two-line messages; the exit code is 2."""

from __future__ import annotations

import click

from lib.script.errors import LongshipError, suggest


class WrongCall(click.UsageError):
    """A usage error with a better hint than ``--help``.

    Parameters
    ----------
    message : str
        The problem.
    hint : str
        The command or option that solves it.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Mode(click.Choice):
    """The mode of a script; the error for a mistyped one names the closest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the mode if it is one of the choices."""
        if value not in self.choices:
            raise WrongCall(f'unknown mode: "{value}"', suggest(value, self.choices))
        return value


def told(error: click.ClickException, script: str) -> LongshipError:
    """Turn what click raises into an error of ours.

    Parameters
    ----------
    error : click.ClickException
        An unknown option, a missing argument, an unexpected one.
    script : str
        The entry script's name.

    Returns
    -------
    LongshipError
        Its hint names the closest option, else ``--help``.
    """
    context = getattr(error, "ctx", None)
    usage = f"python3 {context.command_path if context else script} --help"
    if isinstance(error, WrongCall):
        return LongshipError(error.message, error.hint)
    if isinstance(error, click.NoSuchOption):
        near = f"did you mean {error.possibilities[0]}? " if error.possibilities else ""
        return LongshipError(f"no such option: {error.option_name}", f"{near}see: {usage}")
    if isinstance(error, click.MissingParameter) and error.param:
        choices = getattr(error.param.type, "choices", ())
        hint = f"one of: {', '.join(choices)}; " if choices else ""
        name = error.param.human_readable_name
        return LongshipError(f"missing argument: {name}", f"{hint}run: {usage}")
    message = error.format_message().removesuffix(".")
    return LongshipError(message[:1].lower() + message[1:], f"run: {usage}")
