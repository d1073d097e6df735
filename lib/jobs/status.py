"""Pending and running jobs, as Slurm and their records describe them, and the last that ended."""

from __future__ import annotations

import glob
import heapq
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from lib.configuration.partitions import seconds
from lib.configuration.tables import find_files
from lib.jobs.cost import cost_of_run
from lib.jobs.runs import values_of
from lib.jobs.size import array_tasks
from lib.script.errors import LongshipError, printable
from lib.script.execute import read_output
from lib.script.output import Report, as_json, columns, number
from lib.script.records import (
    earlier_seconds,
    open_file,
    readable_values,
    seconds_before,
    seconds_between,
)
from lib.script.trust import is_own

_Row = dict[str, Any]
_FORMAT = "%i|%T|%M|%l|%D|%r|%j"  # the name last: it can contain any character
# jobs that have ended, an array as one; tasks of each; records of which the newest are these
_SHOWN, _TASKS, _READ = 5, 8, 50
# what moves the cursor of a terminal or colours the rest
_SEQUENCE = re.compile(r"\033\[[0-9;?]*[A-Za-z]|[\0-\010\013-\037]")
_EMPTY: _Row = {
    **{"id": "", "name": "", "state": "ENDED", "nodes": None, "elapsed_seconds": None},
    **{"limit_seconds": None, "reason": "", "cost": None, "cost_unit": "", "exit_code": None},
    **{"ended": "", "stopped": "", "failed": "", "attempts": []},
    **{"log": "", "last_line": "", "run": ""},
    # of a task of an array; of the job; what the job has used
    **{"values": "", "arguments": "", "used": ""},
}


def status(runs: Path) -> Report:
    """Describe the user's jobs, those of the queue first."""
    width = columns()
    queued = list(_queue(runs))
    rows = [row for row, *_ in queued]
    lines = list(_table(runs, queued, width)) if queued else ["you have no pending or running jobs"]
    ended = list(_ended(runs, {each["id"] for each in rows}))
    if ended:
        lines += ["", "recently finished:"]
        for _, tasks in groupby(ended, lambda each: _array(each["id"])):
            lines += [each[:width] for each in _ended_lines(runs, list(tasks), rows)]
    failed = bool(ended) and ended[0]["exit_code"] != 0
    text = "".join(f"{printable(each)}\n" for each in lines)
    return Report(text, f"python3 doctor.py explain {ended[0]['id']}" if failed else "")


def status_as_json(runs: Path) -> Report:
    """Describe the same jobs for a program."""
    queued = [row for row, *_ in _queue(runs)]
    return as_json([*queued, *_ended(runs, {each["id"] for each in queued})])


def _array(job: str) -> str:
    """Return the job array that a task belongs to; another job itself."""
    return job.partition("_")[0]


def _array_line(runs: Path, row: _Row, queued: list[_Row]) -> Iterator[str]:
    """Return a line with the number of tasks in each state, if a job is an array of several."""
    array = _array(row["id"])
    if array == row["id"]:
        return
    tasks = [each for each in queued if _array(each["id"]) == array]
    states: Counter[str] = Counter()
    for each in tasks:  # pending ones are in one row, such as 7_[3-7%2]
        states[each["state"].lower()] += sum(map(len, array_tasks(each["id"].partition("_")[2])))
    for path in find_files(runs, f"{glob.escape(array)}_*-*/record.json"):
        record = readable_values(path)
        if is_own(path.parent) and not any(record.get("job") == each["id"] for each in tasks):
            states[_state(record)] += 1
    if sum(states.values()) > 1:
        counts = ", ".join(f"{number} {state}" for state, number in states.items() if state)
        yield f"{array:<12} {row['name']:<16.16} {counts}"


def _state(record: Mapping[str, str]) -> str:
    """Return the state of a task that is no longer in the queue, or waits there again ("")."""
    stopped = record.get("stopped", "")
    if stopped == "requeued":
        return ""
    if not record.get("ended"):
        return "lost"
    return "completed" if record.get("exit_code") == "0" else stopped or "failed"


