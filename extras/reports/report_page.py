"""The report page of runs: what is known of them on this machine, for inside/report_page.py."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Callable

from extras.reports.report import NOT_MEASURED, Used, hint_without_samples, summed, used_by
from lib.configuration.paths import Paths
from lib.configuration.stacks import load_stack
from lib.configuration.tables import find_files
from lib.jobs.runs import find_runs, owner_of, recorded_run
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.command import call, text_below
from lib.script.errors import LongshipError, offline_modes
from lib.script.records import (
    content_of,
    earlier_seconds,
    first_start,
    open_file,
    readable_values,
    seconds_between,
)
from lib.script.trust import check_trusted, is_own, name_of

Findings = Callable[[BinaryIO], list[dict[str, Any]]]  # what doctor.py explain knows of a log

# What a job ran, by its heading on the page: values of the record.
_INPUT = {
    "machine": ("machine", "cluster", "partition"),
    "nodes": ("nodelist",),
    "GPUs": ("gpus",),
    "account": ("account", "qos"),
    "stack": ("stack",),
    "runtime": ("runtime",),
    "image": ("image", "image_sha256"),
    "overlay": ("overlay", "overlay_sha256"),
    "venv": ("venv",),
    "time limit": ("time_limit",),
    "arguments": ("arguments",),
}
_ABOUT = ("project", "machine", "stack")
_JOB = ("job", "started", "duration", "nodes", "exit code", "first to fail")
_EPOCH = "1970-01-01T00:00:00Z"
_NEEDED = ("started", "ended", "nodes", "gpus", "log")


def outputs_of(run: Path) -> str:
    """Return the directory of the training's results, as the job has linked it; "" if unknown."""
    link = run / "outputs"
    return os.readlink(link) if link.is_symlink() else ""


def _runs(paths: Paths, names: tuple[str, ...], command: str) -> list[Path]:
    """Return the directories of runs, of a job array those of its tasks.

    They are paths that a container sees: behind the links of the system.
    """
    found = []
    for name in names:
        tasks = [each for each in find_runs(paths, name) if each.name.startswith(f"{name}_")]
        for run in tasks or [recorded_run(paths, name, f"python3 submit.py {command}")]:
            own = paths.runs / run.name
            found.append(own if os.path.exists(own) and os.path.samefile(own, run) else run)
    return list(dict.fromkeys(found))


def synced_runs(paths: Paths, names: tuple[str, ...]) -> list[Path]:
    """Return the runs of these names, or else all of the user's own, for `submit.py sync`."""
    recorded = [each.parent for each in find_files(paths.runs, "*/record.json")]
    found = _runs(paths, names, "sync") if names else [*filter(is_own, recorded)]
    if not all(map(is_own, found)):
        message = "sync uploads only your own runs, to which nobody else can write"
        raise LongshipError(message, f"run: ls -ld {shlex.join(map(str, found))}")
    return found


def page_of(paths: Paths, names: tuple[str, ...], output: str) -> tuple[list[list[Path]], Path]:
    """Return the runs of each training, by the names of some of them, and the file of the page.

    The runs of a training have one owner: a colleague's run can name the results of anybody.
    """
    named = _runs(paths, names, "report")
    trainings: dict[tuple[int, str], list[Path]] = {}
    for run in named:
        if owner_of(run) == os.geteuid():
            check_trusted(run / "record.json", run)
        trainings.setdefault((owner_of(run), outputs_of(run) or str(run)), [run])
    for run in (each.parent for each in find_files(paths.runs, "*/record.json")):
        found = trainings.get((os.geteuid(), outputs_of(run)))
        if found and run not in found and is_own(run) and is_own(run / "record.json"):
            found.append(run)
    for each in trainings.values():
        each.sort(key=lambda run: first_start(readable_values(run / "record.json")))
    directory = named[0] if is_own(named[0]) else Path.cwd()
    file = Path(output).expanduser() if output else directory / f"report-{named[0].name}.html"
    if file.is_dir() or not file.parent.is_dir():
        what = "a directory" if file.is_dir() else "in a directory that does not exist"
        raise LongshipError(f"cannot write {file}: it is {what}", "give another --output FILE")
    return list(trainings.values()), Path(os.path.abspath(file))


