"""The checks of doctor.py: the lines of its script, one call per check."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, TypeVar

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, derive_paths, expand, is_below, pinned
from lib.configuration.repositories import configured_repositories
from lib.configuration.schema import KEYS
from lib.configuration.sites import Machine, load_machines, recognise, shown_marks
from lib.configuration.snapshot import looks_secret, refused_secrets, toml_key, without_secrets
from lib.jobs.job_files import job_files, read_job_file
from lib.repositories.repositories import WORKER, listed_lines
from lib.runtimes.choice import Choice, choose_runtime
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.image import image_file, image_source
from lib.runtimes.launch import image_lines, inside_lines
from lib.runtimes.packages import MOUNTED_AT
from lib.script.command import assign, call, comment, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word

_Value = TypeVar("_Value")

MASK = "***"

_GB = 1 << 30
# Topic and required space of each directory: images and packages go to the scratch directory.
_ROOTS = {
    "checkpoint_dir": ("checkpoints", 10 * _GB),
    "project_dir": ("project", _GB),
    "scratch_dir": ("scratch", 10 * _GB),
}
_TEMPORARY = Expansion('"${TMPDIR:-/tmp}"')
# Token files in the home directory: of the Hugging Face Hub, wandb and git.
_TOKEN_FILES = tuple(
    Expansion(f'"${{HOME:-}}"/{each}')
    for each in (".cache/huggingface/token", ".netrc", ".git-credentials")
)
# Tables whose keys users choose.
_NAMED_BY_USERS = ("environment.set", "training")
_LOGIN = re.compile(r"(://)[^/\s]*@")


def lines(settings: Settings, succeeds: Callable[[list[str]], bool], *, as_json: bool) -> list[str]:
    """Return the lines that check the machine and the configuration.

    An error of the configuration is one of the findings, so that the other checks still run.

    Parameters
    ----------
    succeeds : callable
        Runs a command and returns whether it succeeded on this machine.
    """
    machine = settings.machine
    found = [
        *_start_lines(settings.root, as_json),
        _configuration_line(settings),
        *_check_or_report("machine", lambda: _site_lines(settings)),
        *_check_or_report("jobs", lambda: _job_lines(settings)),
        call("arch_diagnose", machine.arch, machine.name),
    ]
    paths, wrong = _value_or_report("paths", lambda: derive_paths(settings))
    found += wrong
    choice, servers = None, []
    if paths:
        found += _directory_lines(settings, paths)
        choice, wrong = _value_or_report(
            "runtime", lambda: choose_runtime(settings, paths, succeeds)
        )
        found += wrong
    if paths and choice:
        found += _runtime_lines(settings, paths, choice)
        servers, _ = _value_or_report("image", lambda: _servers(settings, choice.runtime))
    else:
        found += _machine_lines(machine)
    if paths:
        found += _check_or_report("repositories", lambda: _repository_lines(settings, paths))
    account = settings.configuration.project.account if machine.accounts == "yes" else ""
    expected = machine.name if machine.required or machine.partitions else ""
    return [
        *found,
        *_network_lines(paths.offline if paths else "", servers or []),
        *_check_or_report("tokens", lambda: _token_lines(settings)),
        wrapped("slurm_diagnose", expected, account, *machine.partitions),
        *_value_lines(settings),
        call("report_end"),
    ]


def lines_without_settings(root: Path, error: LongshipError, *, as_json: bool) -> list[str]:
    """Return the lines for an invalid configuration: its error, and what can be checked without."""
    installed = [each for each in ("apptainer", "singularity") if shutil.which(each)][:1]
    return [
        *_start_lines(root, as_json),
        _problem("configuration", error),
        *(call("runtime_diagnose", each, "") for each in installed),
        *_machine_lines(None, *installed),
        *_personal_lines(),
        *_network_lines("", []),
        wrapped("tokens_diagnose", *_TOKEN_FILES),
        call("slurm_diagnose", "", ""),
        call("report_end"),
    ]


def _problem(topic: str, error: LongshipError) -> str:
    return call("report", "problem", topic, str(error), error.hint)


def _value_or_report(topic: str, compute: Callable[[], _Value]) -> tuple[_Value | None, list[str]]:
    """Return a value and no lines, or None and the line that reports why."""
    try:
        return compute(), []
    except LongshipError as error:
        return None, [_problem(topic, error)]


def _check_or_report(topic: str, compute: Callable[[], list[str]]) -> list[str]:
    """Return the lines of a check, or the one that reports why there are none."""
    found, wrong = _value_or_report(topic, compute)
    return found or wrong


# ---------- configuration and site


def _start_lines(root: Path, as_json: bool) -> list[str]:
    return [
        call("report_begin", "json" if as_json else "text"),
        call("node_diagnose"),
        call("clone_diagnose", root),
        call("python_diagnose", root),
    ]


def _configuration_line(settings: Settings) -> str:
    """Report which files the configuration was read from."""
    root = f"{settings.root}{os.sep}"
    read = [each for each in settings.files if os.path.isfile(each)]
    others = [each for each in read if not each.endswith("site.toml")]
    shown = [each[len(root) :] if each.startswith(root) else each for each in others]
    text = f"{', '.join(shown)} and {len(read) - len(others)} sites can be read"
    return call("report", "ok", "configuration", text)


def _site_lines(settings: Settings) -> list[str]:
    """Report the target machine, and the mark by which this machine was detected."""
    machines = load_machines(settings.root)
    here = recognise(machines, settings.environ, os.uname().nodename)
    machine, origin = settings.machine, settings.origins["machine"]
    text = f"{machine.name}, {machine.description} ({machine.site_file})"
    marks = shown_marks(machines[here]) if here in machines else ""
    detected = f"detected by {marks}" if marks else "no known site detected"
    if settings.configuration.machine == "auto":
        return [call("report", "ok", "machine", f"{text}: {detected}")]
    text += f": set in {origin}"
    if here == machine.name or not marks:
        also = "also " if marks else ""
        return [call("report", "ok", "machine", f"{text}; {also}{detected}")]
    fix = f'machine = "auto" in configuration.toml, or: --machine {here}'
    return [call("report", "warning", "machine", f"{text}, but {marks} identifies {here}", fix)]


def _job_lines(settings: Settings) -> list[str]:
    """Report job scripts of the site for other machines: a copied one may still name its former."""
    machines = load_machines(settings.root)
    site = Path(settings.machine.site_file).parent
    files = [each for each in job_files(settings.root) if each.parent == settings.root / site]
    found = []
    for path in files:
        job = read_job_file(settings.root, str(path))
        own = job.machine in machines and machines[job.machine].site_file
        if job.machine and own != settings.machine.site_file:
            text = f"{job.path} is for the machine {job.machine}, which is not in {site}/site.toml"
            fix = f"start_job {settings.machine.name} in {job.path}"
            found.append(call("report", "warning", "jobs", text, fix))
    text = f"{len(files)} job scripts in {site}/, all for machines of this site"
    return found or [call("report", "ok", "jobs", text)]


def _value_lines(settings: Settings) -> list[str]:
    found = []
    for each in configured_values(settings):
        if "$" in each[1]:
            found.append(comment("shellcheck disable=SC2016  # shown as it is configured"))
        found.append(call("report_value", *each))
    return found


def configured_values(settings: Settings) -> list[tuple[str, str, str]]:
    """Return key, value and source of each value; values as in TOML, secrets as `MASK`."""
    found = []
    for key in KEYS:
        value: Any = settings.configuration
        for part in key.split("."):
            value = getattr(value, part)
        shown = _as_toml(value, masked=key in _NAMED_BY_USERS)
        found.append((key, shown, settings.origins[key]))
    return found


def _as_toml(value: Any, name: str = "", *, masked: bool = False) -> str:
    """Write a value of a key; `masked` if the keys in this table show which values are secret."""
    if looks_secret(name):
        value = MASK
    elif name.lower().endswith("_proxy") and "@" in str(value):  # a password can contain a slash
        value = f"{MASK}@{str(value).rpartition('@')[2]}"
    if isinstance(value, Mapping):
        entries = (
            f"{toml_key(key)} = {_as_toml(each, key if masked else '')}"
            for key, each in value.items()
        )
        return f"{{ {', '.join(entries)} }}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_as_toml, value))}]"
    text = _LOGIN.sub(rf"\1{MASK}@", value) if isinstance(value, str) else value
    return json.dumps(text, ensure_ascii=False)


# ---------- directories and machine


def _directory_lines(settings: Settings, paths: Paths) -> list[str]:
    keys = {getattr(paths, key): key for key in _ROOTS}
    return [
        *(
            call("directory_diagnose", topic, f"paths.{keys[each]}", each, str(room))
            for each in dict.fromkeys(paths.roots)
            for topic, room in [_ROOTS[keys[each]]]
        ),
        *_mounted_lines(settings, paths),
        *_personal_lines(),
        call("caches_diagnose", paths.cache),
        call("leftovers_diagnose", paths.root, paths.project_dir, paths.scratch_dir),
    ]


def _mounted_lines(settings: Settings, paths: Paths) -> list[str]:
    """Report directories that compute nodes do not mount: on JUPITER a job then has no log."""
    mounted = settings.machine.compute_folders
    if not mounted:
        return []
    nodes = f"compute nodes of {settings.machine.name}"
    fix = f"move it to a directory under {' or '.join(mounted)}"
    return [
        call("report", "problem", "folders", f"{nodes} do not mount {each}", fix)
        for each in dict.fromkeys((paths.root, *paths.roots))
        if not any(is_below(str(each), folder) for folder in mounted)
    ] or [call("report", "ok", "folders", f"{nodes} mount this repository and all of them")]


def _personal_lines() -> list[str]:
    temporary = call("directory_diagnose", "temporary", "TMPDIR", _TEMPORARY, str(_GB))
    return [call("home_diagnose"), temporary]


def _machine_lines(machine: Machine | None, runtime: str = "") -> list[str]:
    found = []
    if runtime in ("apptainer", "singularity"):
        fakeroot = call("fakeroot_diagnose", machine.build_hint if machine else "")
        if machine and machine.definition_builds == "forbidden":
            text = "the site allows no builds from definition files"
            fakeroot = call("report", "ok", "fakeroot", text)
        found = [call("namespaces_diagnose", runtime), fakeroot, call("fuse_diagnose", runtime)]
    if machine and machine.gpu == "cpu":
        return [*found, call("report", "ok", "GPU", "this machine has none")]
    gpus = (machine.gpu, machine.gpus_per_node) if machine else ("auto", 0)
    return [*found, call("gpu_diagnose", *map(str, gpus))]


# ---------- software


def _runtime_lines(settings: Settings, paths: Paths, choice: Choice) -> list[str]:
    runtime = choice.runtime
    env = Environment(without_secrets(settings), paths, runtime, "set_up")
    check = call("runtime_diagnose", runtime, choice.why)
    if runtime == "host":
        text = f"host (no container){f': {choice.why}' if choice.why else ''}"
        check = call("report", "ok", "runtime", text)
    return [
        *module_lines(settings.machine, runtime),
        check,
        *_machine_lines(settings.machine, runtime),
        *_check_or_report("image", lambda: _software_lines(env)),
    ]


def _software_lines(env: Environment) -> list[str]:
    """Return the lines that check image, overlay and venv, as other scripts use them."""
    binds = tuple(env.venv_binds) if env.venv and os.path.exists(env.venv) else ()
    inside = inside_lines(env._replace(held={"overlay": ""}, more_binds=binds))
    found = [assign("arch", env.machine.arch)]
    if env.image:
        file = image_file(env.runtime, env.source, env.paths)
        active = env.paths.containers / file
        version = pinned(active) if os.path.islink(active) else env.image
        found += [
            *_function("image_check_active", image_lines(env)),
            call("image_diagnose", version, env.paths.containers / "build" / file),
        ]
    found += [
        *_function("inside_run", [*inside, 'inside "$@"']),
        call("inside_diagnose"),
        call("gpu_diagnose_inside"),
    ]
    if env.runtime in ("apptainer", "singularity"):
        compression = env.settings.configuration.packages.compression
        found += [
            *(assign("runtime", env.runtime), assign("base", env.image)),
            assign("overlay_target", MOUNTED_AT),
            call("mount_diagnose", compression, env.overlay),
        ]
    if env.overlay:
        found.append(call("overlay_diagnose", env.overlay, env.base))
    if env.venv:
        found.append(call("venv_diagnose", env.venv, env.overlay or env.base))
    return found


def _function(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}() {{", *lines, "}"]


def _repository_lines(settings: Settings, paths: Paths) -> list[str]:
    names = " ".join(each.name for each in configured_repositories(settings))
    diagnose = call("repositories_diagnose", names, WORKER)
    return [*listed_lines(settings, paths), diagnose] if names else []


# ---------- network


def _network_lines(offline: Word, servers: list[str]) -> list[str]:
    return [
        call("proxy_diagnose"),
        call("certificates_diagnose"),
        wrapped("network_diagnose", offline, *servers),
    ]


def _servers(settings: Settings, runtime: str) -> list[str]:
    """Return the URLs of the registry of the image."""
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
    refused = refused_secrets(environment, settings.origins)
    files = [
        expand("environment.token_files", each, settings)
        for each in environment.token_files.values()
    ]
    return [
        *(_problem("secrets", each) for each in refused.values()),
        wrapped("tokens_diagnose", *dict.fromkeys(files), *_TOKEN_FILES),
        wrapped("secrets_diagnose", *environment.secrets),
    ]