def _queue(runs: Path) -> Iterator[tuple[_Row, str, str]]:
    """Ask Slurm for the user's jobs; return each with its elapsed time and its time limit.

    The tasks of an array follow each other, wherever Slurm lists them.
    """
    listed = [line.split("|", 6) for line in _listed_jobs().split("\n")]
    listed = [each for each in listed if len(each) == 7 and each[6]]  # not the rest of a name
    order = [_array(each[0]) for each in listed]
    cluster = _cluster() if listed else ""
    for values in sorted(listed, key=lambda each: order.index(_array(each[0]))):
        job, state, elapsed, limit, nodes, reason, name = values
        run, record = None, {}
        for each in find_files(runs, f"{glob.escape(job)}-*/record.json"):
            found = readable_values(each)
            # clusters can share a file system, and each has a job of this ID
            is_here = not cluster or found.get("cluster", "") in ("", cluster)
            if is_here and is_own(each.parent):
                run, record = each.parent, found
        before, is_lost = earlier_seconds(record), False
        if run and state == "PENDING":
            before, is_lost = seconds_before(run, record), not record.get("ended")
        times = {"elapsed_seconds": seconds(elapsed), "limit_seconds": seconds(limit)}
        facts = {"id": job, "name": name, "state": state, "nodes": number(nodes), "reason": reason}
        cost = cost_of_run(record, (times["elapsed_seconds"] or 0) + before)
        cost = None if is_lost else cost  # its node was lost: nobody wrote down when
        yield _row(run, record, **facts, **times, cost=cost), elapsed, limit


def _cluster() -> str:
    """Return the name of the cluster that answers; "" if it does not say it."""
    text, _ = read_output(["scontrol", "show", "config"], 30)
    found = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def _listed_jobs() -> str:
    if not shutil.which("squeue"):
        raise LongshipError(
            "Slurm not found on this machine: squeue is missing",
            "run this command on a login node",
        )
    # a length of 0: all tasks of an array that wait
    text, code = read_output(
        ["env", "SLURM_BITSTR_LEN=0", "squeue", "--me", "--noheader", f"--format={_FORMAT}"], 30
    )
    if code:
        hint = "try again later, on a login node of a cluster"
        raise LongshipError(f"squeue failed: {last_error(text)}", hint)
    return text


def last_error(text: str) -> str:
    """Return the last error that a command of Slurm has printed, without the program's name."""
    return (re.findall(r".*(?:error|failure|fatal): (.*)", text) or ["no reason given"])[-1]


def _ended(runs: Path, current: set[str]) -> Iterator[_Row]:
    """Find the user's own jobs that ended last, without those that Slurm lists."""
    records = []
    for each in find_files(runs, "*/record.json"):
        with suppress(OSError):
            found = each.lstat()
            if found.st_uid == os.geteuid():
                records.append((found.st_mtime_ns, each))
    shown: dict[str, list[_Row]] = {}
    for _, path in heapq.nlargest(_READ, records):
        record = readable_values(path)
        text = {each: record.get(each, "") for each in ("name", "ended", "stopped", "failed")}
        job = record.get("job", "")
        if job in current:
            continue
        elapsed = cost = None  # a job whose node was lost has no end in its record
        if text["ended"]:
            elapsed = seconds_between(record.get("started", ""), text["ended"])
            cost = cost_of_run(record, elapsed + earlier_seconds(record))
        numbers = {each: number(record.get(each, "")) for each in ("nodes", "exit_code")}
        times = {"elapsed_seconds": elapsed, "cost": cost}
        row = _row(path.parent, record, id=job, **text, **numbers, **times)
        if len(shown) < _SHOWN or _array(job) in shown:
            shown.setdefault(_array(job), []).append(row)
    for tasks in shown.values():
        yield from tasks