def page_lines(
    env: Environment, trainings: list[list[Path]], file: Path, findings: Findings
) -> list[str]:
    """Return the lines that write the page, inside the environment: ``"$@"`` is the command."""
    steps = " && ".join(env.packages.steps)
    described = [training_of(env.paths.root, runs, findings) for runs in trainings]
    data = {"install": offline_modes(steps), "trainings": described}
    env = env._replace(more_binds=(Bind(str(file.parent), str(file.parent)),))
    return [
        text_below("report_data", json.dumps(data), "What the page shows."),
        'exec <<<"$report_data"',
        call("cd", "--", env.paths.root),
        *run_lines(env),
    ]


def training_of(root: Path, runs: list[Path], findings: Findings) -> dict[str, Any]:
    """Return what the page shows of the jobs of one training: what belongs to their owner.

    A page is sent on, and a colleague's run can name files that only the reader may read.
    """
    gaps: list[tuple[str, str]] = []
    owner = owner_of(runs[0])
    records = {run: readable_values(run / "record.json", owner) for run in runs}
    used = []
    for run, record in records.items():
        usage, problems = used_by(run, record)
        used.append(usage)
        gaps += [(str(each), each.hint) for each in problems]
        lacks = [each for each in _NEEDED if not record.get(each)]
        if lacks:
            hint = "the job has not ended, its node was lost, or an older version recorded it"
            message = f"not in the record of {run.name}: {', '.join(lacks)}"
            gaps.append((message if lacks != ["ended"] else f"{run.name} has no end yet", hint))
    first, last, outputs = records[runs[0]], records[runs[-1]], outputs_of(runs[-1])
    metrics, files = _metrics(root, last.get("stack", ""), outputs, gaps)
    samples = [str(each) for run in runs for each in find_files(run, "usage/*.csv")]
    if not samples:
        message = f"{NOT_MEASURED}: usage of the nodes of {runs[-1].name}"
        gaps.append((message, hint_without_samples(runs[-1:])))
    jobs = [each.get("job", "") for each in records.values()]
    about = (*(first.get(each, "") for each in _ABOUT), _shown(first_start(first)))
    jobs = jobs if len(jobs) < 4 else [jobs[0], "...", jobs[-1]]
    return {
        "name": f"{os.path.basename(outputs)} ({', '.join(jobs)})" if outputs else runs[-1].name,
        "about": " · ".join(filter(None, (name_of(owner), *about))),
        "owner": None if owner == os.geteuid() else owner,  # a container can number others anew
        "metrics": metrics,
        "files": files,
        "samples": samples,
        "jobs": [_job(run, record, owner, gaps, findings) for run, record in records.items()],
        "headings": _JOB,
        "figures": _figures(used, list(records.values())),
        "gaps": gaps,
    }


