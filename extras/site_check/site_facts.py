"""What a machine reports about itself: Slurm, environment modules, disks and networks.

A name that could change the meaning of a file or of a terminal is left out.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lib.configuration.partitions import seconds, time_text
from lib.doctor.node import own_user
from lib.doctor.report import bash
from lib.doctor.software import FORMATS, SIF_RUNTIMES, mountable
from lib.jobs.status import last_error
from lib.script.command import call, export
from lib.script.execute import read_output
from lib.script.output import size_text

NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,63}", re.ASCII)
PER_NODE = ("cores_per_node", "gpus_per_node")
_PATIENCE = 30  # seconds: a large cluster takes some to list its nodes
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)")
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_GPU = re.compile(r"(?:^|,)gpu(?::([\w.-]*[A-Za-z_][\w.-]*))?(?::(\d{1,4}))?(?=,|$)", re.ASCII)
_CPUS = ("CPUTot", "Sockets", "CoresPerSocket", "ThreadsPerCore", "CoreSpecCount", "CPUEfctv")
_KINDS = {"rocm": r"(?i)amd|mi\d", "cuda": r"(?i)nvidia|tesla|[abhlptv]\d|g[bh]\d"}


class Partition(NamedTuple):
    """A partition: its limits as in site.toml, and how many of its nodes have each value."""

    limits: Mapping[str, Any]
    is_default: bool
    is_open: bool  # to ordinary users
    nodes: Mapping[str, Counter[Any]]  # arch, cores_per_node, gpus_per_node, gpu, memory (MB)

    def usual(self, fact: str) -> Any:
        """Return the value that most nodes have; None if Slurm does not report it."""
        return next((value for value, _ in self.nodes[fact].most_common(1)), None)


class Slurm(NamedTuple):
    """The answers of Slurm, or the reason why there are none."""

    error: str = ""
    config: Mapping[str, str] = {}
    partitions: Mapping[str, Partition] = {}
    qos: Mapping[str, Mapping[str, Any]] | None = None  # None: users cannot see them
    own_qos: tuple[str, ...] = ()  # those that the user's associations allow
    first_node: str = ""


def read_slurm() -> Slurm:
    """Ask Slurm for its settings, partitions, nodes and qualities of service."""
    text, code = read_output(["scontrol", "--all", "--oneliner", "show", "partition"], _PATIENCE)
    if code == 127:
        return Slurm("Slurm not found on this machine: scontrol is missing")
    if code:
        return Slurm(f"Slurm does not respond{'' if code == 124 else f': {last_error(text)}'}")
    listed = read_output(["scontrol", "show", "config"], _PATIENCE).text
    config = dict(re.findall(r"^(\w+) *= (.*)", listed, re.MULTILINE))
    counts_gpus = "gpu" in config.get("GresTypes", "").split(",")
    qos, own_qos = _read_qos()
    listed = read_output(["scontrol", "--all", "--oneliner", "show", "node"], _PATIENCE).text
    nodes = _entries(listed, "NodeName")
    facts = [(x.get("Partitions", "").split(","), _facts(x, counts_gpus)) for x in nodes.values()]
    partitions = {}
    for name, each in _entries(text, "PartitionName").items():
        counted: dict[str, Counter[Any]] = {fact: Counter() for fact in _facts({}, counts_gpus)}
        for fact, value in (pair for of, own in facts if name in of for pair in own.items()):
            counted[fact].update([] if value is None else [value])
        limits = limits_of(each.get("MaxTime", ""), f"node={each.get('MaxNodes')}")
        for key, value in (qos or {}).get(each.get("QoS", ""), {}).items():
            order = seconds if key == "max_time" else int
            limits[key] = min(limits.get(key, value), value, key=order)
        is_open = each.get("RootOnly") != "YES" and each.get("Hidden") != "YES"
        partitions[name] = Partition(limits, each.get("Default") == "YES", is_open, counted)
    return Slurm("", config, partitions, qos, own_qos, next(iter(nodes), ""))


def _entries(text: str, key: str) -> dict[str, dict[str, str]]:
    """Return the fields of each line by name; comments, which can look like fields, come last."""
    found = [dict(reversed(_FIELD.findall(line))) for line in text.split("\n")]
    return {each[key]: each for each in found if NAME.fullmatch(each.get(key, ""))}


def _facts(node: Mapping[str, str], counts_gpus: bool) -> dict[str, Any]:
    """Return the facts of a node; its cores are those that jobs get, without further threads."""
    total, sockets, per_socket, threads, reserved, usable = (
        _whole(node.get(each, "")) for each in _CPUS
    )
    per_core = threads if threads and total == sockets * per_socket * threads else 1
    gpus = _GPU.findall(re.sub(r"\([^)]*\)", "", node.get("Gres", "")))
    kinds = [kind for kind, form in _KINDS.items() if any(re.match(form, x) for x, _ in gpus)]
    return {
        "arch": _ARCH.get(node.get("Arch", "")),
        "cores_per_node": (usable or max(total - reserved * per_core, 0)) // per_core or None,
        "gpus_per_node": sum(int(count or 1) for _, count in gpus) if counts_gpus else None,
        "gpu": kinds[0] if kinds else None,
        "memory": _whole(node.get("RealMemory", "")) or None,
    }


def _whole(text: str) -> int:
    """Return a number that Slurm reports; 0 for everything else, such as UNLIMITED."""
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else 0


def limits_of(time: str, tres: str) -> dict[str, Any]:
    """Return the limits that are set, as in site.toml."""
    counts = dict(re.findall(r"([\w/]+)=(\d+)(?=,|$)", tres))
    longest = (seconds(time) if len(time) < 20 else 0) or 0
    values = {
        "max_time": time_text(longest / 3600) if longest else "",
        "max_nodes": _whole(counts.get("node", "")),
        "max_gpus": _whole(counts.get("gres/gpu", "")),
    }
    return {key: value for key, value in values.items() if value}


def _read_qos() -> tuple[dict[str, dict[str, Any]] | None, tuple[str, ...]]:
    ask = ["sacctmgr", "--noheader", "--parsable2", "show"]
    text, code = read_output([*ask, "qos", "format=Name,MaxWall,MaxTRES"], _PATIENCE)
    rows = [line.split("|") for line in text.split("\n") if line.count("|") == 2]
    if code or not rows:
        return None, ()
    own = read_output([*ask, "associations", "format=QOS", f"user={own_user()}"], _PATIENCE).text
    known = {name: limits_of(time, tres) for name, time, tres in rows if NAME.fullmatch(name)}
    return known, tuple(sorted(known.keys() & set(re.split(r"[,\s]+", own))))


# ---------- the node on which doctor.py runs


def available_modules(calls: Iterable[str]) -> dict[str, list[str]] | None:
    """Load the modules of calls, and return for each what is available under its name before that.

    In a hierarchy a module makes others available. None: this machine has no modules.
    """
    lines = [call("modules_load", ""), "declare -F module >/dev/null || exit 1", "set +eu"]
    for verb, *names in map(str.split, calls):
        if verb not in ("load", "try-load", "add"):
            lines.append(f"{call('module', verb, *names)} &>/dev/null")
            continue
        for name in names:
            listed = call("module", "-t", "avail", name.partition("/")[0])
            lines += [call("echo", f":{name}"), f"{listed} 2>&1"]
            lines.append(f"{call('module', verb, name)} &>/dev/null")
    text, code = bash(*lines, "exit 0")
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.startswith(":"):
            base, known = line[1:].partition("/")[0], found.setdefault(line[1:], [])
        elif found and re.fullmatch(rf"{re.escape(base)}(/[\w.+-]+)*(\(.*)?\s*", line, re.ASCII):
            known.append(line.partition("(")[0].strip())
    return None if code else found


def mounted_formats(runtime: str) -> list[str] | None:
    """Return the compressions of overlays that a runtime mounts; None: not tested.

    No image is needed: the programs of this machine are bound into an empty directory.
    """
    programs = ",".join(filter(os.path.isdir, ("/usr", "/bin", "/lib", "/lib64")))
    binds = [export(f"{each.upper()}_BIND", programs) for each in SIF_RUNTIMES]
    with tempfile.TemporaryDirectory(prefix="longship-doctor.") as empty:
        works = mountable(runtime, empty, *binds)
    return works and [each for each in FORMATS if works[each]]


def describe_disk(directory: str) -> str:
    """Return the type of a file system, its free space, and the quotas of Lustre and GPFS."""
    text, code = read_output(["df", "--output=fstype,avail", "--block-size=1", "--", directory], 20)
    kind, free = ["", "", *text.split()][-2:]
    if code or not free.isdigit():
        return "df does not respond"
    quotas = []
    if kind == "gpfs":
        quotas = [["/usr/lpp/mmfs/bin/mmlsquota", "--block-size=auto"]]
    elif kind == "lustre":
        project = read_output(["lfs", "project", "-d", "--", directory], 20).text.split()
        owners = zip("ugp", map(str, (os.getuid(), os.stat(directory).st_gid, *project[:1])))
        quotas = [["lfs", "quota", "-hq", f"-{kind}", who, "--", directory] for kind, who in owners]
    told = ("; quota: " + " ".join(read_output(each, 20).text.split()) for each in quotas)
    return f"{kind}, {size_text(int(free))} free{''.join(told)}"


def interfaces() -> list[str]:
    """Return the names of the network interfaces of this node."""
    names = [name for _, name in socket.if_nameindex()]
    return [each for each in names if NAME.fullmatch(each) and each != "lo"]
