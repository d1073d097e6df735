"""Completion of values, from files alone; TAB shows no errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from lib import ROOT
from lib.commands import Invocation
from lib.configuration.sites import load_machines
from lib.configuration.stacks import load_stack, stack_names
from lib.jobs.job_files import job_files, read_job_file
from lib.jobs.options import OPTIONS, pending_option
from lib.runtimes.image import image_name, image_source
from lib.script.errors import LongshipError

Values = Iterator[tuple[str, str]]  # each with its help
# Completed by the shell itself; a user's command can start with a file.
_PATHS = {"command": "file", "configuration": "file", "file": "file", "directory": "dir"}


def values_of(kind: str, context: click.Context, word: str) -> list[CompletionItem]:
    """Return the completions of a word; the context has the words before it."""
    if kind in _PATHS:
        return [CompletionItem(word, type=_PATHS[kind])]
    found = []
    with suppress(LongshipError, OSError):
        for value, about in _KINDS[kind](context, word):
            # a name with a newline, or one that is not UTF-8, cannot be typed
            if value.startswith(word) and value.isprintable():
                found.append(CompletionItem(value, help=about))
    if not found and kind in ("job", "log"):
        found.append(CompletionItem(word, type="file"))  # a job script or log anywhere
    return found


def _machines(context: click.Context, word: str) -> Values:
    return ((each.name, each.description) for each in load_machines(Path(ROOT)).values())


def _stacks(context: click.Context, word: str) -> Values:
    return ((each, load_stack(Path(ROOT), each).description) for each in stack_names(Path(ROOT)))


def _verbs(context: click.Context, word: str) -> Values:
    return ((str(x.name), x.get_short_help_str(60)) for x in context.command.shown_verbs())


def _jobs(context: click.Context, word: str) -> Values:
    """Offer the job scripts of this machine's site; those of other sites once a letter is typed."""
    yield from _verbs(context, word)
    own = ""
    with suppress(LongshipError):
        own = os.path.dirname(_invocation(context).settings.machine.site_file)
    for path in job_files(Path(ROOT)):
        if word or path.parent.name == own:
            yield str(path.relative_to(ROOT)), ""


def _words(context: click.Context, word: str) -> Values:
    """Offer what follows the job of submit.py: a partition of its machine."""
    if pending_option(context.params["words"]) == "partition":
        machine, job = _invocation(context).settings.machine, context.params.get("job")
        if job:
            name = read_job_file(Path(ROOT), os.path.expanduser(job)).machine
            machine = load_machines(Path(ROOT)).get(name, machine)
        yield from ((each, "") for each in machine.partitions)


def _sbatch_options(context: click.Context, word: str) -> Values:
    """Offer sbatch's options after a job script, or after the run to re-run."""
    if context.params.get("job") or context.params.get("run"):
        own = {name for each in context.command.params for name in each.opts} | {"--help"}
        yield from ((f"--{each}", "") for each in OPTIONS if f"--{each}" not in own)


def _runs(context: click.Context, word: str) -> Values:
    """Offer recorded runs, the newest first: the number of a newer job is longer."""
    runs = _invocation(context).paths.runs
    for name in sorted(os.listdir(runs), key=lambda each: (each.find("-"), each), reverse=True):
        if (runs / name / "record.json").is_file():
            yield name, ""


def _ids(context: click.Context, word: str) -> Values:
    """Offer the IDs of recorded jobs, with the jobs' names."""
    for run, _ in _runs(context, word):
        number, _, name = run.partition("-")
        yield number, name


def _versions(context: click.Context, word: str) -> Values:
    """Offer the versions of the configured image, named as --list does."""
    invocation = _invocation(context)
    begin = f"{image_name(image_source(invocation.settings))}_{invocation.paths.arch}_"
    for name in sorted(os.listdir(invocation.paths.containers / "versions"), reverse=True):
        if name.startswith(begin) and not name.endswith((".json", ".history", ".partial")):
            yield name[len(begin) :].rpartition(".")[0], ""


def _invocation(context: click.Context) -> Invocation:
    """Return the call on the command line; its configuration can be unreadable."""
    names = ("machine", "stack", "configuration")
    typed = {each: os.path.expanduser(context.params.get(each) or "") for each in names}
    return Invocation.read(typed, dry_run=True)


_KINDS = {
    "job": _jobs,
    "job_id": _ids,
    "log": _ids,
    "machine": _machines,
    "option": _sbatch_options,
    "run": _runs,
    "stack": _stacks,
    "verb": _verbs,
    "version": _versions,
    "words": _words,
}
