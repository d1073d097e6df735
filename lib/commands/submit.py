"""The options of submit.py."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from lib import ROOT
from lib.commands import Call, note_lost_names
from lib.commands.options import WrongCall, complete, script_options
from lib.configuration.partitions import hours
from lib.configuration.sites import load_machines
from lib.configuration.snapshot import resolved
from lib.doctor.explain import final_messages, findings_of
from lib.jobs import rerun, start
from lib.jobs import submit as submission
from lib.jobs.checks import check_script
from lib.jobs.frozen_code import with_frozen_code
from lib.jobs.job_files import check_machine, evaluation_file, read_job_file
from lib.jobs.launcher import job_launcher
from lib.jobs.options import is_option
from lib.jobs.report import report
from lib.jobs.report_page import page_lines, page_of, synced_runs
from lib.jobs.request import slurm_facts
from lib.jobs.status import status, status_as_json
from lib.jobs.usage import recorded_values
from lib.jobs.watcher import decide as decide_on
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.command import call as line
from lib.script.errors import LongshipError, offline_modes, print_messages
from lib.script.execute import output, write_file
from lib.script.output import Report
from lib.script.records import read_record, readable_values, seconds_between
from lib.script.render import render

_NAME = "submit.py"


class _Command(click.Command):
    """A command whose own options may stand among those of sbatch, up to ``--``."""

    def main(self, args: Any = None, prog_name: Any = None, **options: Any) -> Any:
        """Leave `begin`, `decide` and `end`, which only jobs run, to their own commands."""
        words = list(sys.argv[1:] if args is None else args)
        for each in (begin, decide, end):
            if words[:1] == [each.name]:
                return each.main(words[1:], f"{prog_name} {each.name}", **options)
        return super().main(args, prog_name, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let click leave the options of sbatch among the words, and what follows ``--``."""
        end = args.index("--") if "--" in args else len(args)
        typed, after = list(args[:end]), args[end:]
        found = super().parse_args(ctx, list(typed))
        first = ctx.params.get("job") or ""
        if is_option(first):
            job = next((each for each in typed if each.endswith((".sbatch", ".salloc"))), "")
            words = [each for each in typed if each != job]
            raise WrongCall(
                f"{first} is an option of sbatch, which must follow the job script",
                line("python3", _NAME, job or "SITE/JOB.sbatch", *words, *after),
            )
        if first.startswith("-"):
            own = [name for each in self.params for name in each.opts]
            raise click.NoSuchOption(first.partition("=")[0], possibilities=own, ctx=ctx)
        ctx.params["words"] += tuple(after)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list:
        """Offer the options of sbatch too, behind a job."""
        return super().shell_complete(ctx, incomplete) + complete("option")(ctx, self, incomplete)


@click.command(
    cls=_Command,
    context_settings={"ignore_unknown_options": True, "max_content_width": 100},
    epilog="Example: python3 submit.py jsc/run_training_jwb.sbatch --nodes=4 -- --steps 10000",
)
@click.argument(
    "job",
    metavar="SITE/JOB.sbatch | status | report [RUN...] | sync [RUN...] | rerun RUN",
    shell_complete=complete("job"),
)
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[SBATCH_OPTION...] [-- ARGUMENT...]",
    shell_complete=complete("words"),
)
@click.option(
    "--chain", type=click.IntRange(1, 100), default=1, metavar="N", help="Submit a chain of N jobs."
)
@click.option(
    "--after",
    default="",
    metavar="JOB",
    help="Start after JOB has completed successfully.",
    shell_complete=complete("job_id"),
)
@click.option(
    "--then",
    default="",
    metavar="STACK",
    help="Evaluate the trained model with STACK, such as evaluate.",
    shell_complete=complete("stack"),
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    metavar="N",
    help="Restart a failed or hanging job step, N times at most (default: jobs.restarts).",
)
@click.option(
    "--spare-nodes",
    type=click.IntRange(min=0),
    metavar="N",
    help="With restarts: keep N of the nodes to replace faulty ones (default: jobs.spare_nodes).",
)
@click.option("--live", is_flag=True, help="Run from the clone, with later changes of the code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="With report: print CSV.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m"]),
    metavar="YYYY-MM",
    help="With report: leave out runs that began before this month.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="DIR",
    help="With report: also read the runs of a colleague; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask to confirm the cost.")
