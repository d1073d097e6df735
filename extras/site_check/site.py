"""The comparison of a site.toml with what its machine reports: doctor.py --site."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from shutil import which
from typing import Any, NamedTuple

from extras.site_check import site_facts
from extras.site_check.site_facts import Slurm
from lib import VERSION
from lib.configuration.layers import Settings
from lib.configuration.partitions import seconds
from lib.configuration.tables import read_toml
from lib.doctor.checks import as_toml
from lib.doctor.report import show
from lib.doctor.software import load_modules
from lib.runtimes.choice import names_with_images
from lib.runtimes.runtime import runtime_of
from lib.script.errors import LongshipError, printable
from lib.script.execute import make_directory, read_output, write_file
from lib.script.output import as_json

Key = tuple[str, ...]  # of site.toml, with its tables
Stated = Mapping[Key, Any]
_CONFIG = "scontrol show config"
_TRACKED = "proctrack/cgroup"
_SIGNALS = (
    "ProctrackType is {}: Slurm signals all processes of a step. USR1 before the time limit can "
    "also end the one that mounts the image; ranks then end with SIGBUS (exit code 135)"
)
_GROUPS = {"partitions": "scontrol show partition", "qos": "sacctmgr show qos"}


class Fact(NamedTuple):
    """The value that a command reports for a key; None if the machine has none."""

    value: Any
    command: str


class Row(NamedTuple):
    """A line of the report: confirmed, different, undecided, or reported without a key."""

    state: str
    key: str
    described: str
    machine: str
    command: str


def diagnose(settings: Settings, *, json: bool) -> None:
    """Compare the machine with its site.toml; exit code 1 if a value differs."""
    machine = settings.machine
    if not machine.recognise:
        what = "no site was detected: this machine has no site.toml"
        hint = "name it: --site --machine NAME; or describe this machine: --site --new NAME"
        raise LongshipError(what, hint)
    tables = read_toml(settings.root / machine.site_file, machine.site_file)
    slurm, stated = site_facts.read_slurm(), stated_of(tables, machine.name)
    of_site = {name for each in tables["machines"].values() for name in each.get("partitions", {})}
    rows = [*compared(stated, reported(settings, stated, slurm, of_site)), *not_up(slurm)]
    report = table([each for each in rows if each.state in ("different", "reported")])
    for state in ("confirmed", "undecided"):
        keys = [each.key for each in rows if each.state == state]
        report.append(f"{state}: {', '.join(keys) or 'nothing'}")
    kind = slurm.config.get("ProctrackType", _TRACKED)
    report += [] if kind == _TRACKED else [_SIGNALS.format(printable(kind[:64]))]
    if json:
        show(as_json(each._asdict() for each in rows).text.rstrip())
    else:
        version = f"Longship {VERSION}, Slurm {slurm.config.get('SLURM_VERSION', 'unknown')}"
        file = settings.root / f".cache/doctor/site-{machine.name}.txt"
        make_directory(file.parent)
        head = f"doctor.py --site, {machine.name} ({machine.site_file}), {version}"
        write_file(file, "\n".join([head, *report, ""]))
        show("\n".join(report))
        share = f"attach {file.relative_to(settings.root)} to an issue"
        show(f"to confirm or correct {machine.site_file} for others: {share}")
        if not any(each.state == "different" for each in rows):
            seen = f"{time.strftime('%Y-%m-%d')}, {version.partition(', ')[2]}"
            show(f'or propose this line of [machines.{machine.name}]: confirmed = "{seen}"')
    sys.exit(any(each.state == "different" for each in rows))


def stated_of(tables: Mapping[str, Any], name: str) -> dict[Key, Any]:
    """Return the values of a machine by their keys; those of [common] are its defaults."""
    common, own = tables.get("common", {}), tables["machines"][name]
    inherited = {key: x for key, x in common.items() if key == "configuration" or key not in own}
    stated = {**dict(_leaves(inherited)), **dict(_leaves(own))}
    stated.pop(("confirmed",), None)
    return stated


def _leaves(table: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield the values of a table and of those inside; a price, and a partition, are one value."""
    for name, value in table.items():
        if isinstance(value, dict) and name != "price" and (not above or above[0] not in _GROUPS):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def compared(stated: Stated, facts: Mapping[Key, Fact]) -> Iterator[Row]:
    """Compare each value; those of partitions and qualities of service one by one."""
    for key in dict.fromkeys((*stated, *facts)):
        own, fact = stated.get(key), facts.get(key)
        if own and fact and isinstance(fact.value, dict):
            for each in dict.fromkeys((*own, *fact.value)):
                found = Fact(fact.value[each], fact.command) if each in fact.value else None
                yield _row((*key, each), own.get(each), found)
        else:
            yield _row(key, own, fact)


