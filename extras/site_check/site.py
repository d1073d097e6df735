"""The comparison of a site.toml with what the machine reports: doctor.py --site."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any, Callable, NamedTuple

from extras.site_check import site_facts
from extras.site_check.site_edit import Key, change, unified_diff
from extras.site_check.site_facts import NAME, PER_NODE, Slurm
from lib.configuration.layers import Settings
from lib.configuration.partitions import seconds
from lib.configuration.paths import expand
from lib.configuration.tables import read_toml
from lib.doctor.checks import as_toml
from lib.doctor.network import find_proxies, package_index, without_login
from lib.doctor.node import own_user
from lib.doctor.report import Diagnosis, Finding, show
from lib.doctor.software import SIF_RUNTIMES, load_modules
from lib.jobs.job_files import job_files, read_job_file
from lib.jobs.status import last_error
from lib.runtimes.choice import names_with_images
from lib.runtimes.runtime import runtime_of
from lib.script.errors import LongshipError, paint
from lib.script.execute import make_directory, read_output, write_file
from lib.script.output import as_json

WIDTHS = (9, 28)  # of the report's columns
_STATES = ("confirmed", "different", "undecided")
_NOTHING = "nothing"
_GROUPS = ("partitions", "qos")
_UNKNOWN = "only the site's documentation tells"
_OWN_PATH = re.compile(r"(?<![\w.}:/])/[\w.{][^\s\"',;:)\]]*")
_EXPORT = re.compile(r"^ *export (\w+_(?:SOCKET_IFNAME|IB_HCA))=[\"']?([\w,=^:]+)", re.MULTILINE)
# what --new proposes, besides partitions and qualities of service
_NEW = """recognise.host runtime arch gpu cores_per_node gpus_per_node default_partition required
accounts configuration.environment.set.NCCL_SOCKET_IFNAME configuration.environment.set.http_proxy
configuration.environment.set.https_proxy configuration.environment.set.no_proxy"""


class Seen(NamedTuple):
    """The machine's value of a key: None if that cannot be decided, _NOTHING if it has none."""

    value: Any
    note: str = ""


def diagnose(settings: Settings, report: Diagnosis, *, in_job: bool) -> None:
    """Compare the machine with its site.toml; exit code 1 if a fact differs."""
    machine = settings.machine
    if not machine.recognise:
        what = "no site was detected: this machine has no site.toml"
        hint = "name it: --site --machine NAME; or describe this machine: --site --new NAME"
        raise LongshipError(what, hint)
    file = settings.root / machine.site_file
    tables, _ = read_toml(file, machine.site_file)
    node = _ask_node(settings) if in_job else {}
    comparison = Comparison(settings, tables, site_facts.read_slurm(), node)
    for topic, check in comparison.checks():
        report.run(topic, check)
    old = new = file.read_bytes().decode("utf-8-sig")
    for key, value in comparison.changes.items():
        changed = change(new, ("machines", machine.name, *key), value)
        if changed is None:
            text = f"not in the patch: edit {machine.site_file}"
            report.add(Finding("undecided", ".".join(key), text))
        new = changed or new
    patch = unified_diff(machine.site_file, old, new)
    counts = {x: sum(each.state == x for each in report.findings) for x in _STATES}
    directory, name = settings.root / ".cache/doctor", f".cache/doctor/site-{machine.name}"
    make_directory(directory)
    write_file(directory / f"site-{machine.name}.patch", patch)
    write_file(directory / f"site-{machine.name}.txt", _to_share(settings, report, patch))
    if report.as_json:
        findings = as_json(each._asdict() for each in report.findings).text.rstrip()
        rest = json.dumps(patch)
        show(f'{{"counts": {json.dumps(counts)}, "findings": {findings}, "patch": {rest}}}')
    else:
        show("\n" + f"{patch}\n" * bool(patch) + ", ".join(f"{x}: {n}" for x, n in counts.items()))
        if patch:
            show(f"{paint('next:', sys.stdout)} git apply {name}.patch")
        show(f"to share this report, attach it to an issue: {name}.txt")
    sys.exit(bool(counts["different"]))


