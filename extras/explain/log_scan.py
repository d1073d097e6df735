"""Search a log for known messages, and for the first error of each rank.

A log can be gigabytes of any bytes. It is read once, in blocks. Most lines differ only in their
numbers from earlier ones, and are not looked at again. Of a large file only the end is searched.

What a run survived is not why it ended: a message counts only if its rank printed no step of the
training after it, and if the run did not go on for several steps and minutes. A log in which many
ordinary lines follow the last sign of a failure is that of a healthy run: nothing is said about it.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import BinaryIO, NamedTuple

from extras.explain.first_failure import FOLLOWS, NOBODY, FirstFailure, Label
from lib.jobs.runs import NO_STEP, STEP

_BLOCK = 1 << 20  # bytes read at once
END = 1 << 25  # bytes at the end of a file that are searched
_SEEN = 2000  # bytes at both ends of a line that are searched
_KINDS = 1 << 15  # kinds of lines that are remembered
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)

# How srun labels the output of a task, and torchrun or PyTorch that of a rank. The watcher of a job
# quotes the line for which it ended a step, whatever the rank printed afterwards.
_LABEL = re.compile(
    rb"(?P<quoted>longship: the ranks cannot continue: (?: *[0-9]+: )?)?"
    rb"(?: *([0-9]+): ?)?(?:\[rank ?([0-9]+)\]:? ?){0,2}"
)
_TIME = re.compile(rb"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)\b")
# A run has survived what any rank printed after so many steps and seconds (more steps where the
# lines have no times): the lines of ranks are not ordered. What came before the first step has not
# kept the ranks from it.
_STEPS, _SECONDS, _UNTIMED_STEPS, _FIRST_STEPS = 10, 120, 100, 3
# After so many ordinary lines a log is not that of a failure, and a rank has survived its error.
# After what is only printed as an error none may follow in the log, and few of its rank.
_ORDINARY, _FEW = 10, 5
# Lines of programs about what they tried, warn of or continue without.
_HARMLESS = re.compile(
    rb"\b(?:DEBUG|INFO|VERBOSE|TRACE)\b|level=(?:debug|info|warn)|<info>|Warning: |^#|^\+ "
    rb"|\bWARN(?:ING)?\b(?<!NCCL WARN)|\[[DIVW][0-9]{3,4} |^\[?[DIVW][0-9]{4} |: [IW] [a-z]"
    rb"|[Ii]gnored? (?:error|exception)|[Rr]etrying\b|[Ff]alling back|[Ss]kipping|[Ii]gnoring"
)
# What is printed before the traceback of an error that ends nothing.
_IGNORED = re.compile(rb"Exception ignored in|--- Logging error ---|Uncaught exception in run_soon")
_TRACEBACK = b"Traceback (most recent call last)"
# What begins the report of a failure, by programs, runtimes and Slurm.
_ERROR = re.compile(
    rb"Traceback \(most recent|Fatal Python error|[\w./-]{0,40}: (?:fatal )?error: |[Ee]rror: "
    rb"|FATAL\b|fatal: |ERROR\b *:|\[?(?:ERROR|CRITICAL)\]? |[\w.]*(?:Error|Exception)(?:: |$)"
    rb"|Segmentation fault|Bus error|Killed$|Aborted|Floating point exception|terminate called"
    rb"|\S{0,99}python[0-9.]*: can't open file "
    rb"|(?:\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?[ -]+)(?:\S+[ :-]+){0,3}?\[?(?:ERROR|CRITICAL)\b"
)
# A step that is cancelled can be one that the job script itself ends.
_SLURM = re.compile(
    rb"srun: error: [^ :]+: tasks? [0-9][^:]*: (?!Terminated)"
    rb"|\*\*\* (?:STEP|JOB) .* (?:FAILED|DUE TO)|\*\*\* JOB .* CANCELLED"
)
# Slurm ends the job: what the ranks print then is not why. Those of other nodes can be faster than
# the line of the first node, but srun announces it before them.
_END = re.compile(rb"\*\*\* JOB .* CANCELLED AT |longship: Slurm preempts this job")
_ANNOUNCED = b"srun: Job step aborted: "
# Lines that come with the report of a failure.
_BESIDE = re.compile(
    rb"\s(?! *[0-9]+%\|)|$|[\w-]+: error: |srun: |slurm|wandb: |longship: |hint: |note: |frame #"
    rb"|\*\*\*|During handling|The above exception|[=-]{5}"
    rb"|.*(?:NCCL|\.so\b|0x[0-9a-f]{6}|\[E[0-9]|[Ee]rror|ERROR)"
)
_ATTEMPT = b"longship: run "  # the first line of each attempt of a job, in the same log
# The first line of what the end of a job adds to its log (lib/jobs/run.bash): not its own output.
_EXPLANATION = b"longship: explanation of the failure"
HINTED = "message with a hint"  # the topic of an error that comes with its own hint


class Message(NamedTuple):
    """An entry of the table of known messages."""

    topic: str
    cause: str
    fix: str  # in both, {name} is a named group of the pattern
    text: tuple[str, ...] = ()  # any is in the line
    pattern: str = ""  # the line without its label must match it too
    consequence: bool = False  # it follows from something else, which is printed first
    end: bool = False  # Slurm says how the job ended, which is printed before all others
    final: str = ""  # regular expression of lines after which a step cannot continue
    source: str = ""  # URL of a page about it


class Finding(NamedTuple):
    """A message in a log: its first line, and the number of lines."""

    message: Message
    line: int
    line_text: str
    values: dict[str, str]
    label: Label
    steps: int  # of the training before it
    count: int = 1

    @property
    def task(self) -> str:
        """The task or rank whose line it is; empty where the line has no label."""
        return (self.label[0] or self.label[1]).decode()

    def filled(self, text: str) -> str:
        """Replace each {name} by its value in the line."""
        for name, value in self.values.items():
            text = text.replace(f"{{{name}}}", value)
        return text


class _Search(NamedTuple):
    """A text to search for, of a message."""

    message: Message
    text: bytes
    pattern: re.Pattern[bytes]
    kind: bytes


class _Kind(NamedTuple):
    """What lines that differ only in their numbers have in common."""

    searches: list[_Search]
    is_step: bool
    signs: int  # how many ordinary lines may follow it in the log of a failure; 0: it is no error
    is_ordinary: bool
    is_plain: bool  # it only shows that the program goes on, perhaps by a step
    is_end: bool  # by it Slurm says that it ends the job


class Scan:
    """The findings of a log; of a job that was started again those of its last attempt."""

    def __init__(self, messages: list[Message]) -> None:
        """Search for messages, the special ones before the general."""
        self._searches = [
            _Search(each, text.encode(), re.compile(each.pattern.encode()), _kind(text.encode()))
            for each in messages
            for text in each.text
        ]
        self._strength = {each.topic: number for number, each in enumerate(messages)}
        self.lines = self.skipped = 0
        self.run = ""  # the directory of the run, if the log names it
        self._kinds: dict[bytes, _Kind] = {}
        self._begin()

    def _begin(self) -> None:
        self._found: dict[Label, dict[str, Finding]] = {}  # by topic
        self._hinted: dict[Label, tuple[int, bytes]] = {}  # the error before a hint
        self.first = FirstFailure(self._went_on)
        self._highest = -1
        self._times: list[datetime | None] = []  # of each new step
        # how many ordinary lines more make it a healthy log, and a healthy rank
        self._signs, self._left = 0, dict[Label, int]()
        self._announced = self._ended = (0, 0)  # the line of it, and the steps before it
        self._is_ignored = self._is_explained = False

    @property
    def is_failure(self) -> bool:
        """Whether the log ends as that of a failure does."""
        return self._signs > 0

    @property
    def findings(self) -> list[Finding]:
        """Causes first, in the order of the log; messages with their own hint win over others."""
        merged: dict[str, Finding] = {}
        for each in sorted(self._lasting if self.is_failure else (), key=lambda each: each.line):
            known = merged.setdefault(each.message.topic, each)
            if known is not each:
                merged[each.message.topic] = known._replace(count=known.count + each.count)
        end = self.first.ended or self.lines + 1  # later ones are of the end of the job

        def order(each: Finding) -> tuple[bool, bool, bool, int, int]:
            message, is_late = each.message, each.line > end
            if message.consequence:
                return True, True, is_late, self._strength[message.topic], each.line
            is_own = message.topic == HINTED and not is_late
            return not message.end, False, not is_own, 0, each.line

        return sorted(merged.values(), key=order)

    @property
    def ended(self) -> int:
        """The line by which Slurm says that it ends the job; 0 without one."""
        line, steps = self._ended
        return 0 if self._went_on(steps) else line

    @property
    def _lasting(self) -> list[Finding]:
        """Those that the run has not survived."""
        found = (each for topics in self._found.values() for each in topics.values())
        return [each for each in found if not self._went_on(each.steps)]

    def _went_on(self, steps: int) -> bool:
        """Tell whether the run has survived what was printed after so many steps."""
        count = len(self._times) - steps
        if not steps or count < _STEPS:
            return not steps and count >= _FIRST_STEPS
        begin, end = self._times[steps], self._times[-1]
        if not begin or not end:
            return count >= _UNTIMED_STEPS
        return (end - begin).total_seconds() >= _SECONDS

    def read(self, stream: BinaryIO, size: int = 0) -> None:
        """Read a log to its end; of a large `size` only the end is searched, of size 0 all."""
        rest, offset = b"", 0
        while block := stream.read(_BLOCK):
            offset += len(block)
            if offset <= size - END:
                self.skipped += block.count(b"\n")
                continue
            *lines, rest = (rest + block).split(b"\n")
            self._search(lines)
        self._search([rest] if rest else [])

    def _search(self, lines: list[bytes]) -> None:
        parts = [
            (number, part if len(part) <= 2 * _SEEN else part[:_SEEN] + part[-_SEEN:])
            for number, line in enumerate(lines, self.skipped + self.lines + 1)
            for part in line.rstrip(b"\r").split(b"\r")
        ]
        kinds = [_kind(each) for _, each in parts]
        new = b"\n".join({*kinds} - self._kinds.keys())
        searches = [each for each in self._searches if each.kind in new]
        for (number, line), kind in zip(parts, kinds):
            if line.startswith(_ATTEMPT):
                if self.run:
                    self._begin()
                self.run = shown(line[len(_ATTEMPT) :])
            self._is_explained = self._is_explained or line.startswith(_EXPLANATION)
            if self._is_explained:
                continue
            known = self._kinds.get(kind)
            if known is None:
                self._kinds[kind] = known = _kind_of(kind, line, searches)
            if known.is_step:
                self._take_step(line)
            if not known.is_plain or self._signs or self._hinted or self.first.candidates:
                self._take(known, number, line)
        if len(self._kinds) > _KINDS:
            self._kinds.clear()
        self.lines += len(lines)

    def _take(self, known: _Kind, number: int, line: bytes) -> None:
        """Take up a line: a step, an error, a message of the table, or what follows these."""
        label, begin, is_quoted = _label_of(line)
        text = line[begin:]
        is_error, is_found, begins = bool(known.signs), False, bool(_IGNORED.search(text))
        if self._is_ignored or begins:
            is_error = False
            self._is_ignored = begins or text[:1].isspace() or text.startswith(_TRACEBACK)
        elif known.searches and not self.first.is_code(label, text):
            searches = [each for each in known.searches if each.message.end or not self.ended]
            is_found = self._explain(searches, label, number, line, text)
        if text.startswith(_ANNOUNCED):
            self._announced = (number, len(self._times))
        if known.is_end and is_found and not self.ended:
            self._end(number)
        if self.ended:
            return
        if is_error or is_found:
            self._take_sign(label, max(known.signs, is_found * _ORDINARY))
        elif known.is_ordinary or known.is_step:
            self._signs = max(0, self._signs - 1)
            self._left[label] = self._left.get(label, 1) - 1
            if not self._left[label]:
                self._survive(label)
        self._take_hint(label, text, number)
        if not is_quoted:
            self.first.take(label, text, number, len(self._times), is_error)

    def _end(self, number: int) -> None:
        """Take up that Slurm ends the job, and drop what the ranks printed as it did so."""
        line, steps = self._announced
        begin = number if not line or self._went_on(steps) else line
        for topics in self._found.values():
            for each in [*topics.values()]:
                if each.line > begin and not each.message.end:
                    del topics[each.message.topic]
        self.first.drop(begin)
        self._ended = (number, len(self._times))
        self._take_sign(NOBODY, _ORDINARY)

    def _take_sign(self, label: Label, lines: int) -> None:
        """Take up a sign of a failure, after which so many ordinary lines may follow."""
        self._signs = max(self._signs, lines)
        self._left[label] = max(self._left.get(label, 0), lines, _FEW)

    def _survive(self, label: Label) -> None:
        self._left.pop(label, None)
        self._found.pop(label, None)
        self.first.candidates.pop(label, None)

    def _take_step(self, line: bytes) -> None:
        label, begin, _ = _label_of(line)
        text = line[begin:]
        number = int(STEP.findall(text)[-1][-18:])
        if number > self._highest:
            self._highest = number
            self._times.append(_time_of(text))
        if label != NOBODY:  # others can share the log with a rank that has no label
            self._survive(label)

    def _take_hint(self, label: Label, text: bytes, number: int) -> None:
        """Take up an error that comes with its own hint, as those of Longship's programs do."""
        line, said = self._hinted.pop(label, (0, b""))
        if text.startswith(b"error: "):
            self._hinted[label] = (number, text)
        elif line and text.startswith(b"hint: "):
            message = Message(HINTED, shown(said[len(b"error: ") :]), shown(text[len(b"hint: ") :]))
            finding = Finding(message, line, shown(said), {}, label, len(self._times))
            self._found.setdefault(label, {}).setdefault(HINTED, finding)
            self._take_sign(label, _ORDINARY)

    def _explain(
        self, searches: list[_Search], label: Label, number: int, line: bytes, text: bytes
    ) -> bool:
        """Count the first message in a line; tell whether there is any."""
        for message, known, pattern, _ in searches:
            at = text.find(known)
            # in quotes it is a help text, a setting, a sample of data
            if at < 0 or text.count(b'"', 0, at) % 2 or _HARMLESS.search(text):
                continue
            if said := pattern.search(text):
                values = {name: shown(value or b"") for name, value in said.groupdict().items()}
                new = Finding(message, number, shown(line), values, label, len(self._times), 0)
                found = self._found.setdefault(label, {})
                before = found.get(message.topic, new)
                found[message.topic] = before._replace(count=before.count + 1)
                return True
        return False


