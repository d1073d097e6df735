"""The report of doctor.py, and how its checks find out: what hangs is left behind."""

from __future__ import annotations

import queue
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Generator, Iterable, Sequence
from typing import Callable

from lib import VERSION
from lib.script.errors import LongshipError, offline_modes, paint, printable
from lib.script.execute import Output, read_output
from lib.script.output import Finding, as_json, ok, problem, warning
from lib.script.render import render

_PATIENCE = 60  # seconds for a program
_SILENCE = 90  # seconds between two findings of a check
PRINTED = "{printed}"  # in a text: the last line that a check has printed
_MESSAGES = re.compile(r"^(error|warning): (.*)\nhint: (.*)", re.MULTILINE)


def hangs(topic: str) -> Finding:
    """Return what is reported of a check or a program that does not end."""
    fix = "check the status page of your site: a file system may hang"
    return problem(topic, "no response within a minute", fix)


class Diagnosis:
    """Prints each finding at once, or everything as JSON at the end."""

    def __init__(self, *, as_json: bool, widths: tuple[int, int] = (7, 13)) -> None:
        self.as_json = as_json
        self.widths = widths  # columns of state and topic
        self.findings: list[Finding] = []

    def add(self, found: Finding) -> None:
        """Add a finding; its fix is printed on one line, to be copied."""
        found = found._replace(text=printable(found.text), fix=offline_modes(found.fix))
        self.findings.append(found)
        if not self.as_json:
            state_width, topic_width = self.widths
            indent = state_width + topic_width + 4
            wrapped = textwrap.wrap(found.text, 56, break_long_words=False, break_on_hyphens=False)
            state = paint(found.state, sys.stdout) + " " * (state_width - len(found.state))
            show(f"{state}  {found.topic:<{topic_width}}  " + f"\n{'':{indent}}".join(wrapped))
            if found.fix:
                show(f"{'':{state_width + 2}}fix: {printable(found.fix)}")

    def run(self, topic: str, check: Callable[[], Iterable[Finding]]) -> None:
        """Add what a check finds. It runs in a thread: nothing ends a call to a dead disk."""
        found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()

        def collect() -> None:
            try:
                for each in check():
                    found.put(each)
            except LongshipError as error:
                found.put(problem(topic, str(error), error.hint))
            except OSError as error:
                text = f"cannot read {error.filename}: {error.strerror}"
                found.put(problem(topic, text, "check its permissions: ls -ld"))
            finally:
                found.put(None)

        threading.Thread(target=collect, daemon=True).start()
        try:
            while (each := found.get(timeout=_SILENCE)) is not None:
                self.add(each)
        except queue.Empty:
            self.add(hangs(topic))

    def end(self, values: Sequence[tuple[str, str, str]] = ()) -> None:
        """Print values with their keys and sources, and the next step; a problem is exit code 1."""
        problems, warnings = (
            [each for each in self.findings if each.state == state]
            for state in ("problem", "warning")
        )
        if self.as_json:
            findings = as_json(each._asdict() for each in self.findings).text.rstrip()
            named = (dict(zip(("key", "value", "origin"), each)) for each in values)
            rows = as_json(named).text.rstrip()
            counts = f'"problems": {len(problems)}, "warnings": {len(warnings)}'
            head = f'"version": "{VERSION}", {counts}'
            show(f'{{{head}, "findings": {findings}, "values": {rows}}}')
        else:
            if values:
                rows = [("key", "value", "source"), *values]
                lines = [
                    f"{key:<25} {source:<22} {printable(value)}" for key, value, source in rows
                ]
                show("\n".join(["", *lines, ""]))
            for first in (problems or warnings)[:1]:
                show(f"problems: {len(problems)}, warnings: {len(warnings)}")
                show(f"{paint('next:', sys.stdout)} {printable(first.fix)}")
            share = "to share this report: python3 doctor.py --json"
            show(share if problems or warnings else "no problems found")
        if problems:
            sys.exit(1)


def show(text: str) -> None:
    """Print a text, whatever bytes the names in it have."""
    sys.stdout.buffer.write(f"{text}\n".encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()


def bash(*lines: str, seconds: float = _PATIENCE) -> Output:
    """Run lines of bash with the functions of lib/ that they use."""
    script = render("Longship: a check of doctor.py", lines)
    return read_output(["bash", "-c", script, "doctor.py"], seconds)


def messages_in(text: str, topic: str) -> list[Finding]:
    """Return the errors and warnings in what a script has printed."""
    states = {"error": problem, "warning": warning}
    return [states[kind](topic, *each) for kind, *each in _MESSAGES.findall(text)]


def asked(topic: str, *lines: str, text: str = "") -> Generator[Finding, None, str | None]:
    """Report what the check of another command finds: its errors and warnings, or `text` as ok.

    Return the last line that it prints, or None after an error or a warning.
    """
    printed, code = bash(*lines)
    last, found = printed.rstrip("\n").rpartition("\n")[2], messages_in(printed, topic)
    if not found and code:
        share = "share the output of: python3 doctor.py --json"
        found = [hangs(topic) if code == 124 else problem(topic, last, share)]
    elif not found and text:
        yield ok(topic, text.replace(PRINTED, last))
    yield from found
    return None if found else last


def exit_on_signals() -> None:
    """Let a signal end this process as an exit does, with the programs that it has started."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: sys.exit(128 + number))
