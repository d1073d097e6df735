"""The keys of configuration.toml, their types and defaults, and the strict reading.

The same tables are allowed in configuration.toml, configuration.local.toml, under
``[machines.NAME]`` and ``[stacks.NAME]`` of both, and under ``configuration`` in the files of sites
and stacks. Each is a `Layer`; later layers win (`lib/configuration/layers.py` has the order).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from lib.configuration.runtimes import runtime_names
from lib.configuration.tables import Key, check_keys, check_value, keys_of
from lib.script.errors import LongshipError
from lib.script.quoting import name as variable_name
from lib.script.secrets import has_secret

# Digits and small letters: so looks a token of any kind, and no name of a variable.
_TOKEN = re.compile(r"(?=(?:\D*\d){3})(?=.*[a-z])[^/]{20,}")
_TOKEN_FILES = "environment.token_files"
Strings = tuple[str, ...]
StringTable = Mapping[str, str]


def allowed_runtimes() -> Strings:
    """Return the values of container.runtime."""
    return ("auto", *runtime_names())


class RepositoryEntry(NamedTuple):
    """One of the [[repositories]]."""

    name: Annotated[str, "name of its directory (default: the last part of the URL)"] = ""
    url: Annotated[str, "URL or path that git clones"] = ""
    ref: Annotated[str, "tag, branch or commit (default: the default branch)"] = ""
    upstream: Annotated[str, "URL of the original, if `url` is a fork"] = ""
    install: Annotated[
        str, "how it is installed into the venv", ("editable", "plain", "requirements", "none")
    ] = "editable"
    extras: Annotated[Strings, "optional dependencies: NAME[extra]"] = ()
    requirements: Annotated[str, "its requirements file, for install = requirements"] = (
        "requirements.txt"
    )
    script: Annotated[str, "script of the clone to run afterwards, inside the environment"] = ""


class AssetEntry(NamedTuple):
    """One of the [[assets]], which `lib/assets/assets.py` checks."""

    name: Annotated[str, "label that distinguishes entries with the same repo"] = ""
    repo: Annotated[str, "repository on the Hugging Face Hub, such as openai-community/gpt2"] = ""
    kind: Annotated[
        str,
        "type of the repository; use model for a tokenizer, space for a metric of evaluate",
        ("model", "dataset", "space"),
    ] = "model"
    revision: Annotated[str, "commit; a branch or tag can move, so its commit is printed"] = "main"
    include: Annotated[Strings, "patterns of files to download (default: all)"] = ()
    exclude: Annotated[Strings, "patterns of files to leave out"] = ()


class Project(NamedTuple):
    """[project]: whose work this is."""

    name: Annotated[str, "names the directories, if a site has one per project"] = ""
    account: Annotated[str, "Slurm account, if the site requires one"] = ""


class PathRoots(NamedTuple):
    """[paths]: the roots that everything else is derived from (`lib/configuration/paths.py`)."""

    project_dir: Annotated[str, "long-lived: repositories, patches"] = "~/longship-data/project"
    scratch_dir: Annotated[str, "large and fast, yours alone: packages, caches, runs"] = (
        "~/longship-data/scratch"
    )
    checkpoint_dir: Annotated[str, "for training (default: scratch_dir/checkpoints)"] = ""
    shared_dir: Annotated[
        str, "images, overlays and downloads that one member builds for a group"
    ] = ""
    shared_owner: Annotated[str, "login name of the member who builds in shared_dir"] = ""


class Container(NamedTuple):
    """[container]: the image and what runs it."""

    runtime: Annotated[str, "auto: the site's, else the first that works", allowed_runtimes] = (
        "auto"
    )
    image: Annotated[str, "source of the image (default: the stack's)"] = ""
    binds: Annotated[Strings, 'more bind mounts: "/data", "/data:/inside:ro"'] = ()
    patched_files: Annotated[StringTable, "files of the image, each replaced by your own"] = {}


class PackageKeys(NamedTuple):
    """[packages]: what is installed on top of the image."""

    requirements: Annotated[str, 'a pip requirements file; "" for none'] = (
        "requirements/environment.txt"
    )
    installer: Annotated[str, "pip is used where the image has PyTorch", ("uv", "pip")] = "uv"
    python: Annotated[
        str,
        "the Python version of the target, such as 3.12, to download without an image",
        re.compile(r"3[.][0-9]+"),
    ] = ""
    overlay: Annotated[str, "name of the overlay; empty: a venv"] = ""
    venv_requirements: Annotated[
        str, "another requirements file, for a venv above the overlay; it is installed in seconds"
    ] = ""
    compression: Annotated[str, "compression of the overlay", ("zstd", "xz", "lz4", "gzip")] = (
        "zstd"
    )
    processors: Annotated[int, "CPU cores used for packing; 0: all"] = 0
    memory: Annotated[
        str,
        'the memory limit for packing, in K, M or G, such as "2G" (default: a quarter)',
        re.compile("[1-9][0-9]*[KMG]"),
    ] = ""
    work_dir: Annotated[str, "build directory of the overlay (default: in scratch_dir)"] = ""


class EnvironmentKeys(NamedTuple):
    """[environment]: the variables that the program inside finds."""

    unset: Annotated[
        Strings, "variables to unset, in addition to the built-in list; NAME* too"
    ] = ()
    set: Annotated[StringTable, "variables to set, as written: $NAME is not expanded"] = {}
    secrets: Annotated[Strings, "names of variables, passed by name; no value is written down"] = (
        "HF_TOKEN",
        "WANDB_API_KEY",
    )
    token_files: Annotated[
        StringTable, "files read inside the container if the variable is not set"
    ] = {"HF_TOKEN": "~/.cache/huggingface/token"}


class Jobs(NamedTuple):
    """[jobs]: what submit.py and the start of a job do."""

    ask_above: Annotated[
        int, "ask before a job that may cost more, in the site's unit; 0: never"
    ] = 0
    freeze: Annotated[bool, "run the code as it was at submission; false: as at the start"] = True
    usage: Annotated[
        int, "seconds between two measurements of the GPUs that a job uses; 0: no measurement"
    ] = 30
    restarts: Annotated[int, "how often a failed or hanging step is started again; 0: never"] = 0
    spare_nodes: Annotated[
        int, "with restarts: how many nodes of a training are kept to replace faulty ones"
    ] = 0
    silence: Annotated[
        str,
        "the time, such as 00:30:00, after which a step that prints nothing is ended; 0: never; "
        "default: 00:30:00 with restarts, else never",
        re.compile("([0-9]+-)?[0-9]+(:[0-9]+){0,2}"),
    ] = ""


class Configuration(NamedTuple):
    """Every value, checked."""

    machine: Annotated[str, "auto: detected; or a name from a site.toml"] = "auto"
    stack: Annotated[str, "a directory under stacks/"] = "pytorch"
    repositories: Annotated[
        tuple[Mapping[str, Any], ...], "external repositories", keys_of(RepositoryEntry)
    ] = ()
    assets: Annotated[
        tuple[Mapping[str, Any], ...], "models and datasets", keys_of(AssetEntry)
    ] = ()
    training: Annotated[Mapping[str, Any], "settings of the stack", "values"] = {}
    project: Project = Project()
    paths: PathRoots = PathRoots()
    container: Container = Container()
    packages: PackageKeys = PackageKeys()
    environment: EnvironmentKeys = EnvironmentKeys()
    jobs: Jobs = Jobs()


TABLES = {
    name: type(default)
    for name, default in Configuration._field_defaults.items()
    if hasattr(default, "_fields")
}
_TOP = keys_of(Configuration)
_TABLES = {name: Key("table", entries=keys_of(record)) for name, record in TABLES.items()}
# Every key by its dotted name.
KEYS = {
    **_TOP,
    **{f"{table}.{name}": key for table in _TABLES for name, key in _TABLES[table].entries.items()},
}


class Layer(NamedTuple):
    """The checked values of one source: a file or its table, ``environment``, ``command line``."""

    origin: str
    values: Mapping[str, Any]  # by dotted key, such as container.image


def check_layer(tables: Any, file: str, prefix: str = "") -> Layer:
    """Check tables, without ``machines`` and ``stacks``, against the keys.

    The prefix is the table that they are in, such as ``machines.jwb``.
    """
    origin = f"{file} [{prefix}]" if prefix else file
    given = check_value(prefix, tables, Key("table"), file)
    values: dict[str, Any] = {}
    known = {**_TOP, **_TABLES}
    for name in given.keys() - known.keys():
        tables_of = [each for each in KEYS if each.endswith(f".{name}")]
        if tables_of:  # of a line above the first table, or in another one
            raise LongshipError(f'{origin}: unknown key "{name}"', f"write {tables_of[0]} = ...")
    for name, value in check_keys("", given, known, origin, ("machines", "stacks")).items():
        if name in TABLES:
            values.update({f"{name}.{key}": each for key, each in value.items()})
        else:
            values[name] = value
    _refuse_tokens(origin, values)
    return Layer(origin, values)


def _refuse_tokens(origin: str, values: Mapping[str, Any]) -> None:
    """Stop at a token where [environment] has names and paths; no message shows it."""
    files = values.get(_TOKEN_FILES, {}).values()
    for key in ("environment.secrets", "environment.unset", "environment.set", _TOKEN_FILES):
        for each in (*values.get(key, ()), *(files if key == _TOKEN_FILES else ())):
            # a launch reads no short names for tokens
            if len(each) >= 20 and (
                _TOKEN.fullmatch(each) or has_secret(each.encode(errors="surrogateescape"))
            ):
                raise LongshipError(
                    f"{origin}: {key} contains a token; expected names, such as HF_TOKEN",
                    "delete it from that file, revoke it, and run: export HF_TOKEN=...",
                )
    for each in values.get("environment.secrets", ()):
        variable_name(each)


def combine(layers: Iterable[Layer]) -> tuple[Configuration, dict[str, str]]:
    """Merge layers, and return the values, and the origin of each by dotted key.

    Later layers win; tables are merged name by name.
    """
    values = {dotted: key.default for dotted, key in KEYS.items()}
    origins = dict.fromkeys(KEYS, "default")
    for layer in layers:
        for dotted, value in layer.values.items():
            origin = layer.origin
            if isinstance(value, dict) or KEYS[dotted].entries:
                if not value:  # it adds nothing
                    continue
                if values[dotted]:
                    origin = f"{origins[dotted]}, {origin}"
                value = _merge(values[dotted], value)
            values[dotted], origins[dotted] = value, origin
    grouped: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in TABLES}}
    for dotted, value in values.items():
        table, _, key = dotted.rpartition(".")
        grouped[table][key] = value
    tables = {name: record(**grouped[name]) for name, record in TABLES.items()}
    return Configuration(**grouped[""], **tables), origins


def entry_name(entry: Mapping[str, Any]) -> str:
    """Return what names one of several tables: ``name``, ``repo``, or the last part of ``url``."""
    if "repo" in entry:
        return entry.get("name") or entry["repo"]
    last = entry.get("url", "").rstrip("/").replace(":", "/").rpartition("/")[2]
    return entry.get("name") or (last[: -len(".git")] if last.endswith(".git") else last)


def _merge(old: Any, new: Any) -> Any:
    """Let a later layer change entries by their name, such as only the URL, and add others."""
    if isinstance(new, dict):
        return {**old, **new}
    merged = {entry_name(each): each for each in old}
    for each in new:
        name = entry_name(each)
        merged[name] = {**merged.get(name, {}), **each}
    return tuple(merged.values())
