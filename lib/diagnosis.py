"""What doctor.py looks at: the lines of its script, a check each."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Callable, TypeVar

from lib.command import call, wrapped
from lib.diagnosis_software import repository_checks, software_lines
from lib.diagnosis_values import configured_values, looks_secret
from lib.errors import LongshipError
from lib.images import image_source
from lib.job_files import job_files, read_job_file
from lib.paths import Paths, derive_paths, expand
from lib.quoting import Expansion, Word
from lib.runtimes import Choice, choose_runtime
from lib.settings import Settings
from lib.sites import Machine, load_machines, recognise, shown_marks
from lib.training import is_below

_Value = TypeVar("_Value")

_GB = 1 << 30
# The room that a folder should have: images and packages go to the scratch folder.
_ROOM = {"project": _GB, "scratch": 10 * _GB, "checkpoints": 10 * _GB}
_TEMPORARY = Expansion('"${TMPDIR:-/tmp}"')
_HOME_TOKEN = Expansion('"${HOME:-}"/.cache/huggingface/token')


def lines(settings: Settings, succeeds: Callable[[list[str]], bool], *, as_json: bool) -> list[str]:
    """Return the lines that look at the machine and at everything that is configured.

    What is wrong with the configuration is a finding like others, so that the rest is looked at.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    succeeds : callable
        Takes a command and tells whether it succeeds on this machine.
    as_json : bool
        For a program.
    """
    machine = settings.machine
    found = [
        *_start_lines(settings.root, as_json),
        _configuration(settings),
        *_heeded("machine", lambda: _site_lines(settings)),
        *_heeded("jobs", lambda: _job_lines(settings)),
        call("diagnose_arch", machine.arch, machine.name),
    ]
    paths, wrong = _attempt("paths", lambda: derive_paths(settings))
    found += wrong
    choice = None
    if paths:
        found += _folder_lines(settings, paths)
        choice, wrong = _attempt("runtime", lambda: choose_runtime(settings, paths, succeeds))
        found += wrong
    found += _runtime_lines(settings, paths, choice) if paths and choice else []
    if paths:
        found += _heeded("repositories", lambda: repository_checks(settings, paths))
    servers = _servers(settings) if choice and choice.runtime != "host" else []
    account = settings.configuration.project.account if machine.accounts == "yes" else ""
    expected = machine.name if machine.required or machine.partitions else ""
    return [
        *found,
        *_network_lines(paths.offline if paths else "", servers),
        *_heeded("tokens", lambda: _token_lines(settings)),
        wrapped("diagnose_slurm", expected, account, *machine.partitions),
        wrapped("report_values", *(word for each in configured_values(settings) for word in each)),
        call("end_report"),
    ]


def lines_without_settings(root: Path, error: LongshipError, *, as_json: bool) -> list[str]:
    """Return the lines for a configuration that cannot be read: that, and what needs none.

    Parameters
    ----------
    root : pathlib.Path
        The repository.
    error : LongshipError
        What is wrong with it.
    as_json : bool
        For a program.
    """
    there = [each for each in ("apptainer", "singularity") if shutil.which(each)]
    return [
        *_start_lines(root, as_json),
        _problem("configuration", error),
        *(call("diagnose_runtime", each, "") for each in there),
        *_machine_lines(None, *there[:1]),
        *_personal_lines(),
        *_network_lines("", []),
        call("diagnose_tokens", _HOME_TOKEN),
        call("diagnose_slurm", "", ""),
        call("end_report"),
    ]


def _problem(topic: str, error: LongshipError) -> str:
    return call("report", "problem", topic, str(error), error.hint)


def _attempt(topic: str, compute: Callable[[], _Value]) -> tuple[_Value | None, list[str]]:
    """Return a value, or None with the line that tells what is wrong."""
    try:
        return compute(), []
    except LongshipError as error:
        return None, [_problem(topic, error)]


def _heeded(topic: str, compute: Callable[[], list[str]]) -> list[str]:
    """Return lines, or the one that tells why there are none."""
    lines, wrong = _attempt(topic, compute)
    return lines or wrong


def _start_lines(root: Path, as_json: bool) -> list[str]:
    return [
        call("start_report", "json" if as_json else "text"),
        call("diagnose_clone", root),
        call("diagnose_python", root),
    ]


def _configuration(settings: Settings) -> str:
    root = f"{settings.root}{os.sep}"
    read = [each for each in settings.files if each.endswith(".toml") and os.path.isfile(each)]
    sites = [each for each in read if each.endswith("site.toml")]
    own = [each[len(root) :] if each.startswith(root) else each for each in read]
    shown = [each for each in own if not each.endswith("site.toml")]
    text = f"{', '.join(shown)} and {len(sites)} sites can be read"
    return call("report", "ok", "configuration", text)


def _site_lines(settings: Settings) -> list[str]:
    """Say which machine this is, and by which mark."""
    machines = load_machines(settings.root)
    here = recognise(machines, settings.environ, os.uname().nodename)
    machine, origin = settings.machine, settings.origins["machine"]
    text = f"{machine.name}, {machine.description} ({machine.site_file})"
    marks = shown_marks(machines[here]) if here in machines else ""
    if settings.configuration.machine == "auto":
        why = f"recognised by {marks}" if marks else "no site's mark is here"
        return [call("report", "ok", "machine", f"{text}: {why}")]
    text += f": named by {origin}"
    if here == machine.name or not marks:
        why = f"; {marks} says so too" if marks else "; no site's mark is here"
        return [call("report", "ok", "machine", text + why)]
    fix = f'machine = "auto" in configuration.toml, or: --machine {here}'
    return [call("report", "warning", "machine", f"{text}, but {marks} is the mark of {here}", fix)]


def _job_lines(settings: Settings) -> list[str]:
    """Say what the site's job files are for: one that was copied can still name another machine."""
    machines = load_machines(settings.root)
    site = Path(settings.machine.site_file).parent
    files = [each for each in job_files(settings.root) if each.parent == settings.root / site]
    found, names = [], []
    for path in files:
        job = read_job_file(settings.root, str(path))
        names.append(path.name)
        if job.machine and (
            job.machine not in machines
            or machines[job.machine].site_file != settings.machine.site_file
        ):
            text = f"{job.path} is for the machine {job.machine}, which is none of {site}/site.toml"
            fix = f"start_job {settings.machine.name} in {job.path}"
            found.append(call("report", "warning", "jobs", text, fix))
    text = f"{site}/: {', '.join(names)}" if names else f"{site}/ has no job files"
    return found or [call("report", "ok", "jobs", text)]