def _row(run: Path | None, record: Mapping[str, str], **values: Any) -> _Row:
    recorded: _Row = {each: record.get(each, "") for each in ("cost_unit", "log")}
    recorded["attempts"] = [each for each in record.get("attempts", "").split("\n") if each]
    last_line = _last_line(recorded["log"])
    of_extras, _ = values_of(run or Path(os.devnull), record)
    numbers = {name: number(text) for name, text in of_extras.items()}
    found = {"last_line": last_line, "run": str(run or ""), "used": of_extras.get("used", "")}
    for name in ("values", "arguments"):
        with suppress(ValueError):  # of a damaged record
            found[name] = shlex.join(shlex.split(record.get(name, "")))
    return {**_EMPTY, **numbers, **values, **recorded, **found}


def _last_line(log: str) -> str:
    """Return the last line of a job's log, as a terminal shows it."""
    try:
        with open_file(Path(log)) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 2000))
            text = stream.read(2000).decode(errors="surrogateescape")
    except OSError:
        return ""
    lines = [_SEQUENCE.sub("", each) for each in re.split("[\r\n]", text)]
    return next((each for each in reversed(lines) if each.strip(" ")), "")


def _table(runs: Path, jobs: list[tuple[_Row, str, str]], width: int) -> Iterator[str]:
    """Return a line for each job, and further lines: why it waits, and what it printed last."""
    form = "{:<12} {:<16.16} {:<11} {:>11} {:>11} {:>6}  {}"
    if width < 100:
        form = "{:<10} {:<12.12} {:<10} {:>10} {:>10} {:>5}  {}"
    yield form.format("job", "name", "state", "elapsed", "limit", "nodes", "")
    rows = [row for row, *_ in jobs]
    last = ""
    for row, elapsed, limit in jobs:
        if _array(row["id"]) != last:
            last = _array(row["id"])
            yield from _array_line(runs, row, rows)
        cost = "" if row["cost"] is None else f"{row['cost']:.2f} {row['cost_unit']} so far"
        nodes = "" if row["nodes"] is None else row["nodes"]
        yield form.format(row["id"], row["name"], row["state"], elapsed, limit, nodes, cost)
        if row["state"] == "PENDING" and row["reason"] not in ("", "None"):
            yield f"    pending: {row['reason']}"
        yield from (each[:width] for each in _words_line(row))
        if row["used"]:
            yield _used_line(row)
        yield from (f"    {each}" for each in row["attempts"][-1:])
        if row["last_line"]:
            yield f"    {row['last_line'].expandtabs()[: min(width - 4, 110)]}"


def _words_line(row: _Row) -> Iterator[str]:
    """Return what tells jobs of the same name apart: their arguments."""
    if words := row["values"] or row["arguments"]:
        yield f"    {words}"


def _used_line(row: _Row) -> str:
    """Describe what a job has used, with its cost."""
    cost = "" if row["cost"] is None else f"cost {row['cost']:.2f} {row['cost_unit']}"
    return f"    {', '.join(filter(None, (row['used'], cost)))}"


def _ended_lines(runs: Path, tasks: list[_Row], queued: list[_Row]) -> Iterator[str]:
    """Describe a job that has ended, or the tasks of an array."""
    yield from _array_line(runs, tasks[0], queued)
    for row in tasks[:_TASKS]:
        code = "unknown" if row["exit_code"] is None else row["exit_code"]
        how = f"{row['stopped']}, exit code {code}" if row["stopped"] else f"exit code {code}"
        yield (
            f"{row['id']:<12} {row['name']:<16.16} {row['ended'] or 'end time unknown'}  "
            f"{how}  {row['failed']}"
        )
        yield from _words_line(row)
        if row["used"] or row["cost"] is not None:
            yield _used_line(row)
        yield from (f"    {each}" for each in row["attempts"][-1:])
