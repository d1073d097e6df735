"""What is said of a call that is none: two lines as for every other error; the exit code is 2."""

from __future__ import annotations

import click

from lib.errors import LongshipError, near_miss


class WrongCall(click.UsageError):
    """A wrong call for which there is a better hint than ``--help``.

    Parameters
    ----------
    message : str
        What is wrong.
    hint : str
        What to type.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Mode(click.Choice):
    """The word that says what a script is to do; a mistyped one is told the nearest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take one of the words as it is."""
        if value not in self.choices:
            raise WrongCall(f'there is no mode "{value}"', near_miss(value, self.choices))
        return value


def told(error: click.ClickException, script: str) -> LongshipError:
    """Turn what click raises into an error of ours.

    Parameters
    ----------
    error : click.ClickException
        A mistyped option, a missing word, one too many.
    script : str
        The entry script's name.

    Returns
    -------
    LongshipError
        Its hint names the near miss, else where all options stand.
    """
    usage = f"python3 {script} --help"
    if isinstance(error, WrongCall):
        return LongshipError(error.message, error.hint)
    if isinstance(error, click.NoSuchOption):
        near = f"did you mean {error.possibilities[0]}? " if error.possibilities else ""
        return LongshipError(f"there is no option {error.option_name}", f"{near}all: {usage}")
    if isinstance(error, click.MissingParameter) and error.param:
        choices = getattr(error.param.type, "choices", ())
        hint = f"one of: {', '.join(choices)}; " if choices else ""
        name = error.param.human_readable_name
        return LongshipError(f"a word is missing: {name}", f"{hint}all about it: {usage}")
    message = error.format_message().removesuffix(".")
    return LongshipError(message[:1].lower() + message[1:], usage)
