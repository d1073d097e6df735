"""Sites: what is known of each machine, from the ``site.toml`` of its folder.

A site is a folder beside this repository's scripts with a ``site.toml``; it describes one or more
machines. Adding one needs no Python.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lib.configuration.partitions import LIMITS_OF, Limits, Price, read_limits, read_price
from lib.configuration.schema import RUNTIMES, Layer, check_layer
from lib.configuration.tables import Key, Source, check_table, find_files, read_toml
from lib.script.errors import LongshipError

# What a machine's table in a site.toml takes; `Machine` says what each of them is.
FACTS = {
    "description": Key("string"),
    "recognise": Key("table"),
    "runtime": Key("string", choices=RUNTIMES),
    "gpu": Key("string", choices=("cuda", "rocm", "cpu", "auto")),
    "arch": Key("string", choices=("amd64", "arm64", "auto")),
    "modules": Key("list"),
    "runtime_options": Key("list"),
    "binds": Key("list"),
    "definition_builds": Key("string", choices=("allowed", "forbidden")),
    "build_hint": Key("string"),
    "cores_per_node": Key("integer"),
    "gpus_per_node": Key("integer"),
    "default_partition": Key("string"),
    "partitions": Key("table"),
    "qos": Key("table"),
    "price": Key("table"),
    "required": Key("list"),
    "compute_folders": Key("list"),
    "rendezvous": Key("string"),
    "pyxis": Key("string", choices=("yes", "no")),
    "accounts": Key("string", choices=("yes", "no")),
    "configuration": Key("table"),
}
MARKS = {
    "environment": Key("string_table", "variables and their values"),
    "host": Key("string", "pattern of the host name"),
    "path": Key("string", "directory that only this site has"),
    "cluster": Key("string", "Slurm's ClusterName, which is known inside a job"),
}
_NAME = re.compile(r"\w[\w.-]*")
_MARKS_SHOWN = {"host": "host name", "path": "the folder", "cluster": "Slurm's cluster"}
FILE = {"newer_python": Key("string"), "common": Key("table"), "machines": Key("table")}


@dataclass(frozen=True)
class Machine:
    """The facts of one machine that a script needs.

    Parameters
    ----------
    name : str
        Such as ``jwb``.
    site_file : str
        Its ``site.toml``, relative to the repository.
    description : str
        The machine's full name.
    recognise : mapping
        Detection rules; all of them must match.
    runtime : str
        Container runtime; ``auto`` for a machine that is not known in advance.
    gpu : str
        ``cuda``, ``rocm``, ``cpu``, or ``auto``: detected on the node.
    arch : str
        Architecture of the compute nodes, ``amd64`` or ``arm64``; ``auto``: that of this machine.
    modules : tuple of str
        Arguments of ``module``, one string per call, if a module provides the runtime.
    runtime_options : tuple of str
        Additional options of the runtime.
    binds : tuple of str
        Directories of the site to bind that the runtime does not bind automatically.
    definition_builds : str
        ``allowed``, or ``forbidden`` if the site does not allow builds from a definition file.
    build_hint : str
        Alternative to such builds, or the place where they are allowed.
    cores_per_node, gpus_per_node : int
        Cores or GPUs of a compute node; 0: unknown.
    default_partition : str
        Partition of jobs that do not set one.
    partitions, qos : mapping of str to Limits
        Limits of jobs; empty if only Slurm knows them.
    price : Price or None
        Price of an hour in partitions that have no price of their own.
    required : tuple of str
        sbatch options that every job requires, such as ``account``.
    compute_folders : tuple of str
        The only directories that are mounted on compute nodes; empty: all.
    rendezvous : str
        MASTER_ADDR: ``{node}`` is the first node's name, ``{address}`` its IP address.
    pyxis : str
        ``yes`` if ``srun`` itself starts enroot's containers.
    accounts : str
        ``no`` if Slurm has no accounts.
    configuration : Layer
        The site's values for the keys of configuration.toml.
    """

    name: str
    site_file: str
    configuration: Layer
    description: str = ""
    recognise: Mapping[str, Any] = field(default_factory=dict)
    runtime: str = "auto"
    gpu: str = "auto"
    arch: str = "auto"
    modules: tuple[str, ...] = ()
    runtime_options: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    definition_builds: str = "allowed"
    build_hint: str = ""
    cores_per_node: int = 0
    gpus_per_node: int = 0
    default_partition: str = ""
    partitions: Mapping[str, Limits] = field(default_factory=dict)
    qos: Mapping[str, Limits] = field(default_factory=dict)
    price: Price | None = None
    required: tuple[str, ...] = ()
    compute_folders: tuple[str, ...] = ()
    rendezvous: str = "{node}"
    pyxis: str = "no"
    accounts: str = "yes"

    def __post_init__(self) -> None:
        """Turn ``auto`` into this machine's own architecture."""
        if self.arch == "auto":
            object.__setattr__(self, "arch", own_arch())


