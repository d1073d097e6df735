"""The checks of the configuration and of the target machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lib.configuration.layers import Settings
from lib.configuration.sites import load_machines, read_sites, recognise, shown_marks
from lib.script.output import Finding, ok, warning


def findings(settings: Settings) -> Iterator[Finding]:
    """Report the files that were read, and whether the target machine is this one."""
    yield _files(settings)
    yield _machine(settings)


def _files(settings: Settings) -> Finding:
    """Report which files the configuration was read from."""
    root = f"{settings.root}{os.sep}"
    read = [each for each in settings.files if os.path.isfile(each)]
    others = [each for each in read if not each.endswith("site.toml")]
    shown = [each[len(root) :] if each.startswith(root) else each for each in others]
    text = f"{', '.join(shown)} and {len(read) - len(others)} sites can be read"
    return ok("configuration", text)


def _machine(settings: Settings) -> Finding:
    """Report the target machine, and the mark by which this machine was detected."""
    machines = load_machines(settings.root)
    here = recognise(read_sites(settings.root), settings.environ, os.uname().nodename)
    machine, origin = settings.machine, settings.origins["machine"]
    text = f"{machine.name}, {machine.description} ({machine.site_file})"
    marks = shown_marks(machines[here]) if here in machines else ""
    detected = f"detected by {marks}" if marks else "no known site detected"
    if settings.configuration.machine == "auto":
        return ok("machine", f"{text}: {detected}")
    text += f": set in {origin}"
    if here == machine.name or not marks:
        also = "also " if marks else ""
        return ok("machine", f"{text}; {also}{detected}")
    fix = f'machine = "auto" in configuration.toml, or: --machine {here}'
    return warning("machine", f"{text}, but {marks} identifies {here}", fix)