def _to_share(settings: Settings, report: Diagnosis, patch: str) -> str:
    """Return the report without user, account, and paths that are not in site.toml."""
    machine, project = settings.machine, settings.configuration.project
    public = (settings.root / machine.site_file).read_text(encoding="utf-8-sig")
    lines = [f"{each.state:9}  {each.topic}: {each.text}" for each in report.findings]
    places = {str(settings.root), os.getcwd(), os.path.expanduser("~"), os.environ.get("TMPDIR")}
    names = {own_user(), os.environ.get("USER"), project.account, project.name}
    known = "|".join(re.escape(each) for each in names if each)

    def hide(line: str) -> str:
        for each in sorted(filter(None, places), key=len, reverse=True):
            line = line.replace(each, "PATH") if len(each) > 1 else line
        line = _OWN_PATH.sub(lambda found: found[0] if found[0] in public else "PATH", line)
        return re.sub(rf"(?<![A-Za-z0-9])({known})(?![A-Za-z0-9])", "NAME", line)

    head = f"doctor.py --site, machine {machine.name} ({machine.site_file})"
    # other lines of the patch are those of site.toml, and must stay for the patch to apply
    patched = (hide(line) if line[:1] == "+" else line for line in patch.split("\n"))
    return "\n".join([head, *map(hide, lines), "", *patched])


def _ask_node(settings: Settings) -> dict[str, Any]:
    """Let a node of the job report what only a compute node knows."""
    number = os.environ.get("SLURM_JOB_ID")
    if not number or not which("srun"):
        raise LongshipError(
            "not in a job: SLURM_JOB_ID is not set, or srun is not found",
            "salloc --nodes=1 OPTION... python3 doctor.py --site --job",
        )
    machine, variables = settings.machine, settings.configuration.environment.set
    proxies = [f"{name}={value}" for name, value in variables.items() if name.endswith("_proxy")]
    url = re.sub("://.*@", "://", (package_index() or ["https://pypi.org/"])[0])
    program = Path(__file__).with_name("inside") / "node_facts.py"
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--wait=0", "python3", "-c"]
    about = [url, *machine.binds, *machine.compute_directories]
    command = ["env", *proxies, *step, program.read_text(encoding="utf-8"), *about]
    text = read_output(command, 60).text.strip()
    last = text.rpartition("\n")[2]
    if not last.startswith('{"node": '):
        what = f"the node of job {number} does not respond: {last or 'no output'}"
        raise LongshipError(what, f"check the job: scontrol show job {number}")
    return json.loads(last)


