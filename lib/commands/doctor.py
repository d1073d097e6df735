"""The options of doctor.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from lib import ROOT
from lib.commands import Invocation, print_no_script
from lib.commands.options import WrongCall, complete, plain_options
from lib.commands.verbs import WithVerbs, find_verbs
from lib.configuration.sites import load_machines
from lib.doctor import checks
from lib.doctor.report import Diagnosis, exit_on_signals
from lib.script.errors import LongshipError, suggest

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, such as for a support request."
)


@click.command(
    cls=WithVerbs,
    context_settings={"max_content_width": 100},
    epilog="Examples: python3 doctor.py; python3 doctor.py --json >doctor.json",
)
@click.argument("words", nargs=-1, metavar="[VERB]", shell_complete=complete("verb"))
@json_option
@plain_options
def doctor(
    options: Mapping[str, str], dry_run: bool, words: tuple[str, ...], as_json: bool
) -> None:
    """Check this machine and configuration, and suggest fixes.

    Each finding is ok, warning or problem. Each warning and each problem comes with its fix, and
    each value of the configuration with its source. The output contains no passwords or tokens and
    is safe to share. This command changes nothing. The exit code is 1 if there is a problem, else
    0. A verb can be typed as an option, such as --site.
    """
    if words:
        raise WrongCall(f'unknown verb: "{words[0]}"', suggest(words[0], find_verbs("doctor")))
    if dry_run:
        print_no_script("Longship: doctor.py")
        return
    exit_on_signals()
    report = Diagnosis(as_json=as_json)
    try:
        settings = checked_invocation(options).settings
    except LongshipError as error:
        checks.diagnose_without_settings(Path(ROOT), error, report)
        return
    checks.diagnose(settings, report)


def checked_invocation(options: Mapping[str, str], *, dry_run: bool = False) -> Invocation:
    """Read the configuration, and check the file of every site; a launch checks that of its own."""
    load_machines(Path(ROOT))
    return Invocation.read(options, dry_run=dry_run)
