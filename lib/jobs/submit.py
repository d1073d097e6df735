"""Jobs: the lines of `submit.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lib.configuration.paths import make_lines
from lib.configuration.schema import Jobs
from lib.configuration.snapshot import resolved
from lib.configuration.training import hub_cache
from lib.jobs.checks import check_job, log_directories, log_path, stack_lines
from lib.jobs.cost import Cost, cost_of, round_up, together
from lib.jobs.frozen_code import freeze_lines
from lib.jobs.job_files import JobFile
from lib.jobs.options import Option, combined, read_options, read_variables, same_gpus
from lib.jobs.request import Request, check_request, request_from_options
from lib.jobs.sweep import Sweep, read_sweep
from lib.jobs.watcher import watch_limits, with_restarts
from lib.runtimes.environment import Environment
from lib.runtimes.launch import check_lines
from lib.script.command import array, call, comment, export, wrapped
from lib.script.errors import LongshipError, printable
from lib.script.output import json_object
from lib.script.quoting import Expansion, Word


class Submission(NamedTuple):
    """What the user asked for."""

    job: JobFile
    typed: list[Option]  # sbatch options from the command line
    arguments: tuple[str, ...]  # of the job
    chain: int = 1  # number of jobs, each of which resumes the previous one
    after: str = ""  # job that must complete first
    restarts: int | None = None  # of a failed step, instead of jobs.restarts
    spare_nodes: int | None = None  # instead of jobs.spare_nodes
    agreed: bool = False  # do not ask about the cost
    again: str = ""  # directory of the run that is re-run
    live: bool = False  # run from the clone, not from frozen code
    as_json: bool = False


class _Job(NamedTuple):
    """A submission whose values have been checked."""

    env: Environment
    wanted: Submission
    request: Request
    trained_on: Request  # without spare nodes
    given: Mapping[str, str]  # all options by long name
    own: list[Option]
    account: list[Option]
    log: str  # with Slurm's placeholders
    sweep: Sweep
    cost: Cost
    prefix: str = ""  # of the arrays with its options and arguments

    @property
    def words(self) -> tuple[Word, ...]:
        """The arguments of sbatch."""
        arrays = (f"{self.prefix}options", f"{self.prefix}job")
        return tuple(Expansion(f'"${{{each}[@]}}"') for each in arrays)


def submit_lines(
    env: Environment, wanted: Submission, then: tuple[Environment, Submission] | None = None
) -> list[str]:
    """Return the lines that check a job, print its cost and submit it.

    Then is the job that evaluates what this one trains, which is submitted with it.
    """
    first = _checked(env, wanted)
    jobs = [first, *([_checked(*then)._replace(prefix="then_")] if then else [])]
    if then and "array" in first.given:
        raise LongshipError("--then cannot be used with job arrays", "leave out --then or --array")
    env, wanted, paths, sweep = first.env, first.wanted, env.paths, first.sweep
    cost = together([each.cost for each in jobs])
    asks = 0 < env.settings.configuration.jobs.ask_above < (cost.amount or 0)
    logs = [name for each in jobs for name in log_directories(paths, each.given, each.log)]
    # rerun.py has checked the image of a run
    unchecked = [each for each in jobs if each.wanted.job.needs_image and not each.wanted.again]
    evaluated = then[0].settings.stack.name if then else ""
    return [
        *stack_lines(env, wanted.job, first.trained_on, sweep.first, evaluated),
        call("slurm_check", env.machine.name),
        call("check_python", paths.root),
        *make_lines(paths),
        call("directory_make", paths.runs),
        *(line for each in unchecked for line in check_lines(each.env)),
        *_data_lines(env, wanted, first.given),
        wrapped("directory_make", *dict.fromkeys(logs)),
        call("directory_check_room", paths.scratch_dir),
        call("cd", paths.root),
        *_kept(first),
        # what another job has, in which this is typed, is not for this one
        "unset LONGSHIP_CHAINED_AFTER LONGSHIP_RERUN LONGSHIP_VALUES",
        *([export("LONGSHIP_RERUN", wanted.again)] if wanted.again else []),
        *(_keep("LONGSHIP_VALUES", paths.runs / "values", sweep.kept) if sweep.kept else []),
        *([call("note", printable(sweep.about))] if sweep.lines else []),
        "",
        *(line for each in jobs for line in _options(each)),
        *([call("submission_check_after", wanted.after, paths.runs)] if wanted.after else []),
        *(call("submission_test", *each.words) for each in jobs),
        call("note", cost.words),
        *([call("cost_confirm", cost.text)] if asks and not wanted.agreed else []),
        *_code_lines(env, wanted),
        *_start(jobs),
    ]


def _checked(env: Environment, wanted: Submission) -> _Job:
    """Check the values of a submission, and return it with what follows from them."""
    paths, job = env.paths, wanted.job
    # the key is for trainings, also those of the user's own scripts; other jobs often have one node
    trains = job.script in ("", "run_training.sh") and not job.serves
    spares = wanted.spare_nodes if trains else wanted.spare_nodes or 0
    restarts = (wanted.restarts or 0) if job.serves else wanted.restarts
    # a server prints nothing while nobody uses it, and preprocess_data.py nothing while it works
    silent = job.serves or (job.step == "data" and not env.settings.configuration.jobs.silence)
    settings = with_restarts(env.settings, restarts, spares, "0" if silent else None)
    env, machine = env._replace(settings=settings), settings.machine
    wanted = wanted._replace(typed=same_gpus(job.header, wanted.typed))
    variables = read_variables(settings.environ, "SALLOC" if job.is_interactive else "SBATCH")
    own = [*job.header, *variables, *wanted.typed]
    if settings.configuration.jobs.restarts and not job.is_interactive:
        # its watcher can requeue the job; the log then continues
        names = {each.name for each in own}
        more = [Option("requeue", None), Option("open-mode", "append")]
        more = [each for each in more if not {each.name, f"no-{each.name}"} & names]
        own, wanted = [*own, *more], wanted._replace(typed=[*wanted.typed, *more])
    number = settings.configuration.project.account if machine.accounts == "yes" else ""
    account = [Option("account", number)] if number and "account" not in combined(own) else []
    # Slurm names a job without a name after its file, or what salloc starts
    name = Option("job-name", "bash" if job.is_interactive else job.path.name)
    given = combined([name, *account, *own])
    request = request_from_options(given, machine)
    check_request(request, given, machine)
    _check_order(wanted, given)
    trained_on = request
    if settings.configuration.jobs.spare_nodes and not job.is_interactive:
        trained_on = _without_spares(request, settings.configuration.jobs, given)
    # next to the run's directory, whose name it has
    file = "%A_%a-%x.log" if "array" in given else "%j-%x.log"
    log = log_path(paths, given, given.get("output") or str(paths.runs / file))
    _check_watched(env, job, given, log)
    typed = [each.word for each in wanted.typed]
    sweep = read_sweep(wanted.arguments, given.get("array", ""))
    check_job(env, job, given, [*typed, *wanted.arguments, *sweep.words], log)
    if job.step == "training":
        set_by_user = settings.configuration.environment.set
        env.training.check_parallel(trained_on.gpus, trained_on.nodes)
        env.training.check_templates(paths.root, settings.stack.name, set_by_user)
    cost = cost_of(settings, request, wanted.chain)
    return _Job(env, wanted, request, trained_on, given, own, account, log, sweep, cost)


def _data_lines(env: Environment, wanted: Submission, given: Mapping[str, str]) -> list[str]:
    """Return the lines that look for what the settings name, unless a job before makes it."""
    step = wanted.job.step
    if not step or wanted.after or "dependency" in given:
        return []
    cache = hub_cache(env.settings.configuration.environment, env.paths)
    return [
        *(call("setting_check_path", *each) for each in env.training.patterns(step)),
        *(wrapped("setting_check_cache", *each) for each in env.training.repos(cache, step)),
    ]


def _check_order(wanted: Submission, given: Mapping[str, str]) -> None:
    if wanted.chain > 1 and "array" in given:
        raise LongshipError(
            "--chain cannot be used with job arrays", "leave out --chain or --array"
        )
    if wanted.after and "dependency" in given:
        raise LongshipError(
            f"--after and --dependency={given['dependency']} cannot be combined",
            f"type one: --dependency=afterok:{wanted.after},{given['dependency']}",
        )
    batch_only = wanted.chain > 1 or wanted.after or wanted.restarts or wanted.as_json
    batch_only = batch_only or wanted.spare_nodes
    if wanted.job.is_interactive and batch_only:
        raise LongshipError(
            f"{wanted.job.path} is interactive",
            "--chain, --after, --restarts, --spare-nodes and --json require an .sbatch file",
        )


def _check_watched(env: Environment, job: JobFile, given: Mapping[str, str], log: str) -> None:
    """Stop if the watcher, which reads one log, would take errors in another one for silence."""
    if job.is_interactive or not given.get("error"):
        return
    limits = watch_limits(env.settings.configuration.jobs, env.settings.origins["jobs.silence"])
    if any(limits) and log_path(env.paths, given, given["error"]) != log:
        raise LongshipError(
            f"--error={given['error']} cannot be combined with restarts or jobs.silence",
            "leave out --error, also in the job script: the log then contains the errors too",
        )


def _without_spares(request: Request, jobs: Jobs, given: Mapping[str, str]) -> Request:
    """Return the request without its spare nodes; srun then knows only what is given per node."""
    if not jobs.restarts:
        raise LongshipError("spare nodes require restarts", "add --restarts=3, or --spare-nodes=0")
    for name in ("gpus", "ntasks"):
        if name in given:
            raise LongshipError(
                f"--{name} and spare nodes cannot be combined",
                f"request --{name}-per-node instead, or add --spare-nodes=0",
            )
    nodes = request.nodes - jobs.spare_nodes
    if nodes < 1:
        raise LongshipError(
            f"no node to train on: {request.nodes} requested, {jobs.spare_nodes} of them spare",
            f"request more: --nodes={jobs.spare_nodes + 1}; or add --spare-nodes=0",
        )
    return request._replace(nodes=nodes, gpus=request.gpus // request.nodes * nodes)


def _kept(job: _Job) -> list[str]:
    """Return the lines that keep the configuration as it is; it may change while the job waits."""
    settings, options = job.env.settings, (*job.account, *job.wanted.typed)
    return [
        *_keep("LONGSHIP_CONFIGURATION", job.env.paths.runs / "configurations", resolved(settings)),
        export("LONGSHIP_STACK", settings.stack.name),
        export("LONGSHIP_OPTIONS", "\n".join(call(each.word) for each in options)),
    ]


def _keep(variable: str, directory: Path, text: str) -> list[str]:
    """Return the lines that keep a file for the jobs, and export where it is."""
    file = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    quiet = comment("shellcheck disable=SC2016  # the values as they are")
    return [quiet, call("submission_keep", variable, file, text)]


def _code_lines(env: Environment, wanted: Submission) -> list[str]:
    """Return the lines that freeze the code of a job, or let it run from the clone.

    A shell or an editor on a compute node is for working in the clone; a job that builds something
    writes lock files into it.
    """
    job = wanted.job
    if wanted.again and not wanted.live:
        return freeze_lines(env, wanted.again)
    edited = job.is_interactive or job.serves == "ssh" or not job.needs_image
    if wanted.live or edited or not env.settings.configuration.jobs.freeze:
        return [call("code_live", env.paths.root)]
    return freeze_lines(env)


def _options(job: _Job) -> list[str]:
    """Return the lines that set the arrays ``options`` and ``job``."""
    wanted, account, own = job.wanted, job.account, combined(job.own)
    options = [each.word for each in (*account, *wanted.typed)]
    if wanted.job.is_interactive:  # salloc reads no header
        options = [Option(name, value or None).word for name, value in own.items()]
        options = [each.word for each in account] + options
    else:
        if "output" not in own:
            options.append(f"--output={job.log}")
        if wanted.after:
            options += [f"--dependency=afterok:{wanted.after}", "--kill-on-invalid-dep=yes"]
    words: list[Word] = [wanted.job.path, *wanted.arguments]
    return [array(f"{job.prefix}options", options), array(f"{job.prefix}job", words)]


def _start(jobs: list[_Job]) -> list[str]:
    first, *then = jobs
    wanted = first.wanted
    if wanted.job.is_interactive:
        return ['command_exec salloc "${options[@]}" bash "${job[@]}"']
    count = Expansion("${#options[@]}")
    lines = [call("submission_send", str(wanted.chain), count, *first.words)]
    for each in then:
        trained = (each.env.paths.runs, first.request.name)
        lines += [*_kept(each), call("submission_send_then", *trained, *each.words)]
    if wanted.as_json:
        lines.append(call("jobs_print_json", *map(_row, jobs)))
    else:
        lines.append(call("jobs_print_ids"))
    lines.append(call("jobs_print_commands", _named_log(first)))
    if wanted.again:
        lines.append(call("pins_restore", wanted.again))
    return lines


def _named_log(job: _Job) -> str:
    return job.log.replace("%x", job.request.name)


def _row(job: _Job) -> str:
    """Return what --json prints of a job, as a JSON object with Slurm's placeholders."""
    amount, unit = job.cost.amount, job.cost.unit
    each = None if amount is None else round_up(amount / job.wanted.chain, 2)
    row = {"id": "%j", "log": _named_log(job), "cost_at_most": each, "cost_unit": unit}
    return json_object(row)


def split_typed(words: Sequence[str]) -> tuple[list[Option], tuple[str, ...]]:
    """Separate sbatch options from arguments of the job, which follow ``--``."""
    before, after = list(words), []
    if "--" in before:
        place = before.index("--")
        before, after = before[:place], before[place + 1 :]
    return read_options(before), tuple(after)
