"""The options of doctor.py."""

from __future__ import annotations

import click

from lib import diagnosis, job_diagnosis, known_messages
from lib.cli import Call, script_options
from lib.script import render


@click.command(
    context_settings={"max_content_width": 100},
    epilog="Example: python3 doctor.py explain slurm-4711.out",
)
@click.argument("words", nargs=-1, metavar="[explain LOG]")
@click.option("--json", "as_json", is_flag=True, help="For a program, or for a support person.")
@click.option("--job", is_flag=True, help="In a job: look at each of its nodes.")
@script_options
def doctor(call: Call, words: tuple[str, ...], as_json: bool, job: bool) -> None:
    r"""Say what is wrong with this machine or this configuration, and the fix.

    \b
    (nothing)     what a support person would ask for: ok, warning or problem, a line each
    explain LOG   the known messages in a job's log: what they mean and what to do
    """
    if words[:1] == ("explain",) and len(words) == 2:
        known_messages.explain(words[1], call.paths, as_json=as_json)
        return
    if words:
        raise click.UsageError(f'what is "{words[0]}"? doctor.py explain LOG')
    lines_of = job_diagnosis.lines if job else diagnosis.lines
    lines = lines_of(call.settings, call.paths, call.runtime().runtime, as_json=as_json)
    call.finish(render(call.title("doctor.py"), lines), "doctor.py")
