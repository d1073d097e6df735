"""The options of doctor.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from lib import ROOT
from lib.commands import Call, print_no_script
from lib.commands.options import WrongCall, complete, plain_options
from lib.configuration.paths import Paths
from lib.configuration.sites import load_machines
from lib.doctor import checks, explain, site_new
from lib.doctor import job as job_checks
from lib.doctor import site as site_checks
from lib.doctor.report import Report, exit_on_signals
from lib.script.errors import LongshipError
from lib.script.render import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Examples: python3 doctor.py; python3 doctor.py --json >doctor.json; "
    "python3 doctor.py explain slurm-4711.out",
)
@click.argument("words", nargs=-1, metavar="[explain LOG]", shell_complete=complete("log"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, such as for a support request.")
@click.option("--quiet", is_flag=True, help="With explain: print only what was found.")
@click.option("--job", is_flag=True, help="Check every node of the current job.")
@click.option("--site", is_flag=True, help="Compare site.toml with what the machine reports.")
@click.option("--new", metavar="NAME", help="With --site: describe this machine in NAME/.")
@plain_options
def doctor(
    options: Mapping[str, str],
    dry_run: bool,
    words: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    job: bool,
    site: bool,
    new: str | None,
) -> None:
    r"""Check this machine and configuration, and suggest fixes.

    \b
    (default)     run all checks; print ok, warning or problem for each
    explain LOG   search a job's log: who failed first, known messages, fixes
    --site        compare each value of site.toml, and the job scripts, with what
                  this login node, Slurm and the file systems report: confirmed,
                  different or undecided; write a patch for site.toml and a
                  report for an issue. With --new NAME: write NAME/site.toml and
                  job scripts for a machine that no site describes. With --job,
                  in a job: also ask a compute node.
    --job         check every node of a job and the communication between its
                  ranks; about a minute on healthy nodes. Put it into a job
                  script before srun, or run:
                  salloc --nodes=2 OPTION... python3 doctor.py --job
                  (ranks are bound as in $SLURM_CPU_BIND, srun's --cpu-bind)

    Each warning and each problem comes with its fix, and each value of the configuration with its
    source. The output contains no passwords or tokens and is safe to share. This command changes
    nothing; --site writes only to .cache/doctor/. The exit code is 1 if there is a problem, or a
    difference with --site, else 0.
    """
    if words[:1] == ("explain",) and len(words) == 2:
        if dry_run:
            print_no_script("Longship: doctor.py explain")
            return

        def paths() -> Paths:
            return Call.read(options, dry_run=dry_run).paths

        explain.explain(words[1], paths, as_json=as_json, quiet=quiet)
        return
    if words:
        raise WrongCall(
            f'unexpected argument: "{" ".join(words)}"', "run: python3 doctor.py explain LOG"
        )
    if new is not None and (job or not site):
        raise WrongCall("--new is an option of --site alone", "doctor.py --site --new NAME")
    if dry_run and (site or not job):
        print_no_script("Longship: doctor.py")
        return
    exit_on_signals()
    if site:
        settings = _call(options, dry_run=dry_run).settings
        if new is None:
            report = Report(as_json=as_json, widths=site_checks.WIDTHS)
            site_checks.diagnose(settings, report, in_job=job)
        else:
            site_new.create(settings, new)
        return
    report = Report(as_json=as_json)
    try:
        call = _call(options, dry_run=dry_run)
    except LongshipError as error:
        if job:
            raise
        checks.diagnose_without_settings(Path(ROOT), error, report)
        return
    if not job:
        checks.diagnose(call.settings, report)
        return
    env = call.environment("job")
    script = render(call.title("doctor.py --job"), job_checks.lines(env))
    if dry_run:
        call.finish(script, "doctor.py")
    else:
        job_checks.diagnose(env, script, report)


def _call(options: Mapping[str, str], *, dry_run: bool) -> Call:
    """Read the configuration, and check the file of every site; a launch checks that of its own."""
    load_machines(Path(ROOT))
    return Call.read(options, dry_run=dry_run)
