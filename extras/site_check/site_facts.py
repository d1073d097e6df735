"""What a machine reports about itself: Slurm and environment modules.

A name that could change the meaning of a file or of a terminal is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lib.configuration.partitions import seconds, time_text
from lib.doctor.node import own_user
from lib.doctor.report import bash
from lib.jobs.status import last_error
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.execute import read_output

NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,63}", re.ASCII)
PER_NODE = ("cores_per_node", "gpus_per_node")
NODE_FACTS = (*PER_NODE, "arch", "gpu")
_PATIENCE = 30  # seconds: a large cluster takes some to list its nodes
_SHOW = ("scontrol", "--all", "--oneliner", "show")
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
    state: str  # UP, DOWN, DRAIN or INACTIVE
    nodes: Mapping[str, Counter[Any]]  # for each of NODE_FACTS

    def usual(self, fact: str) -> Any:
        """Return the value that most nodes have; None if Slurm does not report it."""
        return next((value for value, _ in self.nodes[fact].most_common(1)), None)


class Slurm(NamedTuple):
    """The answers of Slurm."""

    config: Mapping[str, str]
    partitions: Mapping[str, Partition]
    qos: Mapping[str, Mapping[str, Any]] = {}  # empty: users cannot see them
    own_qos: tuple[str, ...] = ()  # those that the user's associations allow


def read_slurm() -> Slurm:
    """Ask Slurm for its settings, partitions, nodes and qualities of service."""
    text, code = read_output([*_SHOW, "partition"], _PATIENCE)
    found = _entries(text, "PartitionName")
    if code or not found:
        reason = {0: "it shows no partitions", 124: "no answer", 127: "scontrol not found"}.get(
            code
        )
        hint = 'run this on a login node; machine = "local" needs no Slurm'
        raise LongshipError(f"Slurm does not respond: {reason or last_error(text)}", hint)
    listed = read_output(["scontrol", "show", "config"], _PATIENCE).text
    config = dict(re.findall(r"^(\w+) *= (.*)", listed, re.MULTILINE))
    counts_gpus = "gpu" in config.get("GresTypes", "").split(",")
    nodes = _entries(read_output([*_SHOW, "node"], _PATIENCE).text, "NodeName").values()
    facts = [(x.get("Partitions", "").split(","), _facts(x, counts_gpus)) for x in nodes]
    qos, own_qos = _read_qos()
    partitions = {}
    for name, each in found.items():
        counted: dict[str, Counter[Any]] = {fact: Counter() for fact in NODE_FACTS}
        for fact, value in (pair for of, own in facts if name in of for pair in own.items()):
            counted[fact].update([] if value is None else [value])
        limits = _limits(each.get("MaxTime", ""), f"node={each.get('MaxNodes')}")
        for key, value in qos.get(each.get("QoS", ""), {}).items():
            order = seconds if key == "max_time" else int
            limits[key] = min(limits.get(key, value), value, key=order)
        is_open = each.get("RootOnly") != "YES" and each.get("Hidden") != "YES"
        state = re.sub("[^A-Z]", "", each.get("State", "UP"))
        partitions[name] = Partition(limits, each.get("Default") == "YES", is_open, state, counted)
    return Slurm(config, partitions, qos, own_qos)


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
    }


def _whole(text: str) -> int:
    """Return a number that Slurm reports; 0 for everything else, such as UNLIMITED."""
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else 0


def _limits(time: str, tres: str) -> dict[str, Any]:
    """Return the limits that are set, as in site.toml."""
    counts = dict(re.findall(r"([\w/]+)=(\d+)(?=,|$)", tres))
    longest = (seconds(time) if len(time) < 20 else 0) or 0
    values = {
        "max_time": time_text(longest / 3600) if longest else "",
        "max_nodes": _whole(counts.get("node", "")),
        "max_gpus": _whole(counts.get("gres/gpu", "")),
    }
    return {key: value for key, value in values.items() if value}


def _read_qos() -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    ask = ["sacctmgr", "--noheader", "--parsable2", "show"]
    text, code = read_output([*ask, "qos", "format=Name,MaxWall,MaxTRES"], _PATIENCE)
    rows = [line.split("|") for line in text.split("\n") if line.count("|") == 2 and not code]
    own = read_output([*ask, "associations", "format=QOS", f"user={own_user()}"], _PATIENCE).text
    known = {name: _limits(time, tres) for name, time, tres in rows if NAME.fullmatch(name)}
    return known, tuple(sorted(known.keys() & set(re.split(r"[,\s]+", own))))


def loaded_modules(calls: Iterable[str]) -> list[str] | None:
    """Return the modules that are loaded after these calls; None: this machine has no modules."""
    lines = [call("modules_load", ""), "declare -F module >/dev/null || exit 1", "set +eu"]
    lines += [f"{call('module', *each.split())} &>/dev/null" for each in calls]
    text, code = bash(*lines, "module -t list 2>&1", "exit 0")
    return None if code else [each.partition("(")[0].strip() for each in text.split("\n")]
