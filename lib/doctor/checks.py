"""The checks of doctor.py in their order."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

from lib import ROOT
from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, derive_paths, expand
from lib.configuration.schema import KEYS
from lib.configuration.snapshot import looks_secret, refused_secrets, toml_key, without_secrets
from lib.doctor import network, node, software
from lib.doctor.report import Diagnosis, Finding, problem
from lib.runtimes.choice import Choice, choose_runtime
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_source
from lib.script.errors import LongshipError
from lib.script.execute import succeeds
from lib.script.secrets import mask

MASK = "***"

_ROOTS = {  # topic and required space: images and packages go to the scratch directory
    "checkpoint_dir": ("checkpoints", 10 * node.GB),
    "project_dir": ("project", node.GB),
    "scratch_dir": ("scratch", 10 * node.GB),
}
# Token files in the home directory: of the Hugging Face Hub, wandb and git.
_TOKEN_FILES = (".cache/huggingface/token", ".netrc", ".git-credentials")
_NAMED_BY_USERS = ("environment.set", "training")  # tables whose keys users choose


def diagnose(settings: Settings, report: Diagnosis) -> None:
    """Check the machine and the configuration; an error of either is one of the findings."""
    machine, run = settings.machine, report.run
    _check_clone(settings.root, report)
    for topic, findings in _checks_of_packages():
        run(topic, partial(findings, settings))
    run("architecture", lambda: node.find_arch(machine))
    paths, choices = None, []
    try:
        paths = derive_paths(settings)
    except LongshipError as error:
        report.add(problem("paths", str(error), error.hint))
    if paths:
        _check_directories(settings, paths, report)
        run("runtime", lambda: _choose(settings, paths, choices))
    if paths and choices:
        env = Environment(without_secrets(settings), paths, choices[0].runtime, "set_up")
        run("image", lambda: software.find_software(env, choices[0].why))
    else:
        run("GPU", lambda: node.find_gpus(machine))
    if paths:
        run("repositories", lambda: software.find_repositories(settings, paths))
    servers = _servers(settings) if choices and choices[0].runtime != "host" else []
    _check_network(paths.offline if paths else None, servers, report)
    run("tokens", lambda: _tokens(settings))
    account = settings.configuration.project.account if machine.accounts == "yes" else ""
    run("Slurm", lambda: node.find_slurm(machine, account))
    report.end(configured_values(settings))


def _checks_of_packages() -> Iterator[tuple[str, Callable[[Settings], Iterator[Finding]]]]:
    """Yield the checks in files of this name: ``findings`` in ``extras/NAME/check.py``."""
    for path in sorted([*Path(ROOT).glob("lib/*/check.py"), *Path(ROOT).glob("extras/*/check.py")]):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield path.parent.name, import_module(module).findings


def diagnose_without_settings(root: Path, error: LongshipError, report: Diagnosis) -> None:
    """Report the error of an invalid configuration, and check what needs none."""
    run = report.run
    _check_clone(root, report)
    report.add(problem("configuration", str(error), error.hint))
    runtime = next(filter(shutil.which, software.SIF_RUNTIMES), None)
    if runtime:
        run("runtime", lambda: software.find_runtime(runtime, ""))
        run("namespaces", lambda: node.find_user_rights(runtime, None))
    run("GPU", lambda: node.find_gpus(None))
    run("home", node.find_home)
    run("temporary", node.find_temporary)
    _check_network(None, [], report)
    run("tokens", lambda: network.find_tokens(_own_token_files()))
    run("Slurm", lambda: node.find_slurm(None, ""))
    report.end()


def _check_clone(root: Path, report: Diagnosis) -> None:
    report.run("node", node.find_node)
    report.run("clone", lambda: node.find_clone(root))
    report.run("python", lambda: node.find_python(root))


def _check_directories(settings: Settings, paths: Paths, report: Diagnosis) -> None:
    run, keys = report.run, {getattr(paths, key): key for key in _ROOTS}
    for directory in dict.fromkeys(paths.roots):
        (topic, room), setting = _ROOTS[keys[directory]], f"paths.{keys[directory]}"
        run(topic, partial(node.find_directory, topic, setting, directory, room))
    run("owners", lambda: node.find_owners(paths))
    here = (paths.root, *paths.trees)
    run("directories", lambda: node.find_mounted(settings.machine, here))
    run("home", node.find_home)
    run("temporary", node.find_temporary)
    run("caches", lambda: node.find_caches(paths.cache))
    run("leftovers", lambda: node.find_leftovers(paths.root, paths.project_dir, paths.scratch_dir))


def _choose(settings: Settings, paths: Paths, choices: list[Choice]) -> list[Finding]:
    """Add the chosen runtime to `choices`: that depends on images, which a disk can withhold."""
    choices.append(choose_runtime(settings, paths, succeeds))
    return []


# ---------- configured values


def configured_values(settings: Settings) -> list[tuple[str, str, str]]:
    """Return key, value and source of each value; values as in TOML, secrets as `MASK`."""
    found = []
    for key in KEYS:
        value: Any = settings.configuration
        for part in key.split("."):
            value = getattr(value, part)
        shown = as_toml(value, masked=key in _NAMED_BY_USERS)
        found.append((key, shown, settings.origins[key]))
    return found


def as_toml(value: Any, name: str = "", *, masked: bool = False) -> str:
    """Write a value of a key; `masked` if the keys in this table show which values are secret."""
    if looks_secret(name):
        value = MASK
    elif name.lower().endswith("_proxy") and "@" in str(value):  # a password can contain a slash
        value = f"{MASK}@{str(value).rpartition('@')[2]}"
    if isinstance(value, Mapping):
        entries = (
            f"{toml_key(key)} = {as_toml(each, key if masked else '')}"
            for key, each in value.items()
        )
        return f"{{ {', '.join(entries)} }}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    text = mask(value) if isinstance(value, str) else value
    return json.dumps(text, ensure_ascii=False)


# ---------- network and secrets


def _check_network(offline: Path | None, servers: list[str], report: Diagnosis) -> None:
    report.run("proxy", network.find_proxies)
    report.run("certificates", network.find_certificates)
    report.run("network", lambda: network.find_servers(offline, servers))


def _servers(settings: Settings) -> list[str]:
    """Return the URL of the registry of the image; none if its source is a file or is wrong."""
    try:
        source = image_source(settings)
    except LongshipError:  # a finding of the image
        return []
    host, slash, _ = source.plain.partition("/")
    if not slash or host == "docker.io" or not re.search(r"[.:]|^localhost$", host):
        host = "registry-1.docker.io"
    return [f"https://{host}/v2/"] if source.kind in ("docker", "oras") else []


def _own_token_files() -> list[str]:
    return [f"{os.environ.get('HOME', '')}/{each}" for each in _TOKEN_FILES]


def _tokens(settings: Settings) -> Iterator[Finding]:
    """Report secrets in the configuration, who can read token files, and which secrets are set."""
    environment = settings.configuration.environment
    for error in refused_secrets(environment, settings.origins).values():
        yield problem("secrets", str(error), error.hint)
    configured = environment.token_files.values()
    files = [expand("environment.token_files", each, settings) for each in configured]
    yield from network.find_tokens([*files, *_own_token_files()])
    yield from network.find_secrets(environment.secrets)
