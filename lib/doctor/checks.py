"""What doctor.py looks at: the lines of its script, a check each."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Callable, TypeVar

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, derive_paths, expand
from lib.configuration.sites import Machine
from lib.configuration.snapshot import refused_secrets, without_secrets
from lib.doctor.site import configuration_line, job_lines, site_lines, visible_lines
from lib.doctor.software import repository_checks, software_lines
from lib.doctor.values import configured_values
from lib.runtimes.choice import Choice, choose_runtime
from lib.runtimes.environment import module_lines
from lib.runtimes.image import image_source
from lib.script.command import call, comment, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word

_Value = TypeVar("_Value")

_GB = 1 << 30
# The room that a folder should have: images and packages go to the scratch folder.
_ROOM = {"project": _GB, "scratch": 10 * _GB, "checkpoints": 10 * _GB}
_TEMPORARY = Expansion('"${TMPDIR:-/tmp}"')
# Where programs keep tokens in the home folder: of the hub, of wandb, of git.
_KEPT = tuple(
    Expansion(f'"${{HOME:-}}"/{each}')
    for each in (".cache/huggingface/token", ".netrc", ".git-credentials")
)


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
        configuration_line(settings),
        *_heeded("machine", lambda: site_lines(settings)),
        *_heeded("jobs", lambda: job_lines(settings)),
        call("diagnose_arch", machine.arch, machine.name),
    ]
    paths, wrong = _attempt("paths", lambda: derive_paths(settings))
    found += wrong
    choice, servers = None, None
    if paths:
        found += _folder_lines(settings, paths)
        choice, wrong = _attempt("runtime", lambda: choose_runtime(settings, paths, succeeds))
        found += wrong
    if paths and choice:
        found += _runtime_lines(settings, paths, choice)
        servers, _ = _attempt("image", lambda: _servers(settings, choice.runtime))
    else:
        found += _machine_lines(machine)
    if paths:
        found += _heeded("repositories", lambda: repository_checks(settings, paths))
    account = settings.configuration.project.account if machine.accounts == "yes" else ""
    expected = machine.name if machine.required or machine.partitions else ""
    return [
        *found,
        *_network_lines(paths.offline if paths else "", servers or []),
        *_heeded("tokens", lambda: _token_lines(settings)),
        wrapped("diagnose_slurm", expected, account, *machine.partitions),
        *_value_lines(settings),
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
    there = [each for each in ("apptainer", "singularity") if shutil.which(each)][:1]
    return [
        *_start_lines(root, as_json),
        _problem("configuration", error),
        *(call("diagnose_runtime", each, "") for each in there),
        *_machine_lines(None, *there),
        *_personal_lines(),
        *_network_lines("", []),
        wrapped("diagnose_tokens", *_KEPT),
        call("diagnose_slurm", "", ""),
        call("end_report"),
    ]


def _value_lines(settings: Settings) -> list[str]:
    found = []
    for each in configured_values(settings):
        if "$" in each[1]:
            found.append(comment("shellcheck disable=SC2016  # shown as it is configured"))
        found.append(call("report_value", *each))
    return found


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
        call("diagnose_node"),
        call("diagnose_clone", root),
        call("diagnose_python", root),
    ]


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
        *visible_lines(settings, paths),
        *_personal_lines(),
        call("diagnose_caches", paths.cache),
        call("diagnose_leftovers", paths.root, paths.project_dir, paths.scratch_dir),
    ]


def _personal_lines() -> list[str]:
    temporary = call("diagnose_folder", "temporary", "TMPDIR", _TEMPORARY, str(_GB))
    return [call("diagnose_home"), temporary]


def _runtime_lines(settings: Settings, paths: Paths, choice: Choice) -> list[str]:
    machine = settings.machine
    return [
        *module_lines(machine, choice.runtime),
        call("diagnose_runtime", choice.runtime, choice.why),
        *_machine_lines(machine, choice.runtime),
        *_heeded("image", lambda: software_lines(without_secrets(settings), paths, choice.runtime)),
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


def _servers(settings: Settings, runtime: str) -> list[str]:
    """Return what answers where the image can be fetched."""
    if runtime == "host":
        return []
    source = image_source(settings)
    if source.kind not in ("docker", "oras"):
        return []
    host, slash, _ = source.plain.partition("/")
    if not slash or host == "docker.io" or not re.search(r"[.:]|^localhost$", host):
        host = "registry-1.docker.io"
    return [f"https://{host}/v2/"]


def _token_lines(settings: Settings) -> list[str]:
    environment = settings.configuration.environment
    files = [
        expand("environment.token_files", each, settings)
        for each in environment.token_files.values()
    ]
    return [
        *(_problem("secrets", each) for each in refused_secrets(settings).values()),
        wrapped("diagnose_tokens", *dict.fromkeys(files), *_KEPT),
        wrapped("diagnose_secrets", *environment.secrets),
    ]
