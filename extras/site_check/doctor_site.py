"""The verb `doctor.py site`, or `doctor.py --site`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from extras.site_check.site import diagnose
from extras.site_check.site_new import describe
from lib.commands import print_no_script
from lib.commands.doctor import checked_invocation, json_option
from lib.commands.options import WrongCall, plain_options
from lib.doctor.report import exit_on_signals


@click.command()
@click.option("--new", metavar="NAME", help="Print a site.toml with this name of the machine.")
@json_option
@plain_options
def site(options: Mapping[str, str], dry_run: bool, new: str | None, as_json: bool) -> None:
    """Compare site.toml with what this machine reports.

    Slurm, modules, the container runtime and directories are asked. Each difference is a line: key,
    described value, the machine's value, and the command that reported it. The report is also
    written to .cache/doctor/, to attach to an issue. The exit code is 1 if a value differs. With
    --new, nothing is compared: a whole site.toml of what the machine reports is printed.
    """
    if dry_run:
        print_no_script("Longship: doctor.py --site")
        return
    if new is not None and as_json:
        raise WrongCall("--new cannot be used with --json", "leave out one of the two")
    exit_on_signals()
    settings = checked_invocation(options).settings
    if new is None:
        diagnose(settings, json=as_json)
    else:
        describe(settings, new)
