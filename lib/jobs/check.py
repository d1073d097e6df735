"""The check of a site's job scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.sites import load_machines
from lib.jobs.job_files import job_files, read_job_file
from lib.script.output import Finding, ok, warning


def findings(settings: Settings) -> Iterator[Finding]:
    """Report job scripts of the site for other machines: a copied one may still name its former."""
    machines = load_machines(settings.root)
    site = Path(settings.machine.site_file).parent
    files = [each for each in job_files(settings.root) if each.parent == settings.root / site]
    jobs = [read_job_file(settings.root, str(each)) for each in files]
    at_site = {
        name for name, each in machines.items() if each.site_file == settings.machine.site_file
    }
    copied = [each for each in jobs if each.machine and each.machine not in at_site]
    for job in copied:
        text = f"{job.path} is for the machine {job.machine}, which is not in {site}/site.toml"
        fix = f"start_job {settings.machine.name} in {job.path}"
        yield warning("jobs", text, fix)
    if not copied:
        text = f"{len(files)} job scripts in {site}/, all for machines of this site"
        yield ok("jobs", text)
