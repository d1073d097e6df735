"""The verb `submit.py card`."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import click

from lib.commands import Invocation
from lib.commands.options import complete, script_options
from lib.configuration.layers import Settings, load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.schema import entry_name
from lib.configuration.sites import Machine
from lib.configuration.tables import find_files
from lib.configuration.training import Training
from lib.jobs.runs import check_own, recorded_run, steps_of, values_of
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.command import Below, call, text_below, wrapped
from lib.script.errors import LongshipError, offline_modes, printable
from lib.script.output import number
from lib.script.quoting import Expansion
from lib.script.records import content_of, first_start, readable_values, seconds_between
from lib.script.render import render
from lib.script.secrets import mask
from lib.script.trust import is_own

UNKNOWN = "not recorded"
_MOST = 200  # files of a setting, or of the program's list
_MARK = "``"  # for what card.bash finds; no value contains it
_JOB = ("started", "ended", "exit_code", "nodes", "gpus", "image_sha256")
Row = tuple[str, ...]
Record = dict[str, str]


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete("run"))
@click.option("--output", metavar="DIR", default="", help="New directory (default: card/ of RUN).")
@script_options
def card(invocation: Invocation, run: str, output: str) -> None:
    """Write a model card of RUN: data, code, image, packages, metrics, energy and CO2.

    The card is a README.md in the format of the Hugging Face Hub, with lists of the packages. What
    is not known is "not recorded".
    """
    found = recorded_run(invocation.paths, run, "python3 submit.py card")
    own = call("chmod", "-R", "go-w", str(found))
    check_own(found, f"ask its owner to write the card; if it is yours, and unchanged: {own}")
    record, configuration = readable_values(found / "record.json"), found / "configuration.json"
    if not record.get("started") or not configuration.is_file():
        raise LongshipError(f"the record of the run is incomplete: {found}", "choose another run")
    chosen = {key: invocation.options[key] or record.get(key, "") for key in ("machine", "stack")}
    frozen = found / "code/longship"  # what the settings mean may have changed since
    root = frozen if os.access(frozen / "stacks", os.R_OK) else invocation.paths.root
    options = {**chosen, "configuration": str(configuration)}
    settings = load_settings(root, options, invocation.environ)
    if not (root / "stacks" / settings.stack.name / "run_training.sh").is_file():
        message = f"the stack {settings.stack.name} trains no model: {found}"
        raise LongshipError(message, "choose the run of a training")
    invocation = invocation.changed(**chosen)  # of today: it only makes the CycloneDX list
    env = invocation.environment()
    packages = content_of(found / "packages.txt", follow=False).decode(errors="replace")
    directory = os.path.abspath(Path(output).expanduser() if output else found / "card")
    lines = card_lines(env, directory, packages, *card_of(found, settings, env.machine))
    invocation.finish(render(invocation.title("submit.py card"), lines), "submit.py")


def card_lines(
    env: Environment, directory: str, packages: str, text: str, begin: int, files: list[str]
) -> list[str]:
    """Return the lines that write a card, with the files that were not changed since the begin."""
    inside = [each for each in run_lines(env) if each]
    install = offline_modes(" && ".join(env.packages.steps))
    texts = Expansion('"$card_text"'), Expansion('"$card_packages"')
    return [
        call("cd", "--", env.paths.root),
        call("card_begin", directory),
        wrapped("card_hash_files", str(begin), *files),
        text_below("card_text", text, "The card; empty code is a mark for what is not yet known."),
        text_below("card_packages", packages, "The packages of the run."),
        *("card_inside() {", *(x if isinstance(x, Below) else f"  {x}" for x in inside), "}"),
        wrapped("card_write", directory, *texts, install),
    ]


def card_of(run: Path, settings: Settings, machine: Machine) -> tuple[str, int, list[str]]:
    """Return README.md, the begin of the first job in seconds since 1970, and the files to hash.

    The settings are those with which the job began.
    """
    names = settings.stack.metrics
    steps = list(steps_of(run, names["files"]))
    jobs = list(_jobs(run, [each["time"] for each in steps if "time" in each]))
    record = next(each for each in jobs if each["run"] == run.name)
    inputs = list(dict.fromkeys(x for each in jobs for x in _data(run.parent / each["run"])))
    inputs += _inputs(run, settings, not inputs)
    hub = {name: what for name, what, note in inputs if note.startswith("on the hub")}
    emissions, compute = _compute(jobs, machine)
    arguments = record.get("arguments")
    front = {
        "tags": [settings.stack.name],
        "datasets": [what for name, what in hub.items() if "data" in name],
        "base_model": hub.get("training.model"),
        "library_name": "transformers" if (run / "exported").is_symlink() else None,
        "co2_eq_emissions": emissions if steps else None,  # or other jobs are not known
    }
    given = settings.configuration.training
    is_last = record.get("first_started") and not record.get("code")  # requeued, and not frozen
    code = list(_repositories(run, settings)) or [(_code("longship"), *[UNKNOWN] * 3)]
    files = [(_code(name), _code(what), note) for name, what, note in inputs]
    ran = [tuple(_code(job.get(each)) for each in ("run", *_JOB)) for job in jobs]
    tables: dict[str, list[Row]] = {
        "Model": [
            ("", ""),
            ("Licence, intended use, limits", f"{UNKNOWN}: add them, and `license` above"),
            ("Base model", _code(front["base_model"])),
            ("Settings", _code(json.dumps(given, ensure_ascii=False)) if given else "none"),
            ("Arguments", "none" if arguments == "" else _code(arguments)),
        ],
        "Metrics": [("", ""), *_metrics(steps, names)],
        "Data and other input": [("name", "file", "SHA-256, of today"), *files],
        "Code": [
            ("repository", "URL", "commit" + " at the last start" * bool(is_last), "local changes"),
            *code,
        ],
        "Environment": [("", ""), *_environment(record), ("Python packages", _MARK)],
        "Jobs that took these steps" if steps else "Job": [("job", *_JOB), *ran],
        "Compute of these jobs" if steps else "Compute of this job": [("", ""), *compute],
    }
    text = "".join(f"{key}: {json.dumps(each)}\n" for key, each in front.items() if each)
    text = f"---\n{text}---\n\n# {_code(run.name)}\n\nFrom the records of Longship, on "
    text += f'{time.strftime("%Y-%m-%d", time.gmtime())}; "{UNKNOWN}" is what they do not tell.\n'
    for heading, rows in tables.items():
        lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
        text += f"\n## {heading}\n\n" + "".join(f"| {' | '.join(each)} |\n" for each in lines)
    for name, path in derive_paths(settings)._asdict().items():
        text = text.replace(str(path), f"{{{name}}}") if name.endswith("_dir") else text
    return text, _seconds(jobs[0]["started"]), [what for _, what, note in inputs if note == _MARK]


def _code(value: Any) -> str:
    """Return a value as Markdown shows it unchanged, in a table too, but without secrets."""
    text = f"{value:.6g}" if isinstance(value, float) else str("" if value is None else value)
    text = printable(mask(text)).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else UNKNOWN


def _seconds(moment: str) -> int:
    """Return a time of a record in seconds since 1970."""
    return seconds_between("1970-01-01T00:00:00Z", moment)


def _metrics(steps: list[dict[str, float]], names: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the last value of each metric; of the speed it is the median of all steps."""
    for name in ("step", names["loss"], names["validation_loss"]):
        yield name, _code(next((each[name] for each in reversed(steps) if name in each), None))
    once = {each.get("step"): each for each in steps}.values()  # a resume repeats some
    speeds = [each[names["speed"]] for each in once if names["speed"] in each]
    yield f"median of {names['speed']}", _code(median(speeds) if speeds else None)


