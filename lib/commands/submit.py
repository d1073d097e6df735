"""The options of submit.py."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Callable

import click

from lib import ROOT
from lib.commands import Invocation
from lib.commands.options import WrongCall, complete, script_options
from lib.commands.verbs import WithVerbs, find_verbs
from lib.configuration.sites import load_machines
from lib.jobs.job_files import JobFile, check_machine, read_job_file
from lib.jobs.options import Option, is_option, split_typed
from lib.jobs.preview import preview
from lib.jobs.request import Asked
from lib.jobs.submit import request_of, submit_lines, total_cost
from lib.script.command import call
from lib.script.hooks import hooks
from lib.script.render import render

_NAME = "submit.py"
# What users of other tools type as a verb, and what does it.
_ELSEWHERE = {
    **dict.fromkeys(("cancel", "kill", "stop"), "scancel JOB"),
    **dict.fromkeys(("list", "log", "logs", "ps", "queue"), "python3 submit.py status"),
    **dict.fromkeys(("exec", "run", "shell"), "python3 container_run.py COMMAND"),
}


class JobCommand(click.Command):
    """A command whose own options may stand among those of sbatch, up to ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let click leave the options of sbatch among the words, and what follows ``--``."""
        end = args.index("--") if "--" in args else len(args)
        typed, after = list(args[:end]), args[end:]
        found = super().parse_args(ctx, list(typed))
        subject = next(each for each in self.params if isinstance(each, click.Argument))
        first = ctx.params.get(str(subject.name)) or ""
        if is_option(first):
            job = next((each for each in typed if each.endswith((".sbatch", ".salloc"))), "")
            words = [each for each in typed if each != job]
            raise WrongCall(
                f"{first} is an option of sbatch, which must follow {subject.metavar}",
                call("python3", *ctx.command_path.split(), job or subject.metavar, *words, *after),
            )
        if first and not os.path.exists(first):
            meant = dict.fromkeys(find_verbs("doctor"), f"python3 doctor.py {first}")
            meant.update(_ELSEWHERE)
            if first in meant:
                raise WrongCall(f'unknown verb: "{first}"', f"run: {meant[first]}")
        if first.startswith("-"):
            own = [name for each in self.params for name in each.opts]
            raise click.NoSuchOption(first.partition("=")[0], possibilities=own, ctx=ctx)
        ctx.params["words"] += tuple(after)
        return found


class _Submit(WithVerbs, JobCommand):
    """The command of submit.py."""


def submission_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a submission, and those of sbatch.

    It receives an `Invocation`, the options of sbatch as ``typed``, ``arguments`` of the job, and
    `Asked`.
    """
    extras = hooks("OPTIONS")

    @functools.wraps(function)
    def with_asked(invocation: Invocation, words: tuple[str, ...], **values: Any) -> None:
        own = [name for each in click.get_current_context().command.params for name in each.opts]
        typed, arguments = split_typed(words, [name[2:] for name in own if name.startswith("--")])
        of_extras = {
            extra: {str(each.name): values.pop(str(each.name)) for each in options}
            for extra, options in extras.items()
        }
        given = {name: values.pop(name) for name in Asked._fields if name in values}
        asked = Asked(options=invocation.options, extras=of_extras, **given)
        function(invocation, typed=typed, arguments=arguments, asked=asked, **values)

    command = script_options(with_asked)
    command.__click_params__ += [each for options in extras.values() for each in options][::-1]
    for add in (
        click.option("--yes", "agreed", is_flag=True, help="Do not ask to confirm the cost."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--after",
            default="",
            metavar="JOB",
            help="Start after JOB has completed successfully.",
            shell_complete=complete("job_id"),
        ),
        click.option(
            "--chain",
            type=click.IntRange(1, 100),
            default=1,
            metavar="N",
            help="Submit a chain of N jobs.",
        ),
        click.argument(
            "words",
            nargs=-1,
            type=click.UNPROCESSED,
            metavar="[SBATCH_OPTION...] [-- ARGUMENT...]",
        ),
    ):
        command = add(command)
    return command


def read_job(invocation: Invocation, job: str) -> tuple[Invocation, JobFile]:
    """Read a job script; return it, and the invocation for the machine that it is for."""
    read = read_job_file(Path(ROOT), job, verbs=(str(each.name) for each in submit.shown_verbs()))
    machines = load_machines(Path(ROOT))
    check_machine(read, invocation.settings.machine.name, machines)
    if read.machine in machines:
        invocation = invocation.changed(machine=read.machine)
    return invocation, read


@click.command(
    cls=_Submit,
    context_settings={"ignore_unknown_options": True, "max_content_width": 100},
    epilog="Example: python3 submit.py jsc/run_training_jwb.sbatch --nodes=4 -- --steps 10000",
)
@click.argument("job", metavar="SITE/JOB.sbatch", shell_complete=complete("job"))
@submission_options
def submit(
    invocation: Invocation, job: str, typed: list[Option], arguments: tuple[str, ...], asked: Asked
) -> None:
    r"""Check a job script, estimate its cost and submit it.

    \b
    SITE/JOB.sbatch   the job script to submit; sbatch options follow it,
                      arguments of the job follow --
    SITE/JOB.salloc   a shell on a compute node, inside the environment

    Image and packages are checked first, and the options of sbatch by Slurm. The job uses the
    current configuration and code, frozen unless --live or jobs.freeze says otherwise, and the
    image and packages that are active when it starts. With --chain, each job resumes where the
    previous one reached its time limit. With --then, the site's evaluation job exports the newest
    checkpoint and evaluates it, once the training has completed. In a job array (--array), each
    task replaces @{FILE} in its arguments by a line of FILE; task 0 takes the first line.
    """
    invocation, read = read_job(invocation, job)
    request = request_of(invocation.environment("job"), read, typed, arguments, asked)
    script = render(invocation.title(f"submit.py {job}"), submit_lines(request))
    note = total_cost(request).words
    invocation.finish(script, _NAME, later=lambda: preview(request, invocation.title), note=note)
