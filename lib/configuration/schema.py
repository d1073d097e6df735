"""What configuration.toml may say: the keys, their types and defaults, and the strict reading.

The same tables stand in configuration.toml, configuration.local.toml, under ``[machines.NAME]`` and
``[stacks.NAME]`` of both, and under ``configuration`` in the files of sites and stacks. Each is a
`Layer`; later layers win (`lib/configuration/layers.py` has the order).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from lib.configuration.entries import ASSET, REPOSITORY
from lib.configuration.tables import Key, Location, Source, check_value
from lib.script.errors import LongshipError, suggest

RUNTIMES = ("auto", "apptainer", "singularity", "docker", "podman", "enroot", "host")


def _declare_key(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    entries: Mapping[str, Key] | None = None,
    kind: str = "",
) -> Any:
    """Declare a key: its default, one line about it, and the only values allowed."""
    kinds = {str: "string", int: "integer", tuple: "list", dict: "string_table"}
    kind = kind or ("tables" if entries else kinds[type(default)])
    key = Key(kind, help, choices, default, entries or {})
    return field(default_factory=lambda: default, metadata={"key": key})


@dataclass(frozen=True)
class Project:
    """[project]: whose work this is."""

    name: str = _declare_key("", "names the directories, if a site has one per project")
    account: str = _declare_key("", "Slurm account, if the site requires one")


@dataclass(frozen=True)
class PathRoots:
    """[paths]: the roots that everything else is derived from (`lib/configuration/paths.py`)."""

    project_dir: str = _declare_key("~/longship-data/project", "long-lived: repositories, patches")
    scratch_dir: str = _declare_key(
        "~/longship-data/scratch", "large and fast: images, packages, caches, runs"
    )
    checkpoint_dir: str = _declare_key("", "for training (default: scratch_dir/checkpoints)")


@dataclass(frozen=True)
class Container:
    """[container]: the image and what runs it."""

    runtime: str = _declare_key("auto", "auto: the site's, else the first that works", RUNTIMES)
    image: str = _declare_key("", "source of the image (default: the stack's)")
    binds: tuple[str, ...] = _declare_key((), 'more bind mounts: "/data", "/data:/inside:ro"')
    patched_files: Mapping[str, str] = _declare_key(
        {}, "files of the image, each replaced by your own"
    )


@dataclass(frozen=True)
class Packages:
    """[packages]: what is installed on top of the image."""

    requirements: str = _declare_key(
        "requirements/environment.txt", 'a pip requirements file; "" for none'
    )
    installer: str = _declare_key("uv", "uv if it is available, else pip", ("uv", "pip"))
    python: str = _declare_key(
        "", "Python version of the target, such as 3.12, to download without an image"
    )
    overlay: str = _declare_key("", "name of the overlay; empty: a venv")
    compression: str = _declare_key(
        "zstd", "compression of the overlay", ("zstd", "xz", "lz4", "gzip")
    )
    processors: int = _declare_key(0, "CPU cores used for packing; 0: all")
    memory: str = _declare_key("", 'memory limit for packing, such as "2G" (default: a quarter)')
    work_dir: str = _declare_key("", "build directory of the overlay (default: in scratch_dir)")


@dataclass(frozen=True)
class Environment:
    """[environment]: the variables that the program inside finds."""

    unset: tuple[str, ...] = _declare_key(
        (), "variables to unset, in addition to the built-in list; NAME* too"
    )
    set: Mapping[str, str] = _declare_key({}, "variables to set")
    secrets: tuple[str, ...] = _declare_key(
        ("HF_TOKEN", "WANDB_API_KEY"), "variables passed by name, never written down"
    )
    token_files: Mapping[str, str] = _declare_key(
        {"HF_TOKEN": "~/.cache/huggingface/token"},
        "files read inside the container if the variable is not set",
    )


@dataclass(frozen=True)
class Jobs:
    """[jobs]: what submit.py and the start of a job do."""

    ask_above: int = _declare_key(
        0, "ask before a job that may cost more, in the site's unit; 0: never"
    )


@dataclass(frozen=True)
class Configuration:
    """Every value, checked."""

    machine: str = _declare_key("auto", "auto: detected; or a name from a site.toml")
    stack: str = _declare_key("pytorch", "a directory under stacks/")
    repositories: tuple[Mapping[str, Any], ...] = _declare_key(
        (), "external repositories", entries=REPOSITORY
    )
    assets: tuple[Mapping[str, Any], ...] = _declare_key((), "models and datasets", entries=ASSET)
    training: Mapping[str, Any] = _declare_key({}, "settings of the stack", kind="values")
    project: Project = Project()
    paths: PathRoots = PathRoots()
    container: Container = Container()
    packages: Packages = Packages()
    environment: Environment = Environment()
    jobs: Jobs = Jobs()


def _all_keys(table: type, prefix: str = "") -> dict[str, Key]:
    """Map dotted key -> what it takes, for every key of a table and of the tables in it."""
    keys = {}
    for each in fields(table):
        if each.metadata:
            keys[prefix + each.name] = each.metadata["key"]
        else:
            keys.update(_all_keys(type(each.default), f"{prefix}{each.name}."))
    return keys


KEYS = _all_keys(Configuration)
TABLES = {each.name: type(each.default) for each in fields(Configuration) if not each.metadata}


class Layer(NamedTuple):
    """What one source says.

    Parameters
    ----------
    origin : str
        Where it stands: a file, ``environment`` or ``command line``.
    values : mapping of str to object
        Checked values by dotted key, such as ``container.image``.
    """

    origin: str
    values: Mapping[str, Any]


def check_layer(tables: Any, source: Source, prefix: str = "") -> Layer:
    """Check one set of tables against the keys.

    Parameters
    ----------
    tables : object
        What TOML gave, without ``machines`` and ``stacks``.
    source : Source
        Where it was read.
    prefix : str
        The table that they stand in, such as ``machines.jwb``.

    Returns
    -------
    Layer
        The values by dotted key.

    Raises
    ------
    LongshipError
        For an unknown key, a wrong type, or an impossible value.
    """

    def location(dotted: str) -> Location:
        return source.location(f"{prefix}.{dotted}".strip("."))

    values = {}
    for name, value in check_value(prefix, tables, Key("table"), location("")).items():
        if name in TABLES:
            inside = check_value(name, value, Key("table"), location(name))
            found = {f"{name}.{key}": each for key, each in inside.items()}
        else:
            found = {name: value}
        for dotted, each in found.items():
            if dotted not in KEYS:
                raise _unknown_key(dotted, each, location(dotted))
            values[dotted] = check_value(dotted, each, KEYS[dotted], location(dotted))
    return Layer(f"{source.shown} [{prefix}]" if prefix else source.shown, values)


def _unknown_key(dotted: str, value: Any, location: Location) -> LongshipError:
    table, _, key = dotted.rpartition(".")
    if table:
        beside = [each.rpartition(".")[2] for each in KEYS if each.rpartition(".")[0] == table]
        return LongshipError(f'{location}: [{table}] has no key "{key}"', suggest(key, beside))
    beside = [*(each for each in KEYS if "." not in each), *TABLES, "machines", "stacks"]
    kind = "table" if isinstance(value, dict) else "key"
    return LongshipError(f'{location}: unknown {kind} "{key}"', suggest(key, beside))


def combine(layers: Iterable[Layer]) -> tuple[Configuration, dict[str, str]]:
    """Put layers together; later ones win, and tables are merged name by name.

    Returns
    -------
    tuple of Configuration and dict
        The values, and for each dotted key the origin of its value.
    """
    values = {dotted: key.default for dotted, key in KEYS.items()}
    origins = dict.fromkeys(KEYS, "default")
    for layer in layers:
        for dotted, value in layer.values.items():
            if isinstance(value, dict):
                value = {**values[dotted], **value}
            elif KEYS[dotted].entries:
                value = _merge_entries(values[dotted], value)
            values[dotted] = value
            origins[dotted] = layer.origin
    grouped: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in TABLES}}
    for dotted, value in values.items():
        table, _, key = dotted.rpartition(".")
        grouped[table][key] = value
    tables = {name: table(**grouped[name]) for name, table in TABLES.items()}
    return Configuration(**grouped[""], **tables), origins


def entry_name(entry: Mapping[str, Any]) -> str:
    """Return what names one of several tables: ``name``, ``repo``, or the last part of ``url``."""
    if "repo" in entry:
        return entry.get("name") or entry["repo"]
    last = entry.get("url", "").rstrip("/").replace(":", "/").rpartition("/")[2]
    return entry.get("name") or (last[: -len(".git")] if last.endswith(".git") else last)


def _merge_entries(
    old: tuple[Mapping[str, Any], ...], new: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """Let a later layer change entries by their name, such as only the URL, and add others."""
    merged = {entry_name(each): each for each in old}
    for each in new:
        name = entry_name(each)
        merged[name] = {**merged.get(name, {}), **each}
    return tuple(merged.values())
