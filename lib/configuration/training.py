"""The settings of a stack: the variables for [training] that its scripts read."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, expand
from lib.script.errors import LongshipError, suggest

# Other values are names on the Hugging Face Hub.
_ROOTED = ("/", "~", "$", "{")
_PLACEHOLDER = r"@([A-Z][A-Z0-9_]*)@"

# Variables of a stack's scripts besides the settings: those of the environment inside and of jobs.
VARIABLES = (
    *("LONGSHIP_ROOT", "LONGSHIP_MACHINE", "LONGSHIP_STACK", "LONGSHIP_PROJECT_DIR"),
    *("LONGSHIP_SCRATCH_DIR", "LONGSHIP_CHECKPOINT_DIR", "LONGSHIP_REPOSITORIES"),
    *("RUN_DIR", "NUM_NODES", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT"),
    *("HF_HOME", "USER"),
)
# ORGANISATION/NAME, but not a file with an extension.
_REPO = r"[A-Za-z0-9][\w.-]*/(?![\w.-]*\.(?:json|ya?ml|jsonl|toml)$)[\w.-]+"
_WILDCARD = r"[*?\[]"


def training_values(settings: Settings, paths: Paths) -> dict[str, Any]:
    """Return the value of each setting of the stack: the configuration's, or its default.

    Paths are absolute.
    """
    given = settings.configuration.training
    roots = {each: str(getattr(paths, each)) for each in ("project_dir", "scratch_dir")}

    def expanded(name: str, text: str) -> str:
        rooted = text.startswith(_ROOTED)
        return expand(f"training.{name}", text, settings, roots) if rooted else text

    found = {}
    for name, setting in settings.stack.settings.items():
        value = given.get(name, setting.default)
        if setting.kind == "path":
            value = expanded(name, value)
        elif setting.kind == "paths":
            value = tuple(expanded(name, each) for each in value)
        found[name] = value
    return found


def training_variables(settings: Settings, paths: Paths) -> dict[str, str]:
    """Return the variables of the scripts: ``TRAINING_TOKENIZER`` for ``training.tokenizer``.

    A list has one entry per line, because a path can contain any other character.
    """
    return {
        f"TRAINING_{name.upper()}": "\n".join(value) if isinstance(value, tuple) else str(value)
        for name, value in training_values(settings, paths).items()
    }


def training_paths(settings: Settings, paths: Paths) -> Iterator[tuple[str, str]]:
    """Yield setting and path for every path on this machine in the settings."""
    for name, value in training_values(settings, paths).items():
        if settings.stack.settings[name].kind in ("path", "paths"):
            for each in value if isinstance(value, tuple) else (value,):
                if each.startswith("/"):
                    yield name, each


def training_patterns(
    settings: Settings, paths: Paths, step: str = "training"
) -> Iterator[tuple[str, ...]]:
    """Yield setting and path of what a step needs, and the patterns of a setting of `paths`."""
    for name, path in training_paths(settings, paths):
        if settings.stack.settings[name].step not in (step, "both"):
            continue
        several = settings.stack.settings[name].kind == "paths"
        patterns = [f"{glob.escape(path)}*", *([path] if re.search(_WILDCARD, path) else [])]
        yield (f"training.{name}", path, *(patterns if several else []))


def hub_cache(settings: Settings, paths: Paths) -> Path:
    """Return the cache of the hub: HF_HOME of the environment inside."""
    return Path(settings.configuration.environment.set.get("HF_HOME") or paths.hub)


def training_repos(
    settings: Settings, paths: Paths, step: str = "training"
) -> Iterator[tuple[str, str, Path, Path]]:
    """Yield setting, name, and its two directories in the hub's cache, of what a step needs."""
    hub = hub_cache(settings, paths) / "hub"
    for name, value in training_values(settings, paths).items():
        setting, repo = settings.stack.settings[name], str(value).partition(":")[0]
        needed = setting.kind == "path" and setting.step in (step, "both")
        if needed and re.fullmatch(_REPO, repo):
            folder = repo.replace("/", "--")
            yield f"training.{name}", repo, hub / f"models--{folder}", hub / f"datasets--{folder}"


def training_folders(settings: Settings, paths: Paths) -> Iterator[tuple[str, str]]:
    """Yield setting and directory, or single file, that must be visible inside.

    One of `paths` can be a pattern, or the common beginning of files, such as Megatron's ``.bin``
    and ``.idx``: then it is their directory.
    """
    for name, path in training_paths(settings, paths):
        if settings.stack.settings[name].kind == "path":
            yield name, path
        else:
            whole = re.split(_WILDCARD, path)[0]
            folder = os.path.dirname(whole)
            yield name, folder if folder != "/" else path


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a directory, or is in it."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def check_parallel(settings: Settings, paths: Paths, gpus: int, nodes: int) -> None:
    """Stop if the parallel sizes do not divide the GPUs of all nodes (0: unknown)."""
    values = training_values(settings, paths)
    sizes = {}
    for name, setting in settings.stack.settings.items():
        if setting.kind == "parallel" and values[name] and not setting.within:
            sizes[name] = values[name]
        outer = (values[setting.within] or gpus // nodes) if setting.within else 0
        if outer and values[name] and outer % values[name]:
            raise LongshipError(
                f"training.{name} = {values[name]} does not divide {setting.within} = {outer}",
                "change one of them in configuration.toml",
            )
    product = math.prod(sizes.values())
    if gpus and gpus % product:
        shown = " x ".join(f"training.{name} = {size}" for name, size in sizes.items())
        raise LongshipError(
            f"{gpus} GPUs cannot be divided into groups of {product}: {shown}",
            "change one of them in configuration.toml, or the number of nodes: --nodes=...",
        )


def check_templates(settings: Settings, paths: Paths) -> None:
    """Stop if a template of the stack names a variable that its scripts do not have."""
    known = [
        *VARIABLES,
        *training_variables(settings, paths),
        *settings.configuration.environment.set,
    ]
    folder = settings.root / "stacks" / settings.stack.name / "templates"
    files = [each for each in folder.rglob("[!.]*") if each.is_file()]
    for path in sorted(files):
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            for name in re.findall(_PLACEHOLDER, line):
                if name not in known:
                    raise LongshipError(
                        f"{path.relative_to(settings.root)}, line {number}: "
                        f"unknown variable in @{name}@: {name}",
                        suggest(name, known),
                    )