def own_arch() -> str:
    """Return the architecture of the machine this runs on, in the words used everywhere here."""
    found = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(found, found)


def load_machines(root: Path) -> dict[str, Machine]:
    """Read every site.

    Parameters
    ----------
    root : pathlib.Path
        The repository.

    Returns
    -------
    dict
        Machine by name.

    Raises
    ------
    LongshipError
        If a ``site.toml`` has an unknown key, or two sites have a machine of the same name.
    """
    machines: dict[str, Machine] = {}
    for path in find_files(root, "*/site.toml"):
        for machine in load_site(root, path):
            if machine.name in machines:
                files = f"{machine.site_file} and {machines[machine.name].site_file}"
                what = f"{files} both have a machine {machine.name}"
                raise LongshipError(what, "rename one of them")
            machines[machine.name] = machine
    return machines


def load_site(root: Path, path: Path) -> list[Machine]:
    """Read one ``site.toml`` of a repository; errors are those of `load_machines`."""
    tables, source = read_toml(path, str(path.relative_to(root)))
    check_table(tables, FILE, source)
    common, common_layer = _facts(tables.get("common", {}), source, "common")
    machines = []
    for name, table in tables.get("machines", {}).items():
        if not _NAME.fullmatch(name):
            location = source.location(f"machines.{name}")
            what = f"{location}: {name!r} cannot name a machine"
            raise LongshipError(what, "it names files: letters, digits and . _ - only")
        facts, layer = _facts(table, source, f"machines.{name}")
        merged = Layer(source.shown, {**common_layer.values, **layer.values})
        own = {"name": name, "site_file": source.shown, "configuration": merged}
        machines.append(Machine(**{**common, **facts, **own}))
    return machines


def _facts(table: Any, source: Source, prefix: str) -> tuple[dict[str, Any], Layer]:
    """Check one table of a machine; return its facts, and its values for configuration.toml."""
    facts = check_table(table, FACTS, source, prefix)
    check_table(facts.get("recognise", {}), MARKS, source, f"{prefix}.recognise")
    for kind in LIMITS_OF.keys() & facts.keys():
        facts[kind] = read_limits(kind, facts[kind], source, f"{prefix}.{kind}")
    if "price" in facts:
        facts["price"] = read_price(facts["price"], source, f"{prefix}.price")
    tables = facts.pop("configuration", {})
    return facts, check_layer(tables, source, f"{prefix}.configuration")


def recognise(machines: Mapping[str, Machine], environ: Mapping[str, str], host: str) -> str:
    """Name the machine this runs on, by its site's own marks.

    Parameters
    ----------
    machines : mapping
        Machine by name.
    environ : mapping
        The environment of the caller.
    host : str
        The host's name.

    Returns
    -------
    str
        Its name; ``local`` where no mark fits.
    """
    for name, machine in machines.items():
        marks = machine.recognise.items()
        if marks and all(_fits(mark, wanted, environ, host) for mark, wanted in marks):
            return name
    return "local"


def shown_marks(machine: Machine) -> str:
    """Say by which marks a machine is recognised; empty where it has none."""
    shown = []
    for mark, wanted in machine.recognise.items():
        if mark == "environment":
            shown += [f"{variable}={value}" for variable, value in wanted.items()]
        else:
            shown.append(f"{_MARKS_SHOWN[mark]} {wanted}")
    return ", ".join(shown)


def _fits(mark: str, wanted: Any, environ: Mapping[str, str], host: str) -> bool:
    if mark == "environment":
        return all(environ.get(variable) == value for variable, value in wanted.items())
    if mark == "host":
        return fnmatchcase(host, wanted)
    if mark == "cluster":
        return environ.get("SLURM_CLUSTER_NAME") == wanted
    return os.path.exists(wanted)
