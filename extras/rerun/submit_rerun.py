"""The verb `submit.py rerun`."""

from __future__ import annotations

import click

from extras.rerun.rerun import check_clone, recorded_job
from lib.commands import Invocation
from lib.commands.options import complete
from lib.commands.submit import JobCommand, submission_options
from lib.jobs.options import Option
from lib.jobs.request import Asked
from lib.jobs.runs import check_own, check_still_there, recorded_run
from lib.jobs.submit import request_of, submit_lines, total_cost
from lib.script.records import read_record
from lib.script.render import render


@click.command(cls=JobCommand, context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=complete("run"))
@submission_options
def rerun(
    invocation: Invocation, run: str, typed: list[Option], arguments: tuple[str, ...], asked: Asked
) -> None:
    """Re-run RUN with its recorded script, configuration, code, image and arguments.

    Sbatch options and arguments replace the recorded ones.
    """
    directory = recorded_run(invocation.paths, run)
    check_own(directory)
    job, options, recorded = recorded_job(directory)
    check_clone(directory, invocation.paths.root)
    check_still_there(directory)
    record = read_record(directory / "record.json")  # the environment would win over the file
    chosen = {key: invocation.options[key] or record.get(key, "") for key in ("machine", "stack")}
    invocation = invocation.changed(configuration=str(directory / "configuration.json"), **chosen)
    asked, options = asked._replace(options=invocation.options), [*options, *typed]
    env, again = invocation.environment("job"), str(directory)
    request = request_of(env, job, options, arguments or recorded, asked, again)
    script = render(invocation.title("submit.py rerun"), submit_lines(request))
    invocation.finish(script, "submit.py", note=total_cost(request).words)
