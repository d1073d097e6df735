"""A first site.toml and job scripts for a new machine: doctor.py --site --new."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from extras.site_check.site import Comparison
from extras.site_check.site_edit import Key, change
from extras.site_check.site_facts import Partition, Slurm, available_modules, read_slurm
from lib.configuration.layers import Settings
from lib.configuration.partitions import seconds
from lib.configuration.sites import load_machines, read_site
from lib.configuration.tables import read_toml
from lib.doctor.node import own_user
from lib.doctor.report import Diagnosis
from lib.doctor.software import SIF_RUNTIMES
from lib.jobs.job_files import job_files
from lib.script.errors import LongshipError, print_messages
from lib.script.execute import write_file

_MARK = "    # proposal"
_HEAD = """\
# {name}: proposed by doctor.py --site --new from what the machine reports. Compare each value with
# the site's documentation, then delete its mark. docs/how-to/add_a_site.md explains the keys.

[machines.{name}]
description = "{name}"
"""
# Variables in which sites name their directories, the most fitting first.
_ROOTS = {"project_dir": ("PROJECT", "WORK"), "scratch_dir": ("SCRATCH", "SCRATCHDIR", "WORK")}


def create(settings: Settings, name: str) -> None:
    """Write NAME/ with a site.toml and job scripts, complete or not at all."""
    root = settings.root
    if name == "auto" or not re.fullmatch(r"[A-Za-z][\w-]{0,39}", name, re.ASCII):
        hint = "use letters, digits, - and _, such as: --new skald"
        raise LongshipError(f'invalid name of a machine: "{name}"', hint)
    if os.path.lexists(root / name) or name in load_machines(root):
        hint = f"choose another name; or check it: python3 doctor.py --site --machine {name}"
        raise LongshipError(f"{name} exists already", hint)
    slurm = read_slurm()
    if slurm.error or not slurm.partitions:
        hint = 'run this on a login node; or use machine = "local", which needs no Slurm'
        raise LongshipError(slurm.error or "Slurm shows this user no partitions", hint)
    directory = root / f".{name}.partial.{os.getpid()}"
    try:
        directory.mkdir()
        _write(settings, directory, name, slurm)
        files = ", ".join(sorted(each.name for each in directory.iterdir()))
        directory.rename(root / name)
    except OSError as error:
        hint = f"check its permissions: ls -ld {quote(str(root))}"
        raise LongshipError(f"cannot write {name}/: {error.strerror}", hint) from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{name}/: {files}")
    check = f"python3 submit.py {name}/run_training_{name}.sbatch --machine {name} --dry-run"
    print_messages(next=f"check the lines marked as proposals in {name}/, then run: {check}")


def _write(settings: Settings, directory: Path, name: str, slurm: Slurm) -> None:
    """Write all files: what the comparison with an empty site.toml finds, and the job scripts."""
    site = directory / "site.toml"
    write_file(site, _HEAD.format(name=name))
    own = settings._replace(machine=read_site(settings.root, site).machines()[name])
    comparison = Comparison(own, read_toml(site, site.name)[0], slurm, {})
    report = Diagnosis(as_json=True)  # it prints nothing before its end
    for topic, check in comparison.checks():
        report.run(topic, check)
    changes = {**comparison.changes, **_runtime_module(comparison.changes), **_roots(settings)}
    write_file(site, _site_text(name, changes))
    read_site(settings.root, site).machines()
    arch, default = (changes.get((each,)) for each in ("arch", "default_partition"))
    usable = {
        each: partition
        for each, partition in slurm.partitions.items()
        if partition.is_open and partition.usual("arch") in (None, arch)
    }
    for path in job_files(settings.root):
        if path.parent.name == "local":
            text = path.read_text(encoding="utf-8")
            text = _job_text(text, name, usable or slurm.partitions, default)
            write_file(directory / path.name.replace("_local.", f"_{name}."), text)


def _runtime_module(changes: Mapping[Key, Any]) -> dict[Key, Any]:
    """Return the module of a container runtime, where none is found without modules."""
    for each in SIF_RUNTIMES if ("runtime",) not in changes else ():
        for module in (each, each.capitalize()):
            if known := (available_modules([f"load {module}"]) or {}).get(module):
                return {("runtime",): each, ("modules",): [f"load {known[-1]}"]}
    return {}


def _roots(settings: Settings) -> dict[Key, Any]:
    """Return directories from the variables in which sites name them, with placeholders."""
    found: dict[Key, Any] = {}
    account = settings.configuration.project.account
    for key, variables in _ROOTS.items():
        value = next(filter(os.path.isdir, (os.environ.get(each, "") for each in variables)), "")
        if re.fullmatch(r"(/[\w.-]+)+", value, re.ASCII):
            parts = value.split("/")
            fields = {own_user(): "{user}", account or "/": "{account}"}
            parts = [fields.get(each, each) for each in parts]
            parts += ["{user}"] * ("{user}" not in parts)
            found["configuration", "paths", key] = "/".join([*parts, "longship"])
    return found


def _site_text(name: str, changes: Mapping[Key, Any]) -> str:
    """Return site.toml with all changes; each is marked as a proposal."""
    text = _HEAD.format(name=name)
    for key, value in changes.items():
        text = change(text, ("machines", name, *key), value) or text
    return re.sub(r"(?m)^(\w.* = .*)$", rf"\1{_MARK}", text)


def _job_text(
    text: str, name: str, partitions: Mapping[str, Partition], default: str | None
) -> str:
    """Return a job script of local/ for the machine, on one of its partitions."""
    has_gpus, whole_node = "preprocess_data.sh" not in text, "# torchrun" in text
    fits = [x for x, each in partitions.items() if bool(each.usual("gpus_per_node")) is has_gpus]
    fits = fits or list(partitions)
    chosen = default if default in fits else fits[0]
    partition = partitions[chosen]
    options = [f"--partition={chosen}"]
    if has_gpus and (gpus := partition.usual("gpus_per_node")):
        options.append(f"--gpus-per-node={gpus if whole_node else 1}")
    if whole_node and (cores := partition.usual("cores_per_node")):
        options.append(f"--cpus-per-task={cores}")
    time = re.findall(r"#SBATCH --time=([\d:]+)", text)[0]
    longest = partition.limits.get("max_time", time)
    options.append(f"--time={min(time, longest, key=lambda each: seconds(each) or 0)}")
    lines = "\n".join(f"#SBATCH {each}{_MARK}" for each in options)
    text = re.sub("(?m)^#SBATCH --time=.*$", lines, text)
    text = re.sub("# Add the options that .*\n", "", text)
    text = re.sub(r"(?m)^(\w+) local\b", rf"\1 {name}", text)  # start_job, serve_ssh
    text = text.replace(" local/", f" {name}/").replace("_local.", f"_{name}.")
    return text.replace("a Slurm cluster without a site description", name)
