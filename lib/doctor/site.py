"""What doctor.py says of the configuration's files, the site, and what belongs to it."""

from __future__ import annotations

import os
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths
from lib.configuration.sites import load_machines, recognise, shown_marks
from lib.configuration.training import is_below
from lib.jobs.job_files import job_files, read_job_file
from lib.script.command import call


def configuration_line(settings: Settings) -> str:
    """Name the files that the configuration is made of."""
    root = f"{settings.root}{os.sep}"
    read = [each for each in settings.files if os.path.isfile(each)]
    sites = [each for each in read if each.endswith("site.toml")]
    own = [each[len(root) :] if each.startswith(root) else each for each in read]
    shown = [each for each in own if not each.endswith("site.toml")]
    text = f"{', '.join(shown)} and {len(sites)} sites can be read"
    return call("report", "ok", "configuration", text)


def site_lines(settings: Settings) -> list[str]:
    """Say which machine this is, and by which mark."""
    machines = load_machines(settings.root)
    here = recognise(machines, settings.environ, os.uname().nodename)
    machine, origin = settings.machine, settings.origins["machine"]
    text = f"{machine.name}, {machine.description} ({machine.site_file})"
    marks = shown_marks(machines[here]) if here in machines else ""
    if settings.configuration.machine == "auto":
        why = f"detected by {marks}" if marks else "no known site detected"
        return [call("report", "ok", "machine", f"{text}: {why}")]
    text += f": set in {origin}"
    if here == machine.name or not marks:
        why = f"; also detected by {marks}" if marks else "; no known site detected"
        return [call("report", "ok", "machine", text + why)]
    fix = f'machine = "auto" in configuration.toml, or: --machine {here}'
    return [call("report", "warning", "machine", f"{text}, but {marks} identifies {here}", fix)]


def job_lines(settings: Settings) -> list[str]:
    """Say what the site's job files are for: one that was copied can still name another machine."""
    machines = load_machines(settings.root)
    site = Path(settings.machine.site_file).parent
    files = [each for each in job_files(settings.root) if each.parent == settings.root / site]
    found = []
    for path in files:
        job = read_job_file(settings.root, str(path))
        if job.machine and (
            job.machine not in machines
            or machines[job.machine].site_file != settings.machine.site_file
        ):
            text = f"{job.path} is for the machine {job.machine}, which is not in {site}/site.toml"
            fix = f"start_job {settings.machine.name} in {job.path}"
            found.append(call("report", "warning", "jobs", text, fix))
    text = f"{len(files)} job scripts in {site}/, all for machines of this site"
    return found or [call("report", "ok", "jobs", text)]


def visible_lines(settings: Settings, paths: Paths) -> list[str]:
    """Tell the folders that compute nodes do not see. JUPITER: a job then dies without a log."""
    seen = settings.machine.compute_folders
    fix = f"move it to a directory under {' or '.join(seen)}"
    hidden = [
        each
        for each in dict.fromkeys((paths.root, *paths.roots))
        if not any(is_below(str(each), folder) for folder in seen)
    ]
    nodes = f"compute nodes of {settings.machine.name}"
    if not seen:
        return []
    if not hidden:
        return [call("report", "ok", "folders", f"{nodes} mount this repository and all of them")]
    return [
        call("report", "problem", "folders", f"{nodes} do not mount {each}", fix) for each in hidden
    ]