def _metrics(
    root: Path, stack: str, outputs: str, gaps: list[tuple[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the names of a stack's metrics, and the files with them."""
    try:
        metrics = dict(load_stack(root, stack).metrics)
    except LongshipError as error:
        gaps.append((f"no metrics: {error}", error.hint))
        return {}, []
    patterns = metrics.pop("files", ())
    files = [str(each) for one in patterns if outputs for each in find_files(Path(outputs), one)]
    if not outputs:
        hint = "the job links it when its training starts; if it has not started, see the log"
        gaps.append(("no metrics: the directory of the results is unknown", hint))
    elif not files:
        hint = f"if the training writes others, name them in [metrics] of stacks/{stack}/stack.toml"
        gaps.append((f"no metrics: {' or '.join(patterns)} not found in {outputs}", hint))
    return metrics, files


def _job(
    run: Path,
    record: Mapping[str, str],
    owner: int,
    gaps: list[tuple[str, str]],
    findings: Findings,
) -> dict[str, Any]:
    """Return what the page shows of a job; times are in seconds since 1970."""
    started, ended = record.get("started", ""), record.get("ended", "")
    log, found = _log(record.get("log", ""), owner, gaps, findings)
    cells = [_shown(first_start(record)), _duration([record]) or "", record.get("nodes", "")]
    cells += [record.get("exit_code") or "no end recorded", record.get("failed", "")]
    attempts = record.get("attempts", "").splitlines()
    restarts = [each.partition(" ")[0] for each in attempts if "; restart " in each]
    facts = {name: [record.get(each, "") for each in keys] for name, keys in _INPUT.items()}
    facts["options"] = [_text(run / "options", owner).replace("\n", " ")]
    facts["run directory"] = [str(run)]
    return {
        "name": run.name,
        "directory": str(run),
        "log": log,
        "started": seconds_between(_EPOCH, started),
        "ended": seconds_between(_EPOCH, ended),
        "cells": cells,
        "facts": [
            (name, ", ".join(filter(None, each))) for name, each in facts.items() if any(each)
        ],
        "code": [_repository(each, owner) for each in find_files(run, "repositories/*.commit")],
        "packages": _text(run / "packages.txt", owner).split(),
        "remarks": [*attempts, *filter(None, [record.get("throughput")])],
        "restarts": [seconds_between(_EPOCH, each) for each in restarts],
        "findings": found,
    }


def _log(
    log: str, owner: int, gaps: list[tuple[str, str]], findings: Findings
) -> tuple[str, list[dict[str, Any]]]:
    """Return the path of a log that can be read, and what is found in it."""
    try:
        with open_file(Path(log), owner=owner) as stream:
            return log, findings(stream)
    except OSError as error:
        if os.path.isfile(log):
            is_closed = isinstance(error, PermissionError)
            todo = "ask its owner to run: chmod g+r" if is_closed else "run: ls -lL"
            gaps.append((f"cannot read {log}: {error.strerror}", f"{todo} {shlex.quote(log)}"))
    return "", []


def _text(file: Path, owner: int) -> str:
    """Return the text of a file of a run, behind no link."""
    return content_of(file, follow=False, owner=owner).decode(errors="replace")


def _shown(time: str) -> str:
    """Return a time of a record like this: ``2026-05-03 14:07 UTC``; other text unchanged."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\dZ$", r"\1 \2 UTC", time)


def _duration(records: Iterable[Mapping[str, str]]) -> str | None:
    """Return how long jobs have run, in Slurm's form; None if none has ended."""
    found = [each for each in records if each.get("started") and each.get("ended")]
    seconds = sum(
        seconds_between(each["started"], each["ended"]) + earlier_seconds(each) for each in found
    )
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if found else None


def _repository(file: Path, owner: int) -> tuple[str, str, str, str]:
    """Return name, commit, local changes and the file with them (lib/jobs/record_worker.py)."""
    commit = re.search(r"^commit (\S+)", _text(file, owner), re.MULTILINE)
    patch = file.with_suffix(".patch")
    count = _text(patch, owner).count("diff --git ")
    changed = f"{count} file{'s' * (count > 1)}" if count else "none"
    return file.stem, commit[1][:12] if commit else "", changed, str(patch) if count else ""


def _figures(used: list[Used], records: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Return heading and value of what the jobs have used together; not measured is never 0."""
    total, unit = summed(used), records[-1].get("cost_unit", "")
    loads = [each.cpu_load for each in used if each.cpu_load is not None]
    figures = [("duration", "{}", _duration(records))]
    if total["gpu_hours"]:
        peaks = [each.gpu_peak_memory_mib for each in used]
        figures.append(("GPU-hours", "{:,.2f}", total["gpu_hours"]))
        figures.append(("GPU utilisation", "{:.0f} %", total["gpu_utilisation_percent"]))
        figures.append(("energy, kWh", "{:,.3f}", total["energy_kwh"]))
    else:
        peaks = [each.cpu_peak_memory_mib for each in used]
        figures.append(("CPU load", "{:.1f}", max(loads, default=None)))
    peak = max((each / 1024 for each in peaks if each is not None), default=None)
    figures.append(("memory, GiB", "{:.1f}", peak))
    if total["cost"] is not None:
        figures.append((unit, "{:,.2f}", total["cost"]))
    return [
        (name, NOT_MEASURED if value is None else form.format(value))
        for name, form, value in figures
    ]