def _jobs(run: Path, times: list[float]) -> Iterator[Record]:
    """Yield the records of the jobs that took the steps at these times, and of this one."""
    records = {run: readable_values(run / "record.json")}
    for each in (file.parent for file in find_files(run.parent, "*/record.json")):
        with suppress(OSError):  # without a link
            same = os.readlink(each / "outputs") == os.readlink(run / "outputs")
            if same and is_own(each):
                records[each] = readable_values(each / "record.json")
    begins = {each: _seconds(first_start(record)) for each, record in records.items()}
    order = sorted(records, key=lambda each: begins[each])
    for each, following in zip(order, [*order[1:], Path()]):
        end = _seconds(records[each].get("ended", "")) or begins.get(following, math.inf)
        if each == run or any(begins[each] <= step <= end for step in times):
            used, _ = values_of(each, records[each])
            started = first_start(records[each])
            yield {**records[each], **used, "run": each.name, "started": started}


def _compute(jobs: list[Record], machine: Machine) -> tuple[dict[str, Any], list[Row]]:
    """Return the emissions as the hub reads them, {} if not known, and the rows of the card."""
    names = ("gpu_hours", "energy_kwh", "measured_percent", "gpus")
    hours, energies, shares, gpus = ([number(job.get(x, "")) for job in jobs] for x in names)
    hour_sum, energy = (None if None in x else float(sum(x)) for x in (hours, energies))  # type: ignore[arg-type]
    measured = f"measured for {min(each or 0 for each in shares):.0f} % of the time"
    rows = [
        ("Machine", _code(machine.description)),
        ("Location", UNKNOWN),
        ("GPU-hours", _code(hour_sum)),
        ("kWh of the GPUs alone", UNKNOWN if energy is None else f"{_code(energy)}, {measured}"),
    ]
    factor, machines = machine.co2, {job.get("machine") for job in jobs}
    if energy is None or not factor or machines != {machine.name}:
        unknown = f"{UNKNOWN}: it follows from the kWh and `co2` in {_code(machine.site_file)}"
        return {}, [*rows, ("kg of CO2", unknown)]
    kg, source = energy * factor.kg_per_kwh, f"{factor.kg_per_kwh:g} kg/kWh ({factor.source})"
    emissions = {
        "emissions": round(1000 * kg, 3),  # g
        "source": f"{energy:.6g} kWh of the GPUs alone, {measured}, x {source}",
        "hardware_used": f"{max(each or 0 for each in gpus)} GPUs of {machine.description}",
    }
    return emissions, [*rows, ("kg of CO2", f"{_code(kg)}, with {_code(source)}")]