class Comparison:
    """A machine's tables of site.toml, and the changes that follow from what the machine reports.

    `node` has the facts of a compute node, if there is a job.
    """

    def __init__(
        self, settings: Settings, tables: Mapping[str, Any], slurm: Slurm, node: Mapping[str, Any]
    ) -> None:
        self.settings, self.machine, self.slurm, self.node = settings, settings.machine, slurm, node
        self.tables = tables
        self.stated = {**tables.get("common", {}), **tables["machines"][self.machine.name]}
        self.is_new = self.stated.keys() == {"description"}
        self.changes: dict[Key, Any] = {}
        self.links = node.get("links") or site_facts.interfaces()
        self.answers = self._answers_of_slurm()

    def checks(self) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
        """Return the checks of all keys that are stated, and of those that should be."""
        facts = {key: value for key, value in _leaves(self.stated) if key[0] not in _GROUPS}
        if "newer_python" in self.tables:
            facts["newer_python",] = self.tables["newer_python"]
        expected = ["pyxis", "configuration.packages.compression"]
        for key in [*expected, *(_NEW.split() if self.is_new else ())]:
            facts.setdefault(tuple(key.split(".")), None)
        for key, value in facts.items():
            yield ".".join(key), partial(self._look, key, value)
        for kind in _GROUPS:
            yield kind, partial(self._compare_group, kind)
        yield "job scripts", self._test_job_scripts
        yield "reports", self._report

    def _look(self, key: Key, stated: Any) -> Iterator[Finding]:
        return self._compare(key, stated, self._check(key, stated))

    def _compare(self, key: Key, stated: Any, seen: Seen) -> Iterator[Finding]:
        """Report one fact; a difference becomes a change where the file can state what is found."""
        found, note = seen
        name, told, more = ".".join(key), _shown(stated), f" ({note})" if note else ""
        if stated is None and found in (None, _NOTHING):
            return
        if found is None:
            yield Finding("undecided", name, f"{told}: {note or 'Slurm does not report it'}")
        elif found == stated:
            yield Finding("confirmed", name, told + more)
        else:
            yield Finding("different", name, f"{_shown(found)} found, {told} stated{more}")
            if found != _NOTHING:
                self.changes[key] = found

    # ---------- Slurm

    def _answers_of_slurm(self) -> dict[str, Seen]:
        """Return what Slurm tells about the machine as a whole, by the last part of the key."""
        config, error, partitions = self.slurm.config, self.slurm.error, self.slurm.partitions
        enforced, kind = (config.get(f"AccountingStorage{x}", "") for x in ("Enforce", "Type"))
        cluster = config.get("ClusterName", "")
        default = next((name for name, each in partitions.items() if each.is_default), None)
        account = ["account"] if "associations" in enforced else None
        gpu = self._most("gpu")
        if not gpu and self._most("gpus_per_node") == 0:
            gpu = "cpu"
        archs: dict[str, list[str]] = {}
        for name in self._own_partitions():
            for arch in partitions[name].nodes["arch"]:
                archs.setdefault(arch, []).append(name)
        by_arch = "; ".join(f"{arch} in {', '.join(names)}" for arch, names in archs.items())
        return {
            "arch": Seen(self._most("arch"), error or by_arch * (len(archs) != 1) or ""),
            "gpu": Seen(gpu, error or "" if gpu else "Slurm does not name the GPUs; --job does"),
            "default_partition": Seen(default, error or "" if default else "Slurm has no default"),
            "required": Seen(account, error or f"AccountingStorageEnforce={enforced}"),
            "accounts": Seen(("no" if "none" in kind else "yes") if kind else None, error or kind),
            "cluster": Seen(cluster if NAME.fullmatch(cluster) else None, error),
            **{fact: Seen(self._per_node(fact), error) for fact in PER_NODE},
        }

    def _own_partitions(self) -> list[str]:
        """Return the partitions of Slurm that the file names; all if it names none."""
        known = self.slurm.partitions
        return [each for each in self.machine.partitions if each in known] or list(known)

    def _most(self, fact: str) -> Any:
        """Return the value of most nodes, in partitions with GPUs if there are any.

        If Slurm does not know it, a node of the job may.
        """
        own = [self.slurm.partitions[each] for each in self._own_partitions()]
        with_gpus = [each for each in own if each.usual("gpus_per_node")]
        nodes: Counter[Any] = sum((each.nodes[fact] for each in with_gpus or own), Counter())
        return next((value for value, _ in nodes.most_common(1)), self.node.get(fact))

    def _per_node(self, fact: str) -> Any:
        """Return a number of the machine: the stated one if a partition without its own has it."""
        stated = self.stated.get(fact)
        own = [each for each in self._own_partitions() if fact not in self._stated_of(each)]
        has_it = any(stated in self.slurm.partitions[each].nodes[fact] for each in own)
        return stated if has_it else self._most(fact)

    def _stated_of(self, partition: str) -> Mapping[str, Any]:
        return self.stated.get("partitions", {}).get(partition, {})

    def _compare_group(self, kind: str) -> Iterator[Finding]:
        """Compare the partitions or the qualities of service; report those that are not stated."""
        stated, known, others = self.stated.get(kind, {}), self.slurm.qos, list(self.slurm.own_qos)
        if kind == "partitions":
            machines = self.tables["machines"].values()
            of_site = {name for each in machines for name in each.get(kind, {})}
            known = {name: self._limits(name) for name in self.slurm.partitions} or None
            others = [name for name, each in self.slurm.partitions.items() if each.is_open]
            others = [x for x in others if x not in of_site] if stated or self.is_new else []
        for name, limits in stated.items():
            if known is None:
                why = self.slurm.error or "users cannot see them"
                yield from self._compare((kind, name), limits, Seen(None, why))
            elif name not in known:
                text = f"{_NOTHING} found, {_shown(limits)} stated"
                yield Finding("different", f"{kind}.{name}", text)
                self.changes[kind, name] = None
            else:
                yield from self._compare_limits((kind, name), limits, known[name])
        for name in others if known else ():
            if name not in stated and (known[name] or kind == "partitions"):
                yield from self._compare((kind, name), None, Seen(known[name]))

    def _limits(self, name: str) -> dict[str, Any]:
        """Return what a partition should state: its limits, and what differs from the machine."""
        partition, own = self.slurm.partitions[name], self._stated_of(name)
        found = dict(partition.limits)
        for fact in PER_NODE:
            machine = self.answers[fact].value if self.is_new or fact in self.stated else None
            stated = own.get(fact, machine)
            usual = stated if stated in partition.nodes[fact] else partition.usual(fact)
            if usual is not None and (fact in own or usual != machine):
                found[fact] = usual
        return found

    def _compare_limits(
        self, key: Key, stated: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Iterator[Finding]:
        if not stated and not found:
            yield Finding("confirmed", ".".join(key), "no limits")
        for each in dict.fromkeys((*stated, *found)):
            value, own = found.get(each), stated.get(each)
            if each == "max_time" and value and own and seconds(value) == seconds(own):
                value = own  # 24:00:00 is 1-00:00:00
            why = _UNKNOWN if each == "price" else "Slurm sets no such limit here"
            yield from self._compare((*key, each), own, Seen(value, why * (value is None)))

    def _test_job_scripts(self) -> Iterator[Finding]:
        """Let sbatch test the job scripts of the machine: memory, GPUs, cores, time, features."""
        root, account = self.settings.root, self.settings.configuration.project.account
        more = [f"--account={account}"] if account and self.machine.accounts == "yes" else []
        exports = set()
        for path in job_files(root):
            if read_job_file(root, str(path)).machine != self.machine.name:
                continue
            exports.update(_EXPORT.findall(path.read_text(encoding="utf-8", errors="replace")))
            if not self.slurm.error:
                text, code = read_output(["sbatch", "--test-only", *more, str(path)], 30)
                told = f"sbatch: {last_error(text)}" if code else "accepted by sbatch --test-only"
                state = "undecided" if code == 124 or "ccount" in text else "different"
                name = str(path.relative_to(root))
                yield Finding(state if code else "confirmed", name, told)
        for name, value in sorted(exports):
            yield from self._compare(("export", name), value, self._variable(name, value))

    # ---------- programs, directories and networks of this node

    def _check(self, key: Key, stated: Any) -> Seen:
        """Return what this node has for a key; others are answered by Slurm, or by nobody."""
        name, last = ".".join(key), key[-1]
        checks: dict[str, Callable[[Any], Seen]] = {
            **dict.fromkeys(("binds", "compute_directories"), self._directories),
            "recognise.host": self._host,
            "recognise.path": lambda path: Seen(path if os.path.exists(path) else _NOTHING),
            "rendezvous": self._rendezvous,
            "runtime": self._runtime,
            "modules": self._modules,
            "pyxis": self._pyxis,
            "configuration.packages.compression": self._compression,
        }
        if name in checks:
            return checks[name](stated)
        if name == "newer_python" and stated.startswith("module "):
            value, note = self._modules([stated.partition(" ")[2]])
            return Seen(stated if value == [stated.partition(" ")[2]] else value and _NOTHING, note)
        if name == "required" and self.answers[name].value and {*(stated or ())} - {"account"}:
            if "account" in stated:
                return Seen(None, "Slurm requires an account; only a plugin knows of the others")
            return Seen(["account", *stated], self.answers[name].note)
        if last in self.answers and stated != "auto":
            return self.answers[last]
        if key[:2] == ("configuration", "paths"):
            return self._path(name, stated)
        if key[:2] == ("recognise", "environment"):
            return Seen(os.environ.get(last), f"{last} is not set here")
        if "set" in key:
            return self._variable(last, stated)
        here = last == "image" and os.path.exists(stated)
        return Seen(stated) if here else Seen(None, _UNKNOWN)

    def _host(self, stated: str | None) -> Seen:
        host = os.uname().nodename
        pattern = re.sub(r"[-_]?\d*$", "*", host.partition(".")[0])
        if os.environ.get("SLURM_JOB_ID") or not re.fullmatch(r"[\w-]+\*", pattern, re.ASCII):
            return Seen(None, "this may be a compute node")
        return Seen(stated if stated and fnmatchcase(host, stated) else pattern, host)

    def _runtime(self, stated: str | None) -> Seen:
        """Return the container runtime that is found, after the site's modules are loaded."""
        load_modules(self.machine, stated or "")
        stores = sorted(names_with_images(), key=lambda each: runtime_of(each).IN_STORE)
        # users of a cluster seldom have a store's daemon
        found = [each for each in dict.fromkeys((stated, *stores)) if each and which(each)]
        if not found:
            return Seen(None, "no container runtime on this node; compute nodes can have one")
        version = read_output([found[0], "--version"], 20).text.partition("\n")[0]
        return Seen("auto" if stated == "auto" else found[0], version)

    def _modules(self, stated: Sequence[str]) -> Seen:
        """Return the calls, each module in a version that is available."""
        available = site_facts.available_modules(stated)
        if available is None:
            return Seen(None, "no environment modules on this node")
        calls, absent = [], []
        for verb, *names in map(str.split, stated):
            for place, name in enumerate(names):
                known = available.get(name, [name])
                if not known and verb != "try-load":
                    absent.append(name)
                elif known and not any(f"{each}/".startswith(f"{name}/") for each in known):
                    names[place] = known[-1]
            calls.append(" ".join([verb, *names]))
        return Seen(_NOTHING, f"not available: {', '.join(absent)}") if absent else Seen(calls)

    def _directories(self, stated: Sequence[str]) -> Seen:
        unseen = self.node.get("unseen")
        absent = [
            x for x in stated if not (os.path.exists(x) if unseen is None else x not in unseen)
        ]
        if not absent:
            return Seen(stated)
        return Seen(None if unseen is None else _NOTHING, f"not found: {', '.join(absent)}")

    def _path(self, name: str, stated: str) -> Seen:
        """Return whether the fixed part of a path exists, with its file system and quotas."""
        fixed = re.split(r"[{$]", stated)[0].rpartition("/")[0]
        if not fixed.startswith("/"):
            return Seen(stated, "of each user")
        if not os.path.isdir(fixed):
            return Seen(_NOTHING)
        try:
            own = Path(expand(name, stated, self.settings))
        except LongshipError:  # no account is configured
            own = Path(fixed)
        existing = next(each for each in (own, *own.parents) if each.is_dir())
        return Seen(stated, site_facts.describe_disk(str(existing)))

    def _compression(self, stated: str | None) -> Seen:
        runtime = next(filter(which, SIF_RUNTIMES), "")
        formats = site_facts.mounted_formats(runtime) if runtime else None
        if formats is None:
            return Seen(None, "not tested: no mksquashfs or no apptainer on this node")
        usual = stated or self.settings.configuration.packages.compression
        note = f"{runtime} mounts {' '.join(formats) or 'no SquashFS file'}"
        return Seen(stated if usual in formats else next(iter(formats), _NOTHING), note)

    def _variable(self, name: str, stated: str | None) -> Seen:
        """Compare a variable that names interfaces or a proxy."""
        if name.endswith("_proxy"):
            own = os.environ.get(name) or os.environ.get(name.upper(), "")
            plain = re.fullmatch(r"[\w.:/,*-]+", own, re.ASCII)  # without a password
            return Seen(own) if plain else Seen(None, "not set on this node")
        if stated is None:  # InfiniBand or Slingshot, not the Ethernet next to it
            return Seen(next((each for each in self.links if each in ("ib0", "hsn0")), None))
        if not name.endswith(("_SOCKET_IFNAME", "_IB_HCA")) or stated.startswith("^"):
            return Seen(None, "a setting, which no program reports")
        names = re.sub(r":\d+", "", stated).lstrip("=").split(",")  # mlx5_0:1 has a port
        note = f"interfaces: {', '.join(self.links)}"
        if all(any(link.startswith(each) for link in self.links) for each in names):
            return Seen(stated, note)
        return Seen(_NOTHING if self.node else None, note)

    def _rendezvous(self, stated: str) -> Seen:
        name = stated.replace("{node}", self.slurm.first_node).replace("{address}", "localhost")
        if self.slurm.first_node and not read_output(["getent", "ahosts", name], 10).code:
            return Seen(stated, f"{name} resolves")
        return Seen(None, "names of nodes need not resolve here; check with: doctor.py --job")

    def _pyxis(self, stated: str | None) -> Seen:
        if "--container-image" in read_output(["srun", "--help"], 20).text:
            return Seen("yes")
        return Seen(stated if stated == "no" else None, "srun has no --container-image here")

    def _report(self) -> Iterator[Finding]:
        """Report what no key of site.toml states, but whoever checks it wants to know."""
        sizes: dict[str, list[str]] = {}
        for name, each in self.slurm.partitions.items():
            size = " or ".join(f"{x >> 10} GB" for x in each.nodes["memory"]) or "unknown"
            sizes.setdefault(size, []).append(name)
        memory = "; ".join(f"{size} in {', '.join(names)}" for size, names in sizes.items())
        interfaces = ", ".join(site_facts.interfaces())
        facts = {"memory of a node": memory, "interfaces": interfaces, **self.node.get("shown", {})}
        yield from (Finding("reported", topic, text) for topic, text in facts.items() if text)
        yield from (each._replace(state="reported") for each in find_proxies())


def _leaves(table: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Return the values of a table and of those inside; a price is one value."""
    for name, value in table.items():
        if isinstance(value, dict) and name != "price":
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, (str, int)) else as_toml(value)
    return _NOTHING if value is None else without_login(text) if "://" in text else text