def _folder_lines(settings: Settings, paths: Paths) -> list[str]:
    topics = {paths.checkpoint_dir: "checkpoints", paths.project_dir: "project"}
    topics[paths.scratch_dir] = "scratch"
    keys = {"checkpoints": "checkpoint_dir", "project": "project_dir", "scratch": "scratch_dir"}
    return [
        *(
            call(
                *("diagnose_folder", topics[each], f"paths.{keys[topics[each]]}"),
                *(each, str(_ROOM[topics[each]])),
            )
            for each in dict.fromkeys(paths.roots)
        ),
        *_hidden(settings, paths),
        *_personal_lines(),
        call("diagnose_caches", paths.cache),
        call("diagnose_leftovers", paths.root, paths.project_dir, paths.scratch_dir),
    ]


def _hidden(settings: Settings, paths: Paths) -> list[str]:
    """Tell the folders that compute nodes do not see. JUPITER: a job then dies without a log."""
    seen = settings.machine.compute_folders
    text = f"compute nodes of {settings.machine.name} do not see "
    return [
        call("report", "problem", "folders", f"{text}{each}", f"move it below {' or '.join(seen)}")
        for each in dict.fromkeys((paths.root, *paths.roots))
        if seen and not any(is_below(str(each), folder) for folder in seen)
    ]


def _personal_lines() -> list[str]:
    temporary = call("diagnose_folder", "temporary", "TMPDIR", _TEMPORARY, str(_GB))
    return [call("diagnose_home"), temporary]


def _runtime_lines(settings: Settings, paths: Paths, choice: Choice) -> list[str]:
    machine = settings.machine
    why = choice.why.partition("(")[2].rstrip(")")
    return [
        *([call("load_modules", choice.runtime, *machine.modules)] if machine.modules else []),
        call("diagnose_runtime", choice.runtime, why),
        *_machine_lines(machine, choice.runtime),
        *_heeded("image", lambda: software_lines(settings, paths, choice.runtime)),
    ]


def _machine_lines(machine: Machine | None, runtime: str = "") -> list[str]:
    gpu, count, builds = "auto", 0, ("allowed", "")
    if machine:
        gpu, count = machine.gpu, machine.gpus_per_node
        builds = machine.definition_builds, machine.build_hint
    return [
        call("diagnose_namespaces", runtime, *builds),
        call("diagnose_fuse", runtime),
        call("diagnose_gpu", gpu, str(count)),
    ]


def _network_lines(offline: Word, servers: list[str]) -> list[str]:
    reach = wrapped("diagnose_reach", offline, *servers)
    return [call("diagnose_proxy"), call("diagnose_certificates"), reach]


def _servers(settings: Settings) -> list[str]:
    """Return what answers where the image can be fetched."""
    source = image_source(settings)
    if source.kind not in ("docker", "oras"):
        return []
    host = source.plain.partition("/")[0]
    if host == "docker.io" or not re.search(r"[.:]|^localhost$", host):
        host = "registry-1.docker.io"
    return [f"https://{host}/v2/"]


def _token_lines(settings: Settings) -> list[str]:
    environment = settings.configuration.environment
    origin = settings.origins["environment.set"]
    files = [
        expand("environment.token_files", each, settings)
        for each in environment.token_files.values()
    ]
    return [
        *(
            call(
                *("report", "warning", "secrets", f"environment.set in {origin} holds {name}"),
                f"take it out, and name it in environment.secrets; then type: export {name}=...",
            )
            for name in environment.set
            if looks_secret(name)
        ),
        wrapped("diagnose_tokens", *dict.fromkeys(files), _HOME_TOKEN),
        wrapped("diagnose_secrets", *environment.secrets),
    ]
