"""The verb `submit.py rerun`."""

from __future__ import annotations

from typing import Any

import click

from lib.commands import Call
from lib.commands.options import complete
from lib.commands.submit import JobCommand, submission_options
from lib.jobs.rerun import (
    check_clone,
    check_own,
    check_still_there,
    recorded_job,
    recorded_run,
)
from lib.jobs.submit import Submission, split_typed, submit_lines
from lib.script.records import read_record
from lib.script.render import render


@click.command(cls=JobCommand, context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=complete("run"))
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[SBATCH_OPTION...] [-- ARGUMENT...]",
    shell_complete=complete("words"),
)
@submission_options
def rerun(call: Call, run: str, words: tuple[str, ...], **asked: Any) -> None:
    """Re-run RUN with its recorded script, configuration, code, image and arguments.

    Sbatch options and arguments replace the recorded ones.
    """
    typed, arguments = split_typed(words)
    directory = recorded_run(call.paths, run)
    check_own(directory)
    job, options, recorded = recorded_job(directory)
    check_clone(directory, call.paths.root)
    check_still_there(directory)
    record = read_record(directory / "record.json")  # the environment would win over the file
    chosen = {key: call.options[key] or record.get(key, "") for key in ("machine", "stack")}
    call = call.changed(configuration=str(directory / "configuration.json"), **chosen)
    wanted = Submission(
        job, [*options, *typed], arguments or recorded, again=str(directory), **asked
    )
    lines = submit_lines(call.environment("job"), wanted)
    call.finish(render(call.title("submit.py rerun"), lines), "submit.py")
