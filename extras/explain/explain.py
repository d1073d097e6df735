"""Explanations of the known messages in a job's log: doctor.py explain."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Callable

import click

from extras.explain.log_scan import Finding, Message, Scan
from extras.explain.step_end import step_end
from lib import ROOT
from lib.configuration.paths import Paths
from lib.configuration.tables import read_toml
from lib.jobs.runs import recorded_run
from lib.script.command import call
from lib.script.errors import LongshipError, offline_modes, paint
from lib.script.quoting import word
from lib.script.records import open_file, read_record

TABLE = Path(ROOT, "messages/known_messages.toml")
_WIDTH = 80
_INDENT = " " * 9


def load_messages() -> list[Message]:
    """Read the table of known messages, the special ones before the general."""
    tables, _ = read_toml(TABLE, f"messages/{TABLE.name}")
    restart = {each: word for word, topics in tables.pop("restart").items() for each in topics}
    return [
        Message(topic, consequence=kind == "consequences", restart=restart.get(topic, ""), **entry)
        for kind, entries in tables.items()
        for topic, entry in entries.items()
    ]


@contextmanager
def _opened(log: str, paths_of: Callable[[], Paths]) -> Iterator[tuple[str, BinaryIO]]:
    """Open a log by its path, `-`, or the directory, name or job of its run."""
    if log == "-":
        yield "standard input", sys.stdin.buffer
        return
    path = Path(log)
    if os.path.isdir(path) or not os.path.exists(path):
        paths = paths_of()
        try:
            run = recorded_run(paths, log)
        except LongshipError as error:
            raise LongshipError(
                f"log not found: {log}, and no run of this name in {paths.runs}", error.hint
            ) from error
        path = Path(read_record(run / "record.json").get("log") or "")
        if not os.path.isfile(path):
            raise LongshipError(
                f"no log recorded for the run {run}", f"list its files: {call('ls', str(run))}"
            )
    try:
        with open_file(path) as stream:
            yield str(path), stream
    except OSError as error:
        hint = f"check the file: {call('ls', '-l', str(path))}"
        if os.path.exists(path) and not os.path.isfile(path):  # a FIFO
            hint = f"to read from it: python3 doctor.py explain - <{word(path)}"
        raise LongshipError(f"cannot read {path}: {error.strerror}", hint) from error


def explain(
    log: str,
    paths_of: Callable[[], Paths],
    *,
    as_json: bool,
    quiet: bool = False,
    nodes: Collection[str] = (),
) -> None:
    """Print who failed first, and the known messages: causes first, then consequences.

    The log is a file, ``-`` for standard input, a run or a job; a file needs no configuration.

    As JSON, it is an object with ``log``, ``lines``, ``not_searched``, ``failed_first``,
    ``last_error`` (``line``, ``said``), ``findings`` (``state``: ``problem`` or ``follows``,
    ``topic``, ``text``, ``fix``, ``line``, ``count``, ``task``, ``said``, ``source``, ``sites``)
    and, unless the log is ``-``, ``end`` of `step_end`, for which NODES are those of the job.
    """
    scan, end = Scan(load_messages()), {}
    with _opened(log, paths_of) as (name, stream):
        scan.read(stream, 0 if log == "-" else os.fstat(stream.fileno()).st_size)
        if as_json and log != "-":
            end = {"end": step_end(scan, stream, nodes)}
    if as_json:
        click.echo(json.dumps({**_as_data(name, scan), **end}, indent=1))
        return
    if scan.first.who:
        click.echo(f"first to fail: {scan.first.who}")
    for line in scan.first.output:
        click.echo(f"  {line}")
    if scan.findings:
        _print_findings(scan)
        if not scan.findings[0].message.text and log != "-":
            click.echo(f"next: {_excerpt(name, scan.findings[0].line)}")
    elif not quiet:
        _print_no_findings(name, log, scan)
    if scan.skipped and not quiet:
        click.echo(f"not searched: lines {scan.skipped[0]} to {scan.skipped[1]} of a large log")
        click.echo(f"to search all lines: python3 doctor.py explain - <{word(name)}")


def _where(finding: Finding) -> str:
    times = f", {finding.count} times" if finding.count > 1 else ""
    return f"line {finding.line}{times}" + (f", task {finding.task}" if finding.task else "")


def _cut(finding: Finding, width: int) -> str:
    """Cut a line to the width, keeping the known text."""
    text = finding.line_text
    begin = finding.column - 20 if finding.column > width // 2 and len(text) > width else 0
    text = "..." * bool(begin) + text[begin:]
    return text if len(text) <= width else text[: width - 3] + "..."


def _excerpt(name: str, line: int) -> str:
    return call("sed", "-n", f"{max(1, line - 40)},{line}p", name)


def _as_data(name: str, scan: Scan) -> dict[str, Any]:
    return {
        "log": name,
        "lines": scan.lines,
        "not_searched": scan.skipped,
        "failed_first": scan.first.who,
        "last_error": {"line": scan.last_error[0], "said": scan.last_error[1]},
        "findings": [
            {
                "state": "follows" if each.message.consequence else "problem",
                "topic": each.message.topic,
                "text": each.filled(each.message.cause),
                "fix": each.filled(each.message.fix),
                "line": each.line,
                "count": each.count,
                "task": each.task,
                "said": each.line_text,
                "source": each.message.source,
                "sites": each.message.sites,
            }
            for each in scan.findings
        ],
    }


def _print_findings(scan: Scan) -> None:
    """Print each cause with its fix; the first consequence like one if no cause is known."""
    for number, each in enumerate(scan.findings):
        if number and each.message.consequence:
            click.echo(f"{paint('follows', sys.stdout)}  {each.message.topic}: {_where(each)}")
            continue
        click.echo(f"{paint('problem', sys.stdout)}  {each.message.topic}: {_where(each)}")
        click.echo(_INDENT + _cut(each, _WIDTH - len(_INDENT)))
        click.echo(_wrapped(each.filled(each.message.cause), _INDENT))
        click.echo(_wrapped(offline_modes(each.filled(each.message.fix)), "    fix: "))


def _wrapped(text: str, before: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=before,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _print_no_findings(name: str, log: str, scan: Scan) -> None:
    """Print that no message is known, and the next step."""
    click.echo(f"no known message in the {scan.lines} lines of {name}")
    line, text = scan.last_error
    if line:
        click.echo(f"the last line that looks like an error is line {line}:")
        click.echo(_INDENT + textwrap.shorten(text, _WIDTH - len(_INDENT), placeholder="..."))
        if log != "-":
            click.echo(f"next: {_excerpt(name, line)}")
        return
    click.echo("next: python3 submit.py status; on this machine: python3 doctor.py")
