"""The one kind of error that a user can mend."""

from __future__ import annotations

import sys


class LongshipError(Exception):
    """Something that the user can mend; told in two lines, never as a traceback.

    Parameters
    ----------
    message : str
        What is wrong, and where.
    hint : str
        What to type, or the values that are allowed.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def tell(self) -> None:
        """Write both lines to standard error, whatever bytes a path in them holds."""
        text = f"error: {self}\nhint: {self.hint}\n"
        sys.stderr.buffer.write(text.encode(errors="surrogateescape"))


def near_miss(word: str, allowed: list[str] | tuple[str, ...]) -> str:
    """Name the allowed values, the most similar one first.

    Parameters
    ----------
    word : str
        What was found.
    allowed : sequence of str
        What would have been right.

    Returns
    -------
    str
        A hint such as ``did you mean "image"? allowed: binds, image, runtime``.
    """
    from difflib import get_close_matches  # only on the way to an error: it costs every launch 2 ms

    close = get_close_matches(word, allowed, n=1)
    meant = f'did you mean "{close[0]}"? ' if close else ""
    return f"{meant}allowed: {', '.join(allowed) or 'none'}"
