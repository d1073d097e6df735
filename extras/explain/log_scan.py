"""Search a log for known messages.

A log can be gigabytes of any bytes. It is read once, in blocks. Most lines differ only in their
numbers from earlier ones without a known text, and are skipped. Of a large file only both ends are
searched.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from extras.explain.first_failure import FirstFailure

_BLOCK = 1 << 20  # bytes read at once
_LONGEST = 4 * _BLOCK  # bytes without an end of line
END = 1 << 25  # bytes at both ends of a file that are searched
_SEEN = 2000  # bytes of a line before and after the text
_KINDS = 1 << 15  # kinds of lines that are remembered
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)

# How srun labels the output of a task; PyTorch adds the rank.
_LABEL = re.compile(r" *([0-9]+): |(?=\[rank ?([0-9]+)\])")
# Lines of verbose programs about what they tried, which are no failures.
_DETAIL = re.compile(rb"\bDEBUG\b|level=debug|\[[IV][0-9]{3,4} ")
_ERRORS = (b"Error", b"error:", b"ERROR", b"FATAL", b"fatal:", b"Exception", b"Segmentation fault")
# The first line of each attempt of a requeued job, in the same log.
_ATTEMPT = b"longship: run "
# The first line of what the end of a job adds to its log (lib/jobs/run.bash): not its own output.
_EXPLANATION = b"longship: explanation of the failure"
# A traceback of Python or rich; tracebacks near each other belong to one failure.
_TRACEBACK = b"Traceback (most recent call"
_NEAR = 1 << 16  # bytes
_LONG = 300  # lines
_MANY = 200  # tracebacks read per block
_FRAME = re.compile(
    r'\bFile "(?P<file>[^"]+)", line (?P<line>[0-9]+)'
    r"|(?:[│┃] |\bFile )(?P<short>[^\s:]+\.py):(?P<at>[0-9]+)(?: in |, in )"
)
_RAISED = re.compile(
    r"([\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)|[a-z]\w*(?:\.\w+)*\.[A-Z]\w+)"
    r"(?:\((\w+)\))?(?:: ?(.*)|$)"
)
_CAUGHT = re.compile(r"Caught \w+ in ")
_HANDLED = "During handling of the above exception"
_CAUSE = "The above exception was the direct cause"
_RANK = re.compile(r"(?:^ *[0-9]+: )?\[[Rr]ank ?[0-9]+\]:? $")
_LIBRARY = re.compile(
    r"(?:^|/)(?:(?:lib/python3\.[0-9]+/)?(?:site|dist)-packages|lib/python3\.[0-9]+)/"
)
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+)")
# What lines that look like errors contain (lower case), what shows that a line is none, and how
# many lines are remembered.
_SUSPECT = (
    b"error|fail|fatal|cannot|can't|could not|couldn't|unable|denied|invalid|abort|exception:|panic"
    b"|fault:|no such|not found|not permitted|not available|not support|not exist|not match"
    b"|not recogni|did not|mismatch|unsupported|unavailable|unknown|refused|timed out|killed"
    b"|exceed|expired|non-zero|nonzero|insufficient|not enough|unrecogni|is required"
    b"|marked dead|[e000 |[f000 |e0000 |f0000 "
).split(b"|")
_HARMLESS = re.compile(
    rb"(?<![=_])(?<!PKG-)\b(?:INFO|VERBOSE|DEBUG|TRACE|DIAG|[Dd]ebug[0-9]?)\b|level=debug|<info>"
    rb"|\[W |\bWARNING\b|Warning: |: [IW] |\[?[IVWD][0-9]{3,4} |^(?:--|#) |[Ii]gnor|Skipping |/fail"
    rb"|libibverbs|dlerror|gds_ds12|oom_score_adj|spank: x11|frame #|asynchronously|File \""
    rb"|Exception raised from|error[_ ]file|errors\.html|suppress_errors|Token indices"
    rb"|: tasks? [0-9,-]+: |be set automatically|UCX +WARN|[Ff]alling back|mask is not set"
    rb"|disabled\.$"
)
_SUSPECTS = 1000
_AROUND = 500  # characters
_BARE = re.compile(
    r"(?:^|[]:|)] +)(?=(?:(?:[A-Z]\w*|[a-z]\w*(?:\.\w+)*\.[A-Z]\w*)(?:Error|Exception)|Exception)"
    r"(?:\(\w+\))?(?:: |:?$))"
)
_UNKNOWN = "Python exception"


class Message(NamedTuple):
    """An entry of the table of known messages."""

    topic: str
    cause: str
    fix: str  # in both, {name} is a named group of the pattern
    text: list[str] = []  # noqa: RUF012  # any is in the line; none: for the exception of this name
    pattern: str = ""  # the line must match it too
    consequence: bool = False  # it follows from something else, which is printed first
    restart: str = ""  # of a job: `never`, as it would fail again; `node`, as one is faulty
    final: str = ""  # regular expression of lines after which a step cannot continue
    source: str = ""  # URL of a page about it
    sites: list[str] = []  # noqa: RUF012  # never changed
    likely: str = ""  # if nothing else is found: matches its exception, or a line like an error


class Finding(NamedTuple):
    """A message in a log: its first line, and the number of lines."""

    message: Message
    offset: int
    line: int
    line_text: str
    column: int
    values: dict[str, str]
    count: int = 1

    @property
    def task(self) -> str:
        """The task or rank whose line it is; empty where the line has no label."""
        label = _LABEL.match(self.line_text)
        return (label[1] or label[2]) if label else ""

    def filled(self, text: str) -> str:
        """Replace each {name} by its value in the line."""
        for name, value in self.values.items():
            text = text.replace(f"{{{name}}}", value)
        return text


class Raised(NamedTuple):
    """An exception or a line that no text of the table explains, with the places in a traceback."""

    line: int
    text: str
    places: list[tuple[str, str]]

    def described(self) -> str:
        """Return the text and the file that raised the exception, which `likely` matches."""
        files = [_LIBRARY.split(file)[-1:] for file, _ in self.places if file[0] != "<"]
        return f"{self.text} in {''.join(files[-1])}" if files else self.text

    def where(self) -> str:
        """Say where it was raised, and from which line outside installed packages."""
        known = [(_package(file), file, line) for file, line in self.places if file[0] != "<"]
        if not known:
            return ""
        package, file, line = known[-1]
        name = file.rpartition("/")[2]
        if not package:
            return f" It was raised in {file}, line {line}."
        called = next((each for each in reversed(known) if not each[0]), None)
        raised = f" It was raised in {package} ({name}, line {line})"
        return f"{raised}, called from {called[1]}, line {called[2]}." if called else f"{raised}."


class _Search(NamedTuple):
    """A text to search for, of a message."""

    message: Message
    text: bytes
    pattern: re.Pattern[bytes]
    kind: bytes
    has_digits: bool  # which a line must have


class Scan:
    """The findings of a log; of a requeued job those of its last attempt."""

    def __init__(self, messages: list[Message]) -> None:
        """Search for messages, the special ones before the general."""
        self._searches = [_search_for(each, text) for each in messages for text in each.text]
        self._families = [
            (each, re.compile(each.likely, re.IGNORECASE)) for each in messages if each.likely
        ]
        self._exceptions = {
            each.topic: each for each in messages if not each.text and not each.likely
        }
        self._offset = self.lines = self._attempts = 0
        self.skipped: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        # by kind of line: the searches whose result depends on the digits of a line
        self._kinds: dict[bytes, list[_Search]] = {}
        self._found: dict[str, Finding] = {}
        self.first = FirstFailure()
        self._failed_in, self._is_explained = 0, False
        self._suspects: dict[bytes, Raised] = {}  # by kind of line
        self.last_error = (0, "")
        self._before_error = b""  # lines before it: a traceback whose head is missing
        self._end = b""  # of the block before
        self._raised: Raised | None = None
        self._traceback, self._caught = -_NEAR, 0

    @property
    def findings(self) -> list[Finding]:
        """Causes first, each group in the order of the log; without a cause what is likely one."""
        found = sorted(
            self._found.values(), key=lambda each: (each.message.consequence, each.offset)
        )
        if found and not found[0].message.consequence:
            return found
        raised = self._raised or self._bare_exception()
        if found and raised and not raised.places:
            raised = None
        suspects = self._suspects.values()
        likely = self._explain_exception(raised) if raised else self._explain_by_family(*suspects)
        if not likely and not found:
            likely = self._explain_failed_task()
        return [likely, *found] if likely else found

    def _bare_exception(self) -> Raised | None:
        """Return the last exception without the head of a traceback, with the places before it."""
        number, text = self.last_error
        if number != self._caught and (label := _BARE.search(text)):
            frames = _FRAME.finditer(self._before_error.decode("utf-8", "replace"))
            raised = Raised(number, text[label.end() :], [_place(each) for each in frames])
            return raised if raised.places or raised.text != "Exception:" else None
        return None

    def _explain_exception(self, raised: Raised) -> Finding | None:
        """Explain an exception by its family, or by its class."""
        named = _RAISED.match(raised.text)
        if not named:
            return None
        if likely := self._explain_by_family(raised):
            return likely
        kind = named[2] or named[1].rpartition(".")[2]
        message = self._exceptions.get(kind) or self._exceptions.get(_UNKNOWN)
        values = {"exception": kind, "where": raised.where()}
        return message and Finding(message, 0, raised.line, raised.text, 0, values)

    def _explain_by_family(self, *suspects: Raised) -> Finding | None:
        """Explain what the first family of the table matches."""
        for message, likely in self._families:
            for each in suspects:
                if likely.search(each.described()):
                    return Finding(message, 0, each.line, each.text, 0, {"where": each.where()})
        return None

    def _explain_failed_task(self) -> Finding | None:
        message = self._exceptions.get("task failed")
        if not self._failed_in or not message:
            return None
        who = self.first.who
        values = {"reason": who[0].upper() + who[1:]}
        return Finding(message, 0, self._failed_in, f"srun: error: {who}", 0, values)

    def read(self, stream: BinaryIO, size: int = 0) -> None:
        """Read a log to its end.

        Of a large `size` only both ends are searched; `skipped` are the first and the last line
        between them. Size 0 searches all of it.
        """
        rest = b""
        while block := stream.read(_BLOCK):
            block = rest + block
            end = block.rfind(b"\n") + 1 or (len(block) if len(block) > _LONGEST else 0)
            self._feed(block[:end], END <= self._offset <= size - END - end)
            rest = block[end:]
        self._feed(rest)
        self.lines += bool(rest)

    def _feed(self, block: bytes, is_skipped: bool = False) -> None:
        """Search a block; of one that is skipped only look for the begin of another attempt."""
        begin = 0
        for at in _positions(block, _ATTEMPT):
            if at and block[at - 1 : at] != b"\n":
                continue
            self._search(block[begin:at], is_skipped)
            begin = at
            self._attempts += 1
            if self._attempts > 1:
                self._forget()
        self._search(block[begin:], is_skipped)

    def _search(self, block: bytes, is_skipped: bool) -> None:
        if is_skipped:
            first = self.skipped[0] if self.skipped else self.lines + 1
            self.skipped = (first, self.lines + block.count(b"\n"))
        elif not self._is_explained:
            text, mark, _ = block.partition(_EXPLANATION)
            self._is_explained = bool(mark)
            self._search_lines(text)
        self.lines += block.count(b"\n")
        self._offset += len(block)

    def _search_lines(self, block: bytes) -> None:
        lines, kinds = block.split(b"\n"), _kind(block).split(b"\n")
        new = b"\n".join({*kinds} - self._kinds.keys())
        searches = [each for each in self._searches if each.kind in new]
        explained = set()
        for number, kind in enumerate(kinds):
            tried = self._kinds.get(kind)
            if tried:
                if self._explain_line(tried, lines, number):
                    explained.add(number)
            elif tried is None:
                tried = [each for each in searches if each.kind in kind]
                if self._explain_line(tried, lines, number):
                    explained.add(number)
                else:
                    self._remember_suspect(kind, lines, number)
                    tried = [each for each in tried if each.has_digits]
                if len(kind) <= _SEEN:
                    self._kinds[kind] = tried
        if len(self._kinds) > _KINDS:
            self._kinds.clear()
        at = self.first.feed(block)
        if at >= 0 and not self._failed_in:
            self._failed_in = self.lines + block.count(b"\n", 0, at) + 1
        for at in itertools.islice(_positions(block, _TRACEBACK), _MANY):
            self._trace(lines, block.count(b"\n", 0, at), self._offset + at, explained)
        last = max(block.rfind(each) for each in _ERRORS)
        if last >= 0:
            start, end = _line_around(block, last)
            number = block.count(b"\n", 0, start)
            self.last_error = (self.lines + number + 1, _shown(block[start:end]))
            before = (self._end + block[:start])[-2 * _SEEN :]
            self._before_error = b"" if number in explained else before
        self._end = block[-2 * _SEEN :]

    def _explain_line(self, searches: list[_Search], lines: list[bytes], number: int) -> bool:
        """Count the messages in the parts of a line; tell whether there is any."""
        line, taken = lines[number], set()
        for message, text, pattern, *_ in searches:
            for at in _positions(line, text):
                start, end = _line_around(line, at)
                part = line[start:end]
                if start in taken or _DETAIL.search(part) or _is_code(lines, number, part):
                    continue
                if not (match := pattern.search(part)):
                    continue
                taken.add(start)
                if known := self._found.get(message.topic):
                    self._found[message.topic] = known._replace(count=known.count + 1)
                    continue
                values = {name: _shown(value or b"") for name, value in match.groupdict().items()}
                offset = self._offset + sum(len(each) + 1 for each in lines[:number]) + start
                self._found[message.topic] = Finding(
                    message, offset, self.lines + number + 1, _shown(part), at - start, values
                )
        return bool(taken)

    def _remember_suspect(self, kind: bytes, lines: list[bytes], number: int) -> None:
        """Remember the first line of a kind that looks like an error."""
        line, lower = lines[number], kind.lower()
        text = next((each for each in _SUSPECT if each in lower), None)
        if not text or kind in self._suspects:
            return
        if _HARMLESS.search(line) or _is_code(lines, number, line):
            return
        at = lower.find(text)
        begin, end = _line_around(line, at)
        around = line[max(begin, at - _AROUND) : min(end, at + _AROUND)]
        self._suspects[kind] = Raised(self.lines + number + 1, _shown(around), [])
        if len(self._suspects) > _SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def _trace(self, lines: list[bytes], number: int, offset: int, explained: set[int]) -> None:
        """Remember the first exception of a group of tracebacks that the table does not explain."""
        near = offset - self._traceback < _NEAR
        self._traceback = offset
        if near and self._raised:
            return
        raised, last = _read_traceback(lines, number)
        if not raised:
            self._caught = self.lines + last + 1 if last >= 0 else 0
        elif last not in explained:
            self._raised = raised._replace(line=self.lines + last + 1)


def _read_traceback(lines: list[bytes], number: int) -> tuple[Raised | None, int]:
    """Return the exception of a traceback, and the number of its line.

    Lines of other ranks between its lines are skipped: their prefixes differ.
    """
    at = lines[number].find(_TRACEBACK)
    before = lines[number][max(0, at - _SEEN) : at].decode("utf-8", "replace")
    prefix = re.sub("[╭┏].*|Original ", "", before.rpartition("\r")[2])
    if label := _RANK.search(prefix):  # after a progress bar
        prefix = label[0]
    elif not prefix.rstrip().endswith((":", "]", ")", "|")):
        prefix = prefix if prefix.isspace() else ""
    digits = {ord(each): "0" for each in "123456789"} if len(prefix) > 20 else {}  # it has a time
    places: list[tuple[str, str]] = []
    found: tuple[Raised | None, int] = (None, -1)
    code = rest = ""
    for last in range(number + 1, min(number + 1 + _LONG, len(lines))):
        line = lines[last][:_SEEN].decode("utf-8", "replace")
        if line[: len(prefix)].translate(digits) != prefix.translate(digits):
            continue
        line = line[len(prefix) :]
        if frame := _FRAME.search(line):
            places.append(_place(frame))
            code = ""
        elif places and (named := _RAISED.match(line)):
            if code.startswith("assert ") and not named[3]:
                line = f"{line}: {code}"
            found = (Raised(0, _shown(line.encode()), places), last)
            rest = b"\n".join(lines[last : last + 40])[: 2 * _SEEN].decode("utf-8", "replace")
            reported = named[2] or _CAUGHT.match(named[3] or "")  # by Ray, by a data loader
            if not reported and _HANDLED not in rest.split("Traceback", 1)[0]:
                break  # else the next one has more details
            places = []
        else:
            code = code or line.strip()
    fatal = label or "Original" in before or _CAUSE in rest  # PyTorch labels what ends a rank
    fatal = fatal or b"(RANK " in lines[number][at : at + 60]
    if found[0] and _INSTALLED.search(found[0].places[0][0]) and not fatal:
        return None, found[1]  # it was caught in a package
    return found


def _place(frame: re.Match[str]) -> tuple[str, str]:
    return frame["file"] or frame["short"], frame["line"] or frame["at"]


def _package(file: str) -> str:
    """Return the installed package that a file belongs to; '' for the user's own code."""
    if package := _INSTALLED.search(file):
        return package[1]
    if file.endswith(".pyx"):
        return file.partition("/")[0]
    return "Python's library" if re.search(r"/lib/python3\.[0-9]+/", file) else ""


