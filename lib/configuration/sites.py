"""Sites: a directory next to the entry scripts each, whose ``site.toml`` describes its machines."""

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lib.configuration.partitions import LIMITS_OF, Limits, read_limits, read_price
from lib.configuration.schema import Layer, Strings, check_layer
from lib.configuration.tables import (
    Key,
    check_keys,
    check_table,
    check_value,
    find_files,
    keys_of,
    read_toml,
)
from lib.script.errors import LongshipError

_YES_NO = ("yes", "no")


class Expected(NamedTuple):
    """What a job of this size should measure, according to a source."""

    bus_bandwidth: Annotated[float, "GB/s of a large `all_reduce`, as nccl-tests defines it"] = 0
    nodes: Annotated[int, "nodes of the job that measured it"] = 0
    gpus: Annotated[int, "all GPUs of that job; 0: two ranks per node without GPUs"] = 0


class Co2(NamedTuple):
    """What the electricity of a machine emits, according to a source."""

    kg_per_kwh: Annotated[float, "kg of CO2 equivalent per kWh"] = 0
    source: Annotated[str, "address of the page that tells the factor, and for which year"] = ""


class Machine(NamedTuple):
    """The facts of one machine that a script needs."""

    name: str
    site_file: str  # relative to the repository
    description: Annotated[str, "the machine's full name"] = ""
    confirmed: Annotated[
        str, "date, Slurm's version and run of a user who has found the file correct; empty: nobody"
    ] = ""
    recognise: Annotated[Mapping[str, Any], "detection rules; all of them must match", "table"] = {}
    runtime: Annotated[
        str, "as `container.runtime`; `auto` for a machine that is not known in advance"
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
    image_directory: Annotated[
        str, "the only directory whose images the site starts, as `container.image` names it"
    ] = ""
    image_copy: Annotated[Strings, "command of the site that copies an image there"] = ()
    cores_per_node: Annotated[int, "cores of a compute node; 0: unknown"] = 0
    gpus_per_node: Annotated[int, "GPUs of a compute node; 0: unknown"] = 0
    gpu_memory: Annotated[int, "memory of a GPU in GB, as its vendor names it; 0: unknown"] = 0
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
    expected: Annotated[
        Any, "what `doctor.py --job` should measure, if a source tells it", "table"
    ] = None
    co2: Annotated[
        Any, "what its electricity emits, for `submit.py card`; both keys are required", "table"
    ] = None
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


MARKS = {
    "environment": Key("string_table", "variables and their values"),
    "host": Key("string", "pattern of the host name"),
    "path": Key("string", "directory that only this site has"),
    "cluster": Key("string", "Slurm's ClusterName, which is known inside a job"),
}
FACTS = keys_of(Machine)
FACTS["recognise"] = FACTS["recognise"]._replace(entries=MARKS)
_MARKS_SHOWN = {"host": "host name", "path": "the directory", "cluster": "Slurm's cluster"}
EXPECTED = keys_of(Expected)
CO2 = keys_of(Co2)
FILE = {"newer_python": Key("string"), "common": Key("table"), "machines": Key("table")}
_NAME = re.compile(r"\w[\w.-]*")


def own_arch() -> str:
    """Return the architecture of this machine."""
    found = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(found, found)


class Site(NamedTuple):
    """A ``site.toml``; so far only what can hide one of its machines is checked."""

    file: str  # relative to the repository
    tables: Mapping[str, Any]
    marks: Mapping[str, Mapping[str, Any]]  # of each machine

    def machines(self) -> dict[str, Machine]:
        """Check the whole file, and return its machines by name."""
        common, common_layer = _facts(self.tables.get("common", {}), self.file, "common")
        machines = {}
        for name in self.marks:
            facts, layer = _facts(self.tables["machines"][name], self.file, f"machines.{name}")
            merged = Layer(self.file, {**common_layer.values, **layer.values})
            facts = {**common, **facts, "configuration": merged}
            if facts.get("arch", "auto") == "auto":
                facts["arch"] = own_arch()
            machines[name] = Machine(name, self.file, **facts)
        return machines


def read_sites(root: Path) -> list[Site]:
    """Read every site; a launch completely checks its own alone."""
    sites: list[Site] = []
    files: dict[str, str] = {}
    for path in find_files(root, "*/site.toml"):
        site = read_site(root, path)
        for name in site.marks:
            if name in files:
                what = f"{site.file} and {files[name]} both have a machine {name}"
                raise LongshipError(what, "rename one of them")
            files[name] = site.file
        sites.append(site)
    return sites


def read_site(root: Path, path: Path) -> Site:
    """Read one ``site.toml`` of a repository."""
    file = str(path.relative_to(root))
    tables = read_toml(path, file)
    check_table(tables, FILE, file)
    common = _marks(tables.get("common", {}), file, "common", {})
    marks = {}
    for name, table in tables.get("machines", {}).items():
        if not _NAME.fullmatch(name):
            what = f"{file}: {name!r} cannot name a machine"
            raise LongshipError(what, "it names files: letters, digits and . _ - only")
        marks[name] = _marks(table, file, f"machines.{name}", common)
    return Site(file, tables, marks)


def load_machines(root: Path) -> dict[str, Machine]:
    """Read and check every site, and return the machines by name."""
    machines: dict[str, Machine] = {}
    for site in read_sites(root):
        machines.update(site.machines())
    return machines


def _marks(table: Any, file: str, prefix: str, default: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check what can hide a machine: the names of all keys, and the rules, which are returned."""
    check_value(prefix, table, Key("table"), file)
    seen = {key: table[key] for key in table if key == "recognise" or key not in FACTS}
    return check_keys(prefix, seen, FACTS, file).get("recognise", default)


def _facts(table: Any, file: str, prefix: str) -> tuple[dict[str, Any], Layer]:
    """Check one table of a machine; return its facts, and its values for configuration.toml."""
    facts = check_table(table, FACTS, file, prefix)
    for kind in LIMITS_OF.keys() & facts.keys():
        facts[kind] = read_limits(kind, facts[kind], file, f"{prefix}.{kind}")
    if "price" in facts:
        facts["price"] = read_price(facts["price"], file, f"{prefix}.price")
    if "expected" in facts:
        values = check_table(facts["expected"], EXPECTED, file, f"{prefix}.expected")
        facts["expected"] = Expected(**values)
    if "co2" in facts:
        facts["co2"] = _co2(facts["co2"], file, f"{prefix}.co2")
    tables = facts.pop("configuration", {})
    return facts, check_layer(tables, file, f"{prefix}.configuration")


def _co2(table: Any, file: str, prefix: str) -> Co2:
    """Read the factor; without its source nobody can check a number."""
    values = check_table(table, CO2, file, prefix)
    for name in CO2:
        if values.get(name, "") == "":
            hint = 'write both: co2 = { kg_per_kwh = 0.03, source = "https://..." }'
            raise LongshipError(f"{file}: {prefix} has no {name}", hint)
    return Co2(**values)


def recognise(sites: Iterable[Site], environ: Mapping[str, str], host: str) -> str:
    """Return the name of this machine by the detection rules; ``local`` if none match."""
    for site in sites:
        for name, marks in site.marks.items():
            rules = marks.items()
            if rules and all(_fits(mark, wanted, environ, host) for mark, wanted in rules):
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
