"""Explanations of the known messages in a job's log: doctor.py explain."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable

import click

from extras.explain.first_failure import FirstError
from extras.explain.log_scan import Finding, Message, Scan
from lib import ROOT
from lib.configuration.paths import Paths
from lib.configuration.tables import read_toml
from lib.jobs.runs import recorded_run
from lib.jobs.size import slurm_facts
from lib.script.command import call
from lib.script.errors import LongshipError, offline_modes, paint
from lib.script.execute import read_output
from lib.script.quoting import word
from lib.script.records import open_file, read_record, readable_values

TABLE = Path(ROOT, "messages/known_messages.toml")
_SHOW_JOB = ("scontrol", "show", "job", "--oneliner")
_WIDTH = 80
_INDENT = " " * 9


def load_messages() -> list[Message]:
    """Read the table of known messages, the special ones before the general."""
    tables = read_toml(TABLE, f"messages/{TABLE.name}")
    return [
        Message(topic, consequence=kind == "consequences", **entry)
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
            run = recorded_run(paths, log, "python3 doctor.py explain")
        except LongshipError as error:
            if not str(error).startswith("no run"):  # several
                raise
            is_job = re.fullmatch(r"[0-9]+(_[0-9]+)?", log)
            hint = f"{error.hint}; {_log_of_job(log)}" if is_job else error.hint
            raise LongshipError(
                f"log not found: {log}, and no run of this name in {paths.runs}", hint
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


def _log_of_job(job: str) -> str:
    """Say which log a job without a run has; Slurm knows it for some minutes."""
    path = f"slurm-{job}.out"
    with suppress(LongshipError):
        path = slurm_facts(read_output([*_SHOW_JOB, job], 30).text).get("StdOut", path)
    command = call("python3", "doctor.py", "explain", path)
    return f"if job {job} does not use start_job, name its log: {command}"


def explain(
    log: str,
    paths_of: Callable[[], Paths],
    *,
    as_json: bool,
    quiet: bool = False,
) -> None:
    """Print how Slurm ended the job, who failed first, and the known messages, causes first.

    The log is a file, ``-`` for standard input, a run or a job; a file needs no configuration.

    As JSON, it is an object with ``log``, ``lines``, ``not_searched``, ``failed_first``,
    ``first_error`` (null, or ``line``, ``said``, ``place``: the first one if the table has none),
    and ``findings`` (``state``: ``problem`` or ``follows``, ``topic``, ``text``, ``fix``, ``line``,
    ``count``, ``task``, ``said``, ``source``).
    """
    scan = Scan(load_messages())
    with _opened(log, paths_of) as (name, stream):
        scan.read(stream, 0 if log == "-" else os.fstat(stream.fileno()).st_size)
    if as_json:
        click.echo(json.dumps(_as_data(name, scan), indent=1))
        return
    error, findings = _first_error(scan), scan.findings
    ends = [each for each in findings if each.message.end]
    _print_findings(ends, scan, is_told=False)
    if scan.is_failure and scan.first.who:
        click.echo(f"first to fail: {scan.first.who}")
        for line in scan.first.output:
            click.echo(f"  {line}")
    if error:
        click.echo(f"first error (not in the table): {name}, line {error.line}")
        click.echo(_INDENT + error.text)
        if error.place:
            click.echo(f"{_INDENT}raised in {error.place}")
    _print_findings(findings[len(ends) :], scan, is_told=bool(error or ends))
    if not (error or findings or quiet):
        what = "no error that tells why" if scan.is_failure else "nothing to explain"
        click.echo(f"{what} in the last {scan.lines} lines of {name}")
        click.echo("next: python3 submit.py status; on this machine: python3 doctor.py")
    if scan.skipped and not quiet:
        click.echo(f"not searched: the first {scan.skipped} lines of a large log")
        click.echo(f"to search all lines: python3 doctor.py explain - <{word(name)}")


def _first_error(scan: Scan) -> FirstError | None:
    """Return the first error if no cause is known, and it is no known consequence either.

    That Slurm ended the job does not say why its ranks failed before.
    """
    failure, findings = scan.first.failure, scan.findings
    causes = [x for x in findings if not (x.message.consequence or (scan.ended and x.message.end))]
    if not failure or not scan.is_failure or causes:
        return None
    error = failure.error()
    known = any(each.line_text.rstrip().endswith(error.text) for each in findings)
    return None if known else error


def _where(finding: Finding) -> str:
    times = f", {finding.count} times" if finding.count > 1 else ""
    task, rank = (each.decode() for each in finding.label)
    whose = f", task {task}" if task else f", rank {rank}" * bool(rank)
    return f"line {finding.line}{times}{whose}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _as_data(name: str, scan: Scan) -> dict[str, Any]:
    error = _first_error(scan)
    return {
        "log": name,
        "lines": scan.skipped + scan.lines,
        "not_searched": scan.skipped,
        "failed_first": scan.first.who if scan.is_failure else "",
        "first_error": error and {"line": error.line, "said": error.text, "place": error.place},
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
            }
            for each in scan.findings
        ],
    }


def _print_findings(findings: list[Finding], scan: Scan, *, is_told: bool) -> None:
    """Print each cause with its fix; the first consequence like one if no error is told."""
    for number, each in enumerate(findings):
        if each.message.consequence and (number or is_told):
            click.echo(f"{paint('follows', sys.stdout)}  {each.message.topic}: {_where(each)}")
            continue
        click.echo(f"{paint('problem', sys.stdout)}  {each.message.topic}: {_where(each)}")
        click.echo(_INDENT + _cut(each.line_text, _WIDTH - len(_INDENT)))
        click.echo(_wrapped(each.filled(each.message.cause) + _peak(each, scan), _INDENT))
        click.echo(_wrapped(offline_modes(each.filled(each.message.fix)), "    fix: "))


def _peak(finding: Finding, scan: Scan) -> str:
    """Return the memory that was measured, where a process was killed."""
    record = readable_values(Path(scan.run, "record.json")) if scan.run else {}
    peak = record.get("cpu_peak_memory_mib")
    if finding.message.topic != "killed" or not peak:
        return ""
    return f" The node with the most used {float(peak) / 1024:.1f} GiB."


def _wrapped(text: str, before: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=before,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
