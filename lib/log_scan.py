"""Search a log for known messages.

A log can be gigabytes of any bytes. It is read once, in blocks; a block is searched for fixed
texts, which is fast; a regular expression sees no more than a line. Of a large file only both ends
are searched: how it began, and how it ended.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

_BLOCK = 1 << 20  # bytes that are read at once
_LONGEST = 4 * _BLOCK  # of what has no end of line
END = 1 << 25  # of a file's begin and end that are searched
_SEEN = 2000  # bytes of a line before and after the text
_KINDS = 1 << 15  # of lines that are remembered
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)

# How srun tells the end of a task and labels what it says; PyTorch adds the rank.
_ENDED = re.compile(rb"srun: error: ([^ :]+): tasks? ([0-9,-]+)[^:]*: (?!Terminated)(.*)")
_LABEL = re.compile(r" *([0-9]+): |(?=\[rank ?([0-9]+)\])")
# Lines with which programs tell, when asked to tell much, what they tried; none is a failure.
_DETAIL = re.compile(rb"\bDEBUG\b|level=debug|\[[IV][0-9]{3,4} ")
_ERRORS = (b"Error", b"error:", b"ERROR", b"FATAL", b"fatal:", b"Exception", b"Segmentation fault")
# Each attempt of a requeued job begins with it, in the same log.
_ATTEMPT = b"longship: run "


class Message(NamedTuple):
    """A message that users meet.

    Parameters
    ----------
    topic : str
        What it is about, in a few words.
    text : list of str
        What a line contains, any of them.
    cause, fix : str
        What it means and what to do; ``{name}`` is a named group of `pattern`.
    examples : list of str
        Lines as the programs print them, for each text.
    pattern : str
        A regular expression that the line must match too.
    consequence : bool
        It follows from something else, which is told first.
    source : str
        Address of a page about it.
    sites : list of str
        Folders of the sites where it is known from.
    """

    topic: str
    text: list[str]
    cause: str
    fix: str
    examples: list[str]
    pattern: str = ""
    consequence: bool = False
    source: str = ""
    sites: list[str] = []  # noqa: RUF012  # never changed


class Finding(NamedTuple):
    """A message in a log: its first line, and how many there are."""

    message: Message
    offset: int
    line: int
    said: str
    column: int
    values: dict[str, str]
    count: int = 1

    @property
    def task(self) -> str:
        """The task or rank whose line it is; empty where the line has no label."""
        label = _LABEL.match(self.said)
        return (label[1] or label[2]) if label else ""

    def filled(self, text: str) -> str:
        """Put in what the line names."""
        for name, value in self.values.items():
            text = text.replace(f"{{{name}}}", value)
        return text


class Scan:
    """What a log says; of a requeued job its last attempt.

    Parameters
    ----------
    messages : list of Message
        The special stands before the general.
    """

    def __init__(self, messages: list[Message]) -> None:
        self._searches = [
            (each, text.encode(), re.compile(each.pattern.encode()), _names_digits(each, text))
            for each in messages
            for text in each.text
        ]
        self._dull: set[bytes] = set()
        self._offset = self.lines = self._attempts = 0
        self.skipped: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._found: dict[str, Finding] = {}
        self.failed = ""
        self.last_error = (0, "")

    @property
    def findings(self) -> list[Finding]:
        """Causes first, each kind in the order of the log."""
        return sorted(
            self._found.values(), key=lambda each: (each.message.consequence, each.offset)
        )

    def read(self, stream: BinaryIO, size: int = 0) -> None:
        """Read a log to its end.

        Parameters
        ----------
        stream : file
            The log.
        size : int
            How large it is, to search only both ends of a large one; `skipped` are the first and
            the last line between them. 0 searches all of it.
        """
        rest = b""
        while block := stream.read(_BLOCK):
            block = rest + block
            end = block.rfind(b"\n") + 1 or (len(block) if len(block) > _LONGEST else 0)
            if self._offset >= END and self._offset + end <= size - END:
                self._skip(block[:end])
            else:
                self._take(block[:end])
            rest = block[end:]
        self._take(rest)
        self.lines += bool(rest)

    def _skip(self, block: bytes) -> None:
        """Count its lines, and see whether another attempt begins in it."""
        begun = block.count(b"\n" + _ATTEMPT) + block.startswith(_ATTEMPT)
        self._attempts += begun
        if begun and self._attempts > 1:
            self._forget()
        first = self.skipped[0] if self.skipped else self.lines + 1
        self.lines += block.count(b"\n")
        self._offset += len(block)
        self.skipped = (first, self.lines)

    def _take(self, block: bytes) -> None:
        begin = 0
        for at in _positions(block, _ATTEMPT):
            if at and block[at - 1 : at] != b"\n":
                continue
            self._look(block[begin:at])
            begin = at
            self._attempts += 1
            if self._attempts > 1:
                self._forget()
        self._look(block[begin:])

    def _look(self, block: bytes) -> None:
        taken: set[int] = set()
        kinds = block.translate(_DIGITS).split(b"\n")
        # Most lines differ from others, in which nothing was found, only in their numbers.
        fresh = b"\n".join({*kinds} - self._dull)
        for message, text, pattern, names_digits in self._searches:
            for at in _positions(block, text) if names_digits or text in fresh else ():
                start, end = _line_around(block, at)
                if start in taken or _DETAIL.search(block, start, end):
                    continue
                if match := pattern.search(block[start:end]):
                    taken.add(start)
                    self._note(message, block, start, at, match.groupdict())
        if len(self._dull) > _KINDS:
            self._dull.clear()
        self._dull.update(kind for kind in kinds if len(kind) <= _SEEN)
        for at in taken:
            begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            self._dull.discard(block[begin : end if end >= 0 else None].translate(_DIGITS))
        for at in _positions(block, b"srun: error: "):
            ended = None if self.failed else _ENDED.match(block, at, _line_around(block, at)[1])
            if ended:
                node, task, reason = (_shown(each) for each in ended.groups())
                self.failed = f"task {task} on {node}: {reason}"
        last = max(block.rfind(each) for each in _ERRORS)
        if last >= 0:
            start, end = _line_around(block, last)
            self.last_error = (self._number(block, start), _shown(block[start:end]))
        self.lines += block.count(b"\n")
        self._offset += len(block)

    def _number(self, block: bytes, at: int) -> int:
        return self.lines + block.count(b"\n", 0, at) + 1

    def _note(
        self, message: Message, block: bytes, start: int, at: int, values: dict[str, Any]
    ) -> None:
        known = self._found.get(message.topic)
        if known and known.offset < self._offset + start:
            self._found[message.topic] = known._replace(count=known.count + 1)
            return
        said = _shown(block[start : _line_around(block, at)[1]])
        values = {name: _shown(value or b"") for name, value in values.items()}
        line = self._number(block, start)
        count = known.count + 1 if known else 1
        self._found[message.topic] = Finding(
            message, self._offset + start, line, said, at - start, values, count
        )


def _names_digits(message: Message, text: str) -> bool:
    """Tell whether it matters which digits stand in a line."""
    pattern = re.sub(r"\[0-9\]|\{[0-9,]+\}", "", message.pattern)
    return any(each.isdigit() for each in text + pattern)


def _positions(block: bytes, text: bytes) -> Iterator[int]:
    """Go through the places of a text, one for each line."""
    at = block.find(text)
    while at >= 0:
        yield at
        at = block.find(text, _line_around(block, at)[1])


def _line_around(block: bytes, at: int) -> tuple[int, int]:
    """Return begin and end of a line, or of what stands near in a long one."""
    first = max(0, at - _SEEN)
    ends = [
        each for each in (block.find(end, at, at + _SEEN) for end in (b"\n", b"\r")) if each > 0
    ]
    begin = max(block.rfind(each, first, at) + 1 for each in (b"\n", b"\r"))
    return max(begin, first), min(ends, default=min(at + _SEEN, len(block)))


def _shown(line: bytes) -> str:
    """Make a line safe for a terminal, which may understand less than UTF-8."""
    text = "".join(c if c.isprintable() else " " for c in line.decode("utf-8", "replace"))
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding).rstrip()
