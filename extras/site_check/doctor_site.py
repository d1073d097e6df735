"""The verb `doctor.py site`, or `doctor.py --site`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from extras.site_check.site import WIDTHS, diagnose
from extras.site_check.site_new import create
from lib.commands import print_no_script
from lib.commands.doctor import checked_invocation, json_option
from lib.commands.options import WrongCall, plain_options
from lib.doctor.report import Diagnosis, exit_on_signals


@click.command()
@click.option("--new", metavar="NAME", help="Describe this machine in NAME/.")
@click.option("--job", is_flag=True, help="In a job: also ask a compute node.")
@json_option
@plain_options
def site(
    options: Mapping[str, str], dry_run: bool, new: str | None, job: bool, as_json: bool
) -> None:
    """Compare site.toml, and the job scripts, with what this machine reports.

    Each value is compared with what this login node, Slurm and the file systems report: confirmed,
    different or undecided. A patch for site.toml and a report for an issue are written to
    .cache/doctor/. With --new, NAME/site.toml and job scripts are written for a machine that no
    site describes. The exit code is 1 if a value differs.
    """
    if new is not None and job:
        raise WrongCall("--new and --job cannot be combined", "doctor.py --site --new NAME")
    if dry_run:
        print_no_script("Longship: doctor.py --site")
        return
    exit_on_signals()
    settings = checked_invocation(options).settings
    if new is None:
        diagnose(settings, Diagnosis(as_json=as_json, widths=WIDTHS), in_job=job)
    else:
        create(settings, new)