@script_options
def submit(
    call: Call,
    job: str,
    words: tuple[str, ...],
    chain: int,
    after: str,
    then: str,
    restarts: int | None,
    spare_nodes: int | None,
    live: bool,
    as_json: bool,
    as_csv: bool,
    since: datetime | None,
    runs: tuple[Path, ...],
    yes: bool,
) -> None:
    r"""Check a job script, estimate its cost and submit it.

    \b
    SITE/JOB.sbatch   the job script to submit; sbatch options follow it,
                      arguments of the job follow --
    SITE/JOB.salloc   a shell on a compute node, inside the environment
    status            your jobs: state, time, cost so far, last line of the log
    report            GPU-hours, utilisation, energy and cost of all runs, by
                      user, project, month and stack
    report RUN...     write an HTML page about RUN, or several to compare: loss,
                      speed, usage, code, findings; --output FILE names it
    sync [RUN...]     upload what RUN, or all runs, have recorded offline for
                      W&B; with --follow, each minute until the jobs have ended
    rerun RUN         re-run RUN with its recorded script, configuration, code,
                      image and arguments

    Image, packages, partition, time limit, GPUs, memory and account are checked first. The job uses
    the current configuration and code, frozen unless --live or jobs.freeze says otherwise, and the
    image and packages that are active when it starts. With --chain, each job resumes where the
    previous one reached its time limit. With --then, the site's evaluation job exports the newest
    checkpoint and evaluates it, once the training has completed. In a job array (--array), each
    task replaces @{FILE} in its arguments by a line of FILE; task 0 takes the first line.
    """
    given = {"chain": chain, "after": after, "agreed": yes, "live": live, "as_json": as_json}
    given.update(restarts=restarts, spare_nodes=spare_nodes)
    if job == "status" and words:
        raise click.UsageError(f'unexpected argument for status: "{words[0]}"')
    if job != "report" and (as_csv or since or runs):
        name = "--csv" if as_csv else "--since" if since else "--runs"
        raise click.UsageError(f"{name} requires report")
    if then and not job.endswith(".sbatch"):
        raise click.UsageError("--then requires the job script of a training")
    if job == "status":
        shown = status_as_json if as_json else status
        call.show("submit.py status", lambda: shown(call.paths.runs))
        return
    if job == "report" and words:
        if as_csv or since or as_json or runs:
            raise click.UsageError("--csv, --json, --runs and --since cannot be combined with RUN")
        page.main(list(words), "submit.py report", standalone_mode=False, obj=call)
        return
    if job == "sync":
        sync.main(list(words), "submit.py sync", standalone_mode=False, obj=call)
        return
    if job == "report":
        form = "csv" if as_csv else "json" if as_json else "table"
        call.show("submit.py report", lambda: _report(call.paths.runs, since, form, runs))
        return
    if job == "rerun":
        call, lines = _rerun(call, words, given)
    else:
        call, lines = _submit(call, job, words, then, given)
    call.finish(render(call.title(f"submit.py {job}"), lines), _NAME)


def _report(runs: Path, since: datetime | None, form: str, others: tuple[Path, ...]) -> Report:
    """Return the report on all runs; tell what it lacks on standard error."""
    shown, problems = report(runs, f"{since:%Y-%m}" if since else "", form, others)
    for each in problems:
        print_messages(warning=str(each), hint=each.hint)
    return shown


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--output", metavar="FILE", default="")
@click.pass_obj
def page(call: Call, runs: tuple[str, ...], output: str) -> None:
    """Write a page about RUN, or several to compare: loss, speed, usage, code, findings in the log.

    The page is one HTML file, by default report-RUN.html in the run directory.
    """
    trainings, file = page_of(call.paths, runs, output)
    env = call.environment()
    lines = page_lines(env, trainings, file, findings_of)
    program = str(call.paths.root / "lib/jobs/inside/report_page.py")
    command = ("python3", program, str(file))
    call.finish(render(call.title("submit.py report"), lines), _NAME, command)


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1)
@click.option("--follow", is_flag=True)
@click.pass_obj
def sync(call: Call, runs: tuple[str, ...], follow: bool) -> None:
    """Upload the offline runs of W&B of RUN, by default of all your runs.

    With --follow, repeat it each minute until the jobs have ended.
    """
    if follow and not runs:
        raise WrongCall("missing argument: RUN", f"python3 {_NAME} sync RUN --follow")
    env = call.environment()
    lines = run_lines(env, online=True)
    program = str(call.paths.root / "lib/jobs/inside/sync_wandb.bash")
    install = offline_modes(" && ".join(env.packages.steps))
    names = [str(each) for each in synced_runs(call.paths, runs)]
    command = ("bash", program, "follow" if follow else "once", install, *names)
    call.finish(render(call.title("submit.py sync"), lines), _NAME, command)


def _submit(
    call: Call, name: str, words: tuple[str, ...], then: str, given: dict[str, Any]
) -> tuple[Call, list[str]]:
    """Return the call for the job's own machine, and its lines."""
    typed, arguments = submission.split_typed(words)
    job = read_job_file(Path(ROOT), name)
    machines = load_machines(Path(ROOT))
    check_machine(Path(ROOT), job, call.settings.machine.name, machines)
    if job.machine in machines:
        call = call.changed(machine=job.machine)
    wanted = submission.Submission(job, typed, arguments, **given)
    env = call.environment("job")
    following = _evaluation(call.changed(stack=then), wanted, env) if then else None
    return call, submission.submit_lines(env, wanted, following)


