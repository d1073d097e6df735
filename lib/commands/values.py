"""What TAB offers in place of a value, from files alone.

Nobody reads an error on TAB: what cannot be read is left out, and the rest is offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from lib import ROOT
from lib.commands import Call
from lib.configuration.sites import Machine, load_site, recognise
from lib.configuration.stacks import load_stack, stack_names
from lib.configuration.tables import find_files
from lib.jobs.job_files import job_files, read_job_file
from lib.jobs.sbatch import option_words, waiting_option
from lib.runtimes.image import image_name, image_source
from lib.script.errors import LongshipError

Items = Iterator[CompletionItem]
# Options of sbatch whose values are files or a folder.
_FILE_OPTIONS = ("error", "export-file", "input", "nodefile", "output")


def values_of(kind: str, context: click.Context, word: str) -> list[CompletionItem]:
    """Return what a word can become.

    Parameters
    ----------
    kind : str
        A key of `_KINDS`.
    context : click.Context
        What is said before the word.
    word : str
        What was typed of it.

    Returns
    -------
    list of CompletionItem
        ``plain`` ones that begin with the word; ``file``, ``dir`` and ``command`` for what the
        shell itself completes (`lib/commands/completion.py`).
    """
    items = _KINDS[kind](context, word)
    found = [each for each in items if each.type != "plain" or each.value.startswith(word)]
    # without what cannot be typed: a name with a newline, or one that is no UTF-8
    return [each for each in found if each.value.isprintable()]


def _file(context: click.Context, word: str) -> Items:
    yield CompletionItem("", type="file")


def _folder(context: click.Context, word: str) -> Items:
    yield CompletionItem("", type="dir")


def _command(context: click.Context, word: str) -> Items:
    yield CompletionItem("0", type="command")


def _shells(context: click.Context, word: str) -> Items:
    from lib.commands.completion import SHELLS

    return map(CompletionItem, SHELLS)


def _machines(context: click.Context, word: str) -> Items:
    return (CompletionItem(each.name, help=each.description) for each in _known().values())


def _stacks(context: click.Context, word: str) -> Items:
    for name in stack_names(Path(ROOT)):
        about = ""
        with suppress(LongshipError):
            about = load_stack(Path(ROOT), name).description
        yield CompletionItem(name, help=about)


def _jobs(context: click.Context, word: str) -> Items:
    """Offer the job files of this machine's site, and of a site whose folder was typed."""
    yield CompletionItem("status", help="your jobs")
    yield CompletionItem("rerun", help="re-run a recorded job")
    known = _known()
    here = _machine(context, known)
    own = os.path.dirname(here.site_file) if here else ""
    files = [str(each.relative_to(ROOT)) for each in job_files(Path(ROOT))]
    for name in sorted(files, key=lambda each: not each.startswith(f"{own}/")):
        if name.startswith(f"{own}/") or "/" in word and name.startswith(word):
            yield CompletionItem(name, help=_about_job(name, known))
    if "/" not in word:
        for site in sorted({os.path.dirname(each) for each in files} - {own}):
            yield CompletionItem(f"{site}/", help="job scripts of another site")
    if not any(each.startswith(word) for each in ("status", "rerun", *files)):
        yield from _file(context, word)  # a job of one's own, anywhere


def _about_job(name: str, known: dict[str, Machine]) -> str:
    """Return the name of the machine that a job file is for, where it says that."""
    with suppress(LongshipError):
        machine = known.get(read_job_file(Path(ROOT), os.path.join(ROOT, name)).machine)
        return machine.description if machine else ""
    return ""


def _words(context: click.Context, word: str) -> Items:
    """Offer what can stand behind the job of submit.py: a run, or a value of sbatch's option."""
    words = context.params["words"]
    if context.params["job"] == "rerun" and not words:
        yield from _runs(context, word)
    option = waiting_option(words)
    if option in _FILE_OPTIONS:
        yield from _file(context, word)
    elif option == "chdir":
        yield from _folder(context, word)
    elif option == "dependency":
        for each in _ids(context):
            yield CompletionItem(f"afterok:{each.value}", help=each.help)
    elif option == "account":
        call = _call(context)
        if call and call.settings.configuration.project.account:
            yield CompletionItem(call.settings.configuration.project.account)
    elif option in ("partition", "qos"):
        machine = _machine_of_job(context)
        limits = {"partition": machine.partitions, "qos": machine.qos} if machine else {}
        yield from map(CompletionItem, limits.get(option, ()))


