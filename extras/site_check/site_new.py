"""A whole site.toml of what the machine reports: doctor.py --site --new."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from extras.site_check.site import Fact, Key, not_up, reported, table
from extras.site_check.site_facts import read_slurm
from lib.configuration.layers import Settings
from lib.configuration.snapshot import toml_key
from lib.doctor.checks import as_toml
from lib.doctor.node import own_user
from lib.doctor.report import show
from lib.script.errors import LongshipError

_HEAD = """\
Proposed by doctor.py --site --new: each value is followed by the command that reported it. Compare
it with the site's documentation; docs/how-to/add_a_site.md explains the keys."""
# Variables in which sites name their directories, the most fitting first.
_ROOTS = {"project_dir": ("PROJECT", "WORK"), "scratch_dir": ("SCRATCH", "SCRATCHDIR", "WORK")}


def describe(settings: Settings, name: str) -> None:
    """Print the description of a machine of this name."""
    if name == "auto" or not re.fullmatch(r"[A-Za-z][\w-]{0,39}", name, re.ASCII):
        hint = "use letters, digits, - and _, such as: --new skald"
        raise LongshipError(f'invalid name of a machine: "{name}"', hint)
    slurm = read_slurm()
    facts = dict(_of_login_node(settings))
    facts.update(reported(settings, {}, slurm, set()))
    idle = not_up(slurm)
    head = [*_HEAD.split("\n"), *(["No new jobs start now in:", *table(idle)] if idle else [])]
    show("\n".join(f"# {each}" for each in head))
    show(f"\n[machines.{name}]\ndescription = {as_toml(name)}")
    for key, (value, command) in facts.items():
        show(f"{'.'.join(map(toml_key, key))} = {as_toml(value)}    # {command}")


def _of_login_node(settings: Settings) -> Iterator[tuple[Key, Fact]]:
    """Yield its host name, and the directories that variables of the site name."""
    if "SLURM_JOB_ID" not in os.environ:
        pattern = re.sub(r"[-_]?\d*$", "*", os.uname().nodename.partition(".")[0])
        yield ("recognise", "host"), Fact(pattern, "hostname")
    fields = {settings.configuration.project.account: "{account}", own_user(): "{user}"}
    for key, variables in _ROOTS.items():
        variable = next((x for x in variables if os.path.isdir(os.environ.get(x, ""))), "")
        value = os.environ.get(variable, "")
        if re.fullmatch(r"(/[\w.-]+)+", value, re.ASCII):
            parts = [fields.get(each, each) if each else "" for each in value.split("/")]
            parts += ["{user}"] * ("{user}" not in parts)
            path = "/".join([*parts, "longship"])
            yield ("configuration", "paths", key), Fact(path, f"printenv {variable}")
