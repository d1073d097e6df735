"""Sites: a directory next to the entry scripts each, whose ``site.toml`` describes its machines."""

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lib.configuration.partitions import LIMITS_OF, Limits, read_limits, read_price
from lib.configuration.schema import RUNTIMES, Layer, Strings, check_layer
from lib.configuration.tables import Key, Source, check_table, find_files, keys_of, read_toml
from lib.script.errors import LongshipError

_YES_NO = ("yes", "no")


class Machine(NamedTuple):
    """The facts of one machine that a script needs."""

    name: str
    site_file: str  # relative to the repository
    description: Annotated[str, "the machine's full name"] = ""
    recognise: Annotated[Mapping[str, Any], "detection rules; all of them must match", "table"] = {}
    runtime: Annotated[
        str, "container runtime; `auto` for a machine that is not known in advance", RUNTIMES
    ] = "auto"
    gpu: Annotated[
        str,
        "`cuda`, `rocm`, `cpu`, or `auto`: detected on the node",
        ("cuda", "rocm", "cpu", "auto"),
    ] = "auto"
    arch: Annotated[
        str,
        "architecture of the compute nodes, `amd64` or `arm64`; `auto`: that of this machine",
        ("amd64", "arm64", "auto"),
    ] = "auto"
    modules: Annotated[
        Strings, "arguments of `module`, one string per call, if a module provides the runtime"
    ] = ()
    runtime_options: Annotated[Strings, "additional options of the runtime"] = ()
    binds: Annotated[
        Strings, "directories of the site to bind that the runtime does not bind automatically"
    ] = ()
    definition_builds: Annotated[
        str,
        "`allowed`, or `forbidden` if the site does not allow builds from a definition file",
        ("allowed", "forbidden"),
    ] = "allowed"
    build_hint: Annotated[
        str, "alternative to such builds, or the place where they are allowed"
    ] = ""
    cores_per_node: Annotated[int, "cores of a compute node; 0: unknown"] = 0
    gpus_per_node: Annotated[int, "GPUs of a compute node; 0: unknown"] = 0
    default_partition: Annotated[str, "partition of jobs that do not set one"] = ""
    partitions: Annotated[
        Mapping[str, Limits], "limits of jobs; empty if only Slurm knows them", "table"
    ] = {}
    qos: Annotated[
        Mapping[str, Limits], "limits of jobs; empty if only Slurm knows them", "table"
    ] = {}
    price: Annotated[
        Any, "price of an hour in partitions that have no price of their own", "table"
    ] = None
    required: Annotated[Strings, "sbatch options that every job requires, such as `account`"] = ()
    compute_directories: Annotated[
        Strings, "the only directories that are mounted on compute nodes; empty: all"
    ] = ()
    rendezvous: Annotated[
        str, "MASTER_ADDR: `{node}` is the first node's name, `{address}` its IP address"
    ] = "{node}"
    pyxis: Annotated[
        str,
        "`yes` if `srun` itself starts enroot's containers; `edf` if it reads an environment "
        "definition file (EDF) for them, as at CSCS",
        (*_YES_NO, "edf"),
    ] = "no"
    annotations: Annotated[Mapping[str, str], "annotations of the EDF, for the site's hooks"] = {}
    accounts: Annotated[str, "`no` if Slurm has no accounts", _YES_NO] = "yes"
    configuration: Annotated[
        Any, "the site's values for the keys of configuration.toml", "table"
    ] = None


FACTS = keys_of(Machine)
MARKS = {
    "environment": Key("string_table", "variables and their values"),
    "host": Key("string", "pattern of the host name"),
    "path": Key("string", "directory that only this site has"),
    "cluster": Key("string", "Slurm's ClusterName, which is known inside a job"),
}
_MARKS_SHOWN = {"host": "host name", "path": "the directory", "cluster": "Slurm's cluster"}
FILE = {"newer_python": Key("string"), "common": Key("table"), "machines": Key("table")}
_NAME = re.compile(r"\w[\w.-]*")


def own_arch() -> str:
    """Return the architecture of this machine."""
    found = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(found, found)


def load_machines(root: Path) -> dict[str, Machine]:
    """Read every site, and return the machines by name."""
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
        facts = {**common, **facts, "configuration": merged}
        if facts.get("arch", "auto") == "auto":
            facts["arch"] = own_arch()
        machines.append(Machine(name, source.shown, **facts))
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
    """Return the name of this machine by the detection rules; ``local`` if none match."""
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