def _data(run: Path) -> Iterator[Row]:
    """Yield the files that the program of a job names: a name, the file, and a mark or a reason."""
    named: Any = None
    listed = run / "data.json"  # of the program, with the user's umask
    with suppress(ValueError, RecursionError):
        named = json.loads(content_of(listed)) if is_own(listed) else None
    named = named if isinstance(named, list) else []
    for each in map(str, named[:_MOST]):
        is_file = os.path.isabs(each) and os.path.isfile(each)
        yield "data", each, _MARK if is_file else f"{UNKNOWN}: no file has this path"
    if named[_MOST:]:
        yield "data", "", f"{UNKNOWN}: {len(named[_MOST:])} more files"
    if os.path.lexists(listed) and not is_own(listed):
        yield "data", "", f"{UNKNOWN}: others can write to {_code(listed)}"


def _inputs(run: Path, settings: Settings, is_needed: bool) -> Iterator[Row]:
    """Yield what the settings name: setting, file or name, and a mark or what is known instead."""
    training = Training.read(settings, derive_paths(settings))
    commits = {each.get("repo"): each.get("revision", "") for each in settings.configuration.assets}
    arguments = os.fsdecode(content_of(run / "arguments")).split("\0")
    given = {each.lstrip("-").partition("=")[0].replace("-", "_") for each in arguments}
    configured = [*training.patterns(), *training.repos(Path())]
    for name, what, *_ in configured:
        commit = re.fullmatch("[0-9a-f]{40}", commits.get(what, ""))
        if name.partition(".")[2] in given:
            yield name, "", f"{UNKNOWN}: an argument sets it"
        elif what.startswith("/"):
            yield from _files(name, what)
        else:
            yield name, what, f"on the hub, commit {_code(commit and commit[0])}"
    if is_needed and not configured:
        yield "data", "", f"{UNKNOWN}: neither a setting nor the program names a file"


def _files(name: str, path: str) -> Iterator[Row]:
    """Yield the files of a path: one, those of a directory, of a prefix, or of a pattern."""
    plain = glob.escape(path)
    for pattern in (plain, f"{plain}/**", f"{plain}.*", path) if os.path.isabs(path) else ():
        files = filter(os.path.isfile, glob.iglob(pattern, recursive=True))
        found = sorted(islice(files, _MOST + 1))
        if found[_MOST:]:
            yield name, path, f"{UNKNOWN}: it has more than {_MOST} files"
            return
        if found:
            yield from ((name, each, _MARK) for each in found)
            return
    yield name, path, f"{UNKNOWN}: no file has this path"


def _repositories(run: Path, settings: Settings) -> Iterator[Row]:
    """Yield name, URL, commit and changes of each (lib/jobs/record_worker.py)."""
    urls = {entry_name(each): each.get("url") for each in settings.configuration.repositories}
    for file in find_files(run, "repositories/*.commit"):
        first, *more = content_of(file).decode(errors="replace").splitlines() or [""]
        count = len(re.findall(rb"(?m)^diff --git ", content_of(file.with_suffix(".patch"))))
        changes = f"{count} files" if count else "none"
        if len(more) != 1:  # only the base: without a commit, or with files that the patch lacks
            changes = f"{count} files, others {UNKNOWN}"
        commit = _code(first.removeprefix("commit "))
        yield _code(file.stem), _code(urls.get(file.stem)), commit, changes


def _environment(record: Record) -> Iterator[Row]:
    """Yield what the job ran in; an image is known by its own record if it is still the same."""
    image, checksum = record.get("image", ""), record.get("image_sha256")
    built = readable_values(Path(f"{image}.json")) if image.startswith("/") else {}
    built = built if checksum and built.get("sha256") == checksum else {}
    yield "Runtime", _code(record.get("runtime"))
    yield "Image", _code(built.get("source") or os.path.basename(image)) if image else "none"
    yield "SHA-256 of the image", _code(checksum) if image else "none"
    if not checksum and record.get("image_state"):
        yield "Size of the image's file", _code(record["image_state"])
    overlay = _code(record.get("overlay_sha256")) if record.get("overlay") else "none"
    yield "SHA-256 of the overlay", overlay
    yield "Frozen code", _code(os.path.basename(record.get("code", "")))