def _row(key: Key, own: Any, fact: Fact | None) -> Row:
    described = "nothing" if own is None else as_toml(own)
    if fact is None:
        return Row("undecided", ".".join(key), described, "", "")
    state = "confirmed" if fact.value == own else "different"
    found = "nothing" if fact.value is None else as_toml(fact.value)
    return Row(state, ".".join(key), described, found, fact.command)


def not_up(slurm: Slurm) -> list[Row]:
    """Return the partitions in which no new jobs start now."""
    command = _GROUPS["partitions"]
    return [
        Row("reported", f"partitions.{name}", "", each.state, command)
        for name, each in slurm.partitions.items()
        if each.is_open and each.state != "UP"
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return a line for each row, below headings."""
    cells = [("key", "described", "machine", "command"), *(each[1:] for each in rows)]
    widths = [min(40, max(map(len, column))) for column in zip(*cells)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return [printable(each) for each in lines] if rows else ["no differences found"]


# ---------- what the machine reports


def reported(
    settings: Settings, stated: Stated, slurm: Slurm, of_site: set[str]
) -> dict[Key, Fact]:
    """Return what is reported for the stated keys, and of partitions and QoS that are not stated.

    Without stated keys: for all keys that a new site can have.
    """
    facts = {**dict(_of_node(settings, stated)), **dict(_of_slurm(stated, slurm))}
    if stated:
        facts = {key: x for key, x in facts.items() if key in stated or key == ("pyxis",)}
    lists_all = not stated or any(key[0] == "partitions" for key in stated)
    for name, partition in slurm.partitions.items():
        is_new = lists_all and partition.is_open and name not in of_site
        if is_new or ("partitions", name) in stated:
            limits = _limits(name, stated, facts, slurm)
            facts["partitions", name] = Fact(limits, _GROUPS["partitions"])
    for name, limits in slurm.qos.items():
        if (limits and name in slurm.own_qos) or ("qos", name) in stated:
            facts["qos", name] = Fact(limits, _GROUPS["qos"])
    for kind, name in (key for key in stated if key[0] in _GROUPS):
        known = slurm.partitions if kind == "partitions" else slurm.qos
        if known and name not in known:
            facts[kind, name] = Fact(None, _GROUPS[kind])
    return facts


def _of_slurm(stated: Stated, slurm: Slurm) -> Iterator[tuple[Key, Fact]]:
    """Yield what Slurm reports of the machine as a whole.

    A value is that of most nodes, in partitions with GPUs if there are any, or the stated one if
    some of these nodes have it.
    """
    own = {name: x for name, x in slurm.partitions.items() if ("partitions", name) in stated}
    for fact in site_facts.NODE_FACTS:
        others = (own or slurm.partitions).items()
        silent = [x for name, x in others if fact not in stated.get(("partitions", name), {})]
        with_gpus = [x for x in silent if x.usual("gpus_per_node")]
        counted: Counter[Any] = sum((x.nodes[fact] for x in with_gpus or silent), Counter())
        value = stated.get((fact,))
        if value not in counted:
            value = next((each for each, _ in counted.most_common(1)), None)
        if value is not None:
            yield (fact,), Fact(value, "scontrol show node")
    for name in (name for name, each in slurm.partitions.items() if each.is_default):
        yield ("default_partition",), Fact(name, _GROUPS["partitions"])
    if "associations" in slurm.config.get("AccountingStorageEnforce", ""):
        required = stated.get(("required",), [])
        yield ("required",), Fact(["account"] * ("account" not in required) + required, _CONFIG)
    if kind := slurm.config.get("AccountingStorageType"):
        yield ("accounts",), Fact("no" if "none" in kind else "yes", _CONFIG)
    cluster = slurm.config.get("ClusterName", "")
    if site_facts.NAME.fullmatch(cluster) and ("recognise", "cluster") in stated:
        yield ("recognise", "cluster"), Fact(cluster, _CONFIG)


def _limits(name: str, stated: Stated, facts: Mapping[Key, Fact], slurm: Slurm) -> dict[str, Any]:
    """Return what a partition should state: its limits, and what differs from the machine."""
    partition, own = slurm.partitions[name], stated.get(("partitions", name), {})
    found = dict(partition.limits)
    if "max_time" in found and seconds(own.get("max_time", "")) == seconds(found["max_time"]):
        found["max_time"] = own["max_time"]  # 24:00:00 is 1-00:00:00
    for fact in site_facts.PER_NODE:
        machine = facts[fact,].value if (fact,) in facts else None
        value = own.get(fact, machine)
        value = value if value in partition.nodes[fact] else partition.usual(fact)
        if value is not None and (fact in own or value != machine):
            found[fact] = value
    return found


def _of_node(settings: Settings, stated: Stated) -> Iterator[tuple[Key, Fact]]:
    """Yield what the node reports on which this runs."""
    load_modules(settings.machine, stated.get(("runtime",), ""))
    # users of a cluster seldom have a store's daemon
    stores = sorted(names_with_images(), key=lambda each: runtime_of(each).IN_STORE)
    for runtime in [x for x in (stated.get(("runtime",)), *stores) if x and which(x)][:1]:
        yield ("runtime",), Fact(runtime, f"command -v {runtime}")
    if "--container-image" in read_output(["srun", "--help"], 20).text:
        yield ("pyxis",), Fact("yes", "srun --help")
    for key, value in stated.items():
        listed = value if isinstance(value, list) else [value]
        if key == ("modules",):
            fact = _of_modules(value)
        elif all(isinstance(each, str) and each[:1] == "/" for each in listed):
            fact = _of_paths(key[-1], value, listed)
        else:
            continue
        if fact:
            yield key, fact


def _of_modules(calls: Sequence[str]) -> Fact | None:
    """Return the calls, unless they load other modules than they name; None: no modules here."""
    loaded = site_facts.loaded_modules(calls)
    named = [x for verb, *names in map(str.split, calls) if verb == "load" for x in names]
    missing = [x for x in named if not any(f"{y}/".startswith(f"{x}/") for y in loaded or ())]
    if missing and loaded is not None:
        return Fact(None, f"module load {' '.join(missing)}")
    return None if loaded is None else Fact(calls, "module list")


def _of_paths(name: str, value: Any, paths: Sequence[str]) -> Fact | None:
    """Return the value if its paths exist, as far as they have no placeholders."""
    fixed = [re.split(r"/[^/]*[{$]", each)[0] or "/" for each in paths]
    # `ls` ends, whatever a file system does
    missing = [x for x in fixed if read_output(["ls", "-d", "--", x], 20).code]
    on_compute = name in ("binds", "compute_directories")  # a login node can lack them
    if missing and on_compute and "SLURMD_NODENAME" not in os.environ:
        return None
    return Fact(None, f"ls -d {' '.join(missing)}") if missing else Fact(value, "ls -d")
