"""Search a log for known messages.

A log can be gigabytes of any bytes. It is read once, in blocks. Each block is searched for fixed
texts, which is fast; a regular expression is matched only against single lines. Of a large file
only both ends are searched.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from lib.doctor.first_failure import FirstFailure

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

    offset: int
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


class Scan:
    """The findings of a log; of a requeued job those of its last attempt."""

    def __init__(self, messages: list[Message]) -> None:
        """Search for messages, the special ones before the general."""
        self._searches = [
            (each, text.encode(), re.compile(each.pattern.encode()), _without_digits(each, text))
            for each in messages
            for text in each.text
        ]
        self._families = [
            (each, re.compile(each.likely, re.IGNORECASE)) for each in messages if each.likely
        ]
        self._exceptions = {
            each.topic: each for each in messages if not each.text and not each.likely
        }
        self._dull: set[bytes] = set()
        self._met: set[bytes] = set()  # texts whose digits matter, found in a kind of line
        self._offset = self.lines = self._attempts = 0
        self.skipped: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
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
        likely = self._explain_exception(raised) if raised else self._explain_suspects()
        if not likely and not found:
            likely = self._explain_failed_task()
        return [likely, *found] if likely else found

    def _bare_exception(self) -> Raised | None:
        """Return the last exception without the head of a traceback, with the places before it."""
        number, text = self.last_error
        if number != self._caught and (label := _BARE.search(text)):
            frames = _FRAME.finditer(self._before_error.decode("utf-8", "replace"))
            raised = Raised(0, number, text[label.end() :], [_place(each) for each in frames])
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
        return message and Finding(message, raised.offset, raised.line, raised.text, 0, values)

    def _explain_suspects(self) -> Finding | None:
        """Explain the line that looks like an error of the first family of the table."""
        order = {message.topic: number for number, (message, _) in enumerate(self._families)}
        found = (self._explain_by_family(each) for each in self._suspects.values())
        return min(filter(None, found), key=lambda each: order[each.message.topic], default=None)

    def _explain_by_family(self, raised: Raised) -> Finding | None:
        text = raised.described()
        values = {"where": raised.where()}
        for message, likely in self._families:
            if likely.search(text):
                return Finding(message, raised.offset, raised.line, raised.text, 0, values)
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
            if self._offset >= END and self._offset + end <= size - END:
                self._skip(block[:end])
            else:
                self._feed(block[:end])
            rest = block[end:]
        self._feed(rest)
        self.lines += bool(rest)

    def _skip(self, block: bytes) -> None:
        """Count its lines, and look for the begin of another attempt."""
        begun = block.count(b"\n" + _ATTEMPT) + block.startswith(_ATTEMPT)
        self._attempts += begun
        if begun and self._attempts > 1:
            self._forget()
        first = self.skipped[0] if self.skipped else self.lines + 1
        self.lines += block.count(b"\n")
        self._offset += len(block)
        self.skipped = (first, self.lines)

    def _feed(self, block: bytes) -> None:
        begin = 0
        for at in _positions(block, _ATTEMPT):
            if at and block[at - 1 : at] != b"\n":
                continue
            self._search(block[begin:at])
            begin = at
            self._attempts += 1
            if self._attempts > 1:
                self._forget()
        self._search(block[begin:])

    def _search(self, block: bytes) -> None:
        end = 0 if self._is_explained else block.find(_EXPLANATION)
        self._is_explained = end >= 0
        self._search_lines(block[:end] if end >= 0 else block)
        self.lines += block.count(b"\n")
        self._offset += len(block)

    def _search_lines(self, block: bytes) -> None:
        taken: set[int] = set()
        kinds = block.translate(_DIGITS).split(b"\n")
        # Most lines differ only in their numbers from others in which nothing was found.
        fresh = b"\n".join({*kinds} - self._dull)
        for message, text, pattern, kind in self._searches:
            if (kind or text) in fresh:
                self._met.add(kind)
            elif not kind or kind not in self._met:
                continue
            for at in _positions(block, text):
                start, end = _line_around(block, at)
                if start in taken or _DETAIL.search(block, start, end):
                    continue
                if _is_code(_whole_line(block, max(0, start - 1)), block[start:end]):
                    continue
                if match := pattern.search(block[start:end]):
                    taken.add(start)
                    self._add_finding(message, block, start, at, match.groupdict())
        if len(self._dull) > _KINDS:
            self._dull.clear()
        self._dull.update(kind for kind in kinds if len(kind) <= _SEEN)
        known = {_whole_line(block, at).translate(_DIGITS) for at in taken}
        self._dull -= known
        self._remember_suspects(block, kinds, fresh, known)
        at = self.first.feed(block)
        if at >= 0 and not self._failed_in:
            self._failed_in = self._number(block, at)
        for at in itertools.islice(_positions(block, _TRACEBACK), _MANY):
            self._trace(block, at, taken)
        last = max(block.rfind(each) for each in _ERRORS)
        if last >= 0:
            start, end = _line_around(block, last)
            self.last_error = (self._number(block, start), _shown(block[start:end]))
            before = (self._end + block[:start])[-2 * _SEEN :]
            self._before_error = b"" if start in taken else before
        self._end = block[-2 * _SEEN :]

    def _remember_suspects(
        self, block: bytes, kinds: list[bytes], fresh: bytes, known: set[bytes]
    ) -> None:
        """Remember the first line of each new kind that looks like an error."""
        lower, places = fresh.lower(), {}
        for text in _SUSPECT:
            for at in _positions(lower, text):
                begin = fresh.rfind(b"\n", 0, at) + 1
                places.setdefault(_whole_line(fresh, at), at - begin)
        new = places.keys() - known - self._suspects.keys()
        if not new:
            return
        lines = block.split(b"\n")
        rows = zip(kinds, lines, [b"", *lines])
        for number, (kind, line, before) in enumerate(rows, self.lines + 1):
            if kind not in new or _HARMLESS.search(line) or _is_code(before, line):
                continue
            new.remove(kind)
            begin, end = _line_around(line, places[kind])
            around = slice(max(begin, places[kind] - _AROUND), min(end, places[kind] + _AROUND))
            text = _shown(line[around])
            self._suspects[kind] = Raised(self._offset, number, text, [])
        while len(self._suspects) > _SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def _trace(self, block: bytes, at: int, known: set[int]) -> None:
        """Remember the first exception of a group of tracebacks that the table does not explain."""
        near = self._offset + at - self._traceback < _NEAR
        self._traceback = self._offset + at
        if near and self._raised:
            return
        raised, start = _read_traceback(block, at)
        line = self._number(block, start) if start >= 0 else 0
        if not raised:
            self._caught = line
        elif start not in known:
            self._raised = raised._replace(offset=self._offset + start, line=line)

    def _number(self, block: bytes, at: int) -> int:
        return self.lines + block.count(b"\n", 0, at) + 1

    def _add_finding(
        self, message: Message, block: bytes, start: int, at: int, values: dict[str, Any]
    ) -> None:
        known = self._found.get(message.topic)
        if known and known.offset < self._offset + start:
            self._found[message.topic] = known._replace(count=known.count + 1)
            return
        text = _shown(block[start : _line_around(block, at)[1]])
        values = {name: _shown(value or b"") for name, value in values.items()}
        line = self._number(block, start)
        count = known.count + 1 if known else 1
        self._found[message.topic] = Finding(
            message, self._offset + start, line, text, at - start, values, count
        )


def _read_traceback(block: bytes, at: int) -> tuple[Raised | None, int]:
    """Return the exception of a traceback, and where its line begins.

    Lines of other ranks between its lines are skipped: their prefixes differ.
    """
    begin = max(block.rfind(b"\n", 0, at) + 1, at - _SEEN)
    before = block[begin:at].decode("utf-8", "replace")
    prefix = re.sub("[╭┏].*|Original ", "", before.rpartition("\r")[2])
    if label := _RANK.search(prefix):  # after a progress bar
        prefix = label[0]
    elif not prefix.rstrip().endswith((":", "]", ")", "|")):
        prefix = prefix if prefix.isspace() else ""
    digits = {ord(each): "0" for each in "123456789"} if len(prefix) > 20 else {}  # it has a time
    places: list[tuple[str, str]] = []
    found: tuple[Raised | None, int] = (None, -1)
    code = rest = ""
    for _ in range(_LONG):
        begin = block.find(b"\n", begin) + 1
        if not begin:
            break
        line = block[begin : begin + _SEEN].partition(b"\n")[0].decode("utf-8", "replace")
        if line[: len(prefix)].translate(digits) != prefix.translate(digits):
            continue
        line = line[len(prefix) :]
        if frame := _FRAME.search(line):
            places.append(_place(frame))
            code = ""
        elif places and (named := _RAISED.match(line)):
            if code.startswith("assert ") and not named[3]:
                line = f"{line}: {code}"
            found = (Raised(0, 0, _shown(line.encode()), places), begin)
            rest = block[begin : begin + 2 * _SEEN].decode("utf-8", "replace")
            reported = named[2] or _CAUGHT.match(named[3] or "")  # by Ray, by a data loader
            if not reported and _HANDLED not in rest.split("Traceback", 1)[0]:
                break  # else the next one has more details
            places = []
        else:
            code = code or line.strip()
    fatal = label or "Original" in before or _CAUSE in rest  # PyTorch labels what ends a rank
    fatal = fatal or b"(RANK " in block[at : at + 60]
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


def _without_digits(message: Message, text: str) -> bytes:
    """Return the text as in kinds of lines; empty if no digits of a line matter."""
    pattern = re.sub(r"\[0-9\]|\{[0-9,]+\}", "", message.pattern)
    matter = any(each.isdigit() for each in text + pattern)
    return text.encode().translate(_DIGITS) if matter else b""


def _positions(block: bytes, text: bytes) -> Iterator[int]:
    """Yield the places of a text, at most one per line."""
    at = block.find(text)
    while at >= 0:
        yield at
        at = block.find(text, _line_around(block, at)[1])


def _is_code(frame: bytes, line: bytes) -> bool:
    """Tell whether a line is code that a traceback quotes: what it raises is in a later line."""
    indent = frame.find(b'File "')
    return indent >= 0 and line.startswith(frame[:indent] + b"  ")


def _whole_line(block: bytes, at: int) -> bytes:
    begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
    return block[begin : end if end >= 0 else None]


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