def _kind_of(kind: bytes, line: bytes, searches: list[_Search]) -> _Kind:
    text = line[_label_of(line)[1] :]
    found = [each for each in searches if each.kind in kind]
    is_step = bool(STEP.search(text)) and not NO_STEP.search(text)
    signs = 0
    if _SLURM.search(text) or (text.startswith(_TRACEBACK) and not _HARMLESS.search(text)):
        signs = _ORDINARY
    elif _ERROR.match(text) and not (_HARMLESS.search(text) or FOLLOWS.match(text)):
        signs = 1
    is_ordinary = not (is_step or signs or found or _BESIDE.match(text))
    is_special = text.startswith((b"hint: ", b"longship: ", _ANNOUNCED)) or _IGNORED.search(text)
    is_plain = not (signs or found or is_special)
    return _Kind(found, is_step, signs, is_ordinary, is_plain, bool(_END.search(text)))


def _label_of(line: bytes) -> tuple[Label, int, bool]:
    """Return whose line it is, where its text begins, and whether the watcher quotes it."""
    label = _LABEL.match(line)
    if not label or label["quoted"]:
        return NOBODY, label.end() if label else 0, bool(label)
    return (label[2] or b"", label[3] or b""), label.end(), False


def _kind(text: bytes) -> bytes:
    """Return the text with each digit as 0: lines that differ only in numbers are of one kind."""
    return text.translate(_DIGITS)


def _time_of(text: bytes) -> datetime | None:
    if not (found := _TIME.search(text)):
        return None
    try:
        return datetime.fromisoformat(f"{found[1].decode()} {found[2].decode()}")
    except ValueError:
        return None


def shown(line: bytes) -> str:
    """Make a line safe for a terminal, whose encoding may not be UTF-8."""
    text = "".join(c if c.isprintable() else " " for c in line.decode("utf-8", "replace"))
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding).rstrip()