def _sbatch_options(context: click.Context, word: str) -> Items:
    """Offer sbatch's options behind a job file, or behind the run that is started again."""
    job, words = context.params.get("job"), context.params.get("words")
    if job and job != "status" and (job != "rerun" or words):
        own = {name for each in context.command.params for name in each.opts} | {"--help"}
        yield from (CompletionItem(each) for each in option_words() if each not in own)


def _runs(context: click.Context, word: str) -> Items:
    """Offer recorded runs, the newest first."""
    call = _call(context)
    folder = call.paths.runs if call else None
    if folder is None:
        return
    with suppress(OSError):
        names = [each for each in os.listdir(folder) if each.startswith(word)]
        # by the job's number, which is longer for a newer one
        for name in sorted(names, key=lambda each: (each.find("-"), each), reverse=True):
            if (folder / name / "record.json").is_file():
                yield CompletionItem(name)


def _ids(context: click.Context, word: str = "") -> Items:
    """Offer the ids of recorded jobs, with the jobs' names."""
    for run in _runs(context, word):
        number, _, name = run.value.partition("-")
        yield CompletionItem(number, help=name)


def _explained(context: click.Context, word: str) -> Items:
    """Offer what doctor.py explains: the log of a recorded job, or a file."""
    words = context.params["words"]
    if not words:
        yield CompletionItem("explain", help="the known messages in a job's log")
    elif words == ("explain",):
        yield from _ids(context, word)
        yield from _file(context, word)


def _versions(context: click.Context, word: str) -> Items:
    """Offer the versions of the configured image, named as --list does."""
    call = _call(context)
    if call is None:
        return
    with suppress(LongshipError, OSError):
        begin = f"{image_name(image_source(call.settings))}_{call.paths.arch}_"
        links = [each for each in call.paths.containers.iterdir() if each.is_symlink()]
        active = {os.path.basename(os.readlink(each)) for each in links}
        for name in sorted(os.listdir(call.paths.containers / "versions"), reverse=True):
            if name.startswith(begin) and not name.endswith((".json", ".history", ".partial")):
                version = name[len(begin) :].rpartition(".")[0]
                yield CompletionItem(version, help="active" if name in active else "")


def _known() -> dict[str, Machine]:
    """Return the machines of all sites whose file can be read."""
    found = {}
    for path in find_files(Path(ROOT), "*/site.toml"):
        with suppress(LongshipError):
            found.update({each.name: each for each in load_site(Path(ROOT), path)})
    return found


def _call(context: click.Context) -> Call | None:
    """Return the call that is being typed, where its configuration and its paths can be read."""
    names = ("machine", "stack", "configuration")
    typed = {each: os.path.expanduser(context.params.get(each) or "") for each in names}
    try:
        call = Call.read(typed, dry_run=True)
        return call if call.paths else None
    except LongshipError:
        return None


def _machine(context: click.Context, known: dict[str, Machine]) -> Machine | None:
    """Return the machine that the call is for; the recognised one where nothing can be read."""
    typed = context.params.get("machine") or os.environ.get("LONGSHIP_MACHINE", "auto")
    if typed == "auto":
        call = _call(context)
        if call:
            return call.settings.machine
        typed = recognise(known, os.environ, os.uname().nodename)
    return known.get(typed)


def _machine_of_job(context: click.Context) -> Machine | None:
    """Return the machine that a job file is for."""
    known = _known()
    with suppress(LongshipError):
        job = read_job_file(Path(ROOT), os.path.expanduser(context.params["job"]))
        if job.machine in known:
            return known[job.machine]
    return _machine(context, known)


_KINDS = {
    "command": _command,
    "configuration": _file,
    "explain": _explained,
    "file": _file,
    "folder": _folder,
    "job": _jobs,
    "job_id": _ids,
    "machine": _machines,
    "option": _sbatch_options,
    "shells": _shells,
    "stack": _stacks,
    "version": _versions,
    "words": _words,
}