def _evaluation(
    call: Call, trained: submission.Submission, env: Environment
) -> tuple[Environment, submission.Submission]:
    """Return the job that evaluates what another one trains, and its environment."""
    if trained.job.script != "run_training.sh":
        raise LongshipError(
            f"--then requires a training, but {trained.job.path} does not start run_training.sh",
            f"to start another job after it: python3 {_NAME} SITE/JOB.sbatch --after JOB",
        )
    check_script(env.settings, "--then", "export.sh")
    job = evaluation_file(Path(ROOT), env.machine)
    account = [each for each in trained.typed if each.name == "account"]
    return call.environment("job"), submission.Submission(job, account, ())


def _rerun(call: Call, words: tuple[str, ...], given: dict[str, Any]) -> tuple[Call, list[str]]:
    """Return the call with the run's own configuration, and its lines."""
    if not words or words[0].startswith("-"):
        raise WrongCall(
            "missing argument: RUN",
            "python3 submit.py rerun RUN; list runs: python3 submit.py status",
        )
    typed, arguments = submission.split_typed(words[1:])
    run = rerun.recorded_run(call.paths, words[0])
    rerun.check_own(run)
    job, options, recorded = rerun.recorded_job(run)
    rerun.check_clone(run, call.paths.root)
    rerun.check_still_there(run)
    record = read_record(run / "record.json")  # the environment would win over the file
    chosen = {key: call.options[key] or record.get(key, "") for key in ("machine", "stack")}
    call = call.changed(configuration=str(run / "configuration.json"), **chosen)
    wanted = submission.Submission(
        job, [*options, *typed], arguments or recorded, again=str(run), **given
    )
    return call, submission.submit_lines(call.environment("job"), wanted)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("machine")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def begin(machine: str, arguments: tuple[str, ...]) -> None:
    """Start the run of a job with its ARGUMENTS; start_job in job scripts runs this command.

    It reads the output of `scontrol show job --oneliner JOB` from standard input, and the
    configuration that submit.py kept for the job ($LONGSHIP_CONFIGURATION, JSON; without it,
    configuration.toml). It pins the active image and packages, or those of the run that is re-run,
    and creates the run directory: launcher, configuration.json, slurm.txt, and start.bash, which
    the job script sources. It prints the path of that directory.
    """
    call = Call.read({"machine": machine}, dry_run=False)
    given = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    text = given.decode(errors="surrogateescape")
    facts = slurm_facts(text, call.environ.get("SLURM_JOB_NAME", ""))
    note_lost_names(call.environ)
    env = call.environment("job")
    start.check_own(env.paths, call.environ.get("LONGSHIP_CONFIGURATION", ""))
    restarted = facts.get("Restarts", "0") != "0"
    cluster = call.environ.get("SLURM_CLUSTER_NAME", "")
    run = start.make_run_directory(env.paths, facts, cluster, restarted=restarted)
    write_file(run / "slurm.txt", text)
    write_file(run / "configuration.json", resolved(env.settings))
    title = call.title(f"launcher of job {run.name}; arguments: the command")
    env = with_frozen_code(env, run)
    named = job_launcher(env, run, job=facts["JobId"], restarted=restarted, title=title)
    if env.is_measured:
        title = call.title(f"sampler of job {run.name}; arguments: RANK STEP, process IDs")
        write_file(run / "sampler", render(title, start.sampler_lines(env)))
    env = env._replace(held=named)
    lines = start.start_lines(env, run, facts, named, final_messages(), arguments)
    write_file(
        run / "start.bash", render(call.title(f"start of job {run.name}"), lines, sourced=True)
    )
    click.echo(run)


@click.command()
@click.argument("run", type=Path)
@click.argument("code", type=int)
@click.argument("restarts", type=int)
@click.argument("spares", type=int)
def decide(run: Path, code: int, restarts: int, spares: int) -> None:
    """Print what follows from the exit CODE of a job step, after which RESTARTS are allowed.

    Four values, each followed by a zero byte: again, requeue, next or stop; its line for the log;
    the lines of all attempts; if a faulty node is to be replaced, the nodes that the job must not
    get, separated by commas. SPARES nodes can be replaced within the job, but not the first one,
    which runs the job script.
    """
    from lib.doctor.restart import end_of_step  # only a failure needs it

    record = readable_values(run / "record.json")
    nodes = output(["scontrol", "show", "hostnames", record["nodelist"]], 60).text.split()
    ended = end_of_step(Path(record["log"]), code, nodes)
    earlier = [each for each in record.get("attempts", "").split("\n") if each]
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    limit = hours(record["time_limit"], "the time limit of the job")
    left = 3600 * limit - seconds_between(record["started"], now)
    spares = 0 if nodes[0] in ended.nodes else spares
    action, line = decide_on(ended, earlier, restarts, left, spares)
    replaced = ended.nodes and action != "stop"
    excluded = [record.get("excluded", ""), *ended.nodes] if replaced else []
    line = f"{now} {line}"
    _write_values([action, line, "\n".join([*earlier, line]), ",".join(filter(None, excluded))])


@click.command()
@click.argument("run", type=Path)
def end(run: Path) -> None:
    """Print names and values, each followed by a zero byte, for the record of a job that ends."""
    _write_values(recorded_values(run, readable_values(run / "record.json")))


def _write_values(values: list[str]) -> None:
    text = "".join(f"{each}\0" for each in values)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