def _search_for(message: Message, text: str) -> _Search:
    pattern, plain = message.pattern, text.encode()
    has_digits = re.search("[0-9]", text + re.sub(r"\[0-9\]|\{[0-9,]+\}", "", pattern))
    return _Search(message, plain, re.compile(pattern.encode()), _kind(plain), bool(has_digits))


def _kind(text: bytes) -> bytes:
    """Return the text with each digit as 0: lines that differ only in numbers are of one kind."""
    return text.translate(_DIGITS)


def _positions(block: bytes, text: bytes) -> Iterator[int]:
    """Yield the places of a text, at most one per line."""
    at = block.find(text)
    while at >= 0:
        yield at
        at = block.find(text, _line_around(block, at)[1])


def _is_code(lines: list[bytes], number: int, part: bytes) -> bool:
    """Tell whether a line is code that a traceback quotes: what it raises is in a later line."""
    frame = lines[number - 1] if number else b""
    indent = frame.find(b'File "')
    return indent >= 0 and part.startswith(frame[:indent] + b"  ")


def _line_around(block: bytes, at: int) -> tuple[int, int]:
    """Return begin and end of a line, or of a part of a long one."""
    first = max(0, at - _SEEN)
    ends = [
        each for each in (block.find(end, at, at + _SEEN) for end in (b"\n", b"\r")) if each > 0
    ]
    begin = max(block.rfind(each, first, at) + 1 for each in (b"\n", b"\r"))
    return max(begin, first), min(ends, default=min(at + _SEEN, len(block)))


def _shown(line: bytes) -> str:
    """Make a line safe for a terminal, whose encoding may not be UTF-8."""
    text = "".join(c if c.isprintable() else " " for c in line.decode("utf-8", "replace"))
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding).rstrip()
