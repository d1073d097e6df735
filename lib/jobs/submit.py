"""Jobs: the lines of `submit.py`."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.configuration.paths import make_lines
from lib.configuration.snapshot import resolved
from lib.configuration.training import hub_cache
from lib.jobs.checks import check_job, log_directories, log_path, stack_lines
from lib.jobs.cost import Cost, cost_of, priced_cores, round_up, together
from lib.jobs.job_files import JobFile
from lib.jobs.options import Option, combined, read_variables, same_gpus
from lib.jobs.request import Asked, Request
from lib.jobs.size import (
    check_required,
    gigabytes,
    limits_text,
    size_of_options,
    uses_one_thread,
)
from lib.runtimes.environment import Environment
from lib.runtimes.launch import check_lines
from lib.script.command import array, call, exports, text_below, wrapped
from lib.script.errors import LongshipError
from lib.script.hooks import hooks
from lib.script.output import json_object
from lib.script.quoting import Expansion, Word
from lib.script.trust import DIGITS

# what the job before was given is not for the next one
_FORGET = 'unset "${!LONGSHIP_JOB_@}"'


def request_of(
    env: Environment,
    job: JobFile,
    typed: Sequence[Option],
    arguments: tuple[str, ...] = (),
    asked: Asked | None = None,
    again: str = "",
) -> Request:
    """Check the values of a submission, and return it with what follows from them.

    The options are those of sbatch from the command line; again is the directory of a run that is
    re-run.
    """
    settings, machine, asked = env.settings, env.machine, asked or Asked()
    typed = same_gpus(job.header, typed)
    program = "SALLOC" if job.is_interactive else "SBATCH"
    own = [*job.header, *read_variables(settings.environ, program), *typed]
    number = settings.configuration.project.account if machine.accounts == "yes" else ""
    account = [Option("account", number)] if number and "account" not in combined(own) else []
    # Slurm names a job without a name after its file, or what salloc starts
    name = Option("job-name", "bash" if job.is_interactive else job.path.name)
    options = combined([name, *account, *own])
    size = size_of_options(options, machine)
    check_required(options, machine)
    _check_order(job, asked, options)
    # next to the run's directory, whose name it has
    file = "%A_%a-%x.log" if "array" in options else "%j-%x.log"
    request = Request(
        *(env, job, asked, again, typed, arguments, own, account, options),
        log=log_path(env.paths, options, options.get("output") or str(env.paths.runs / file)),
        size=size,
        cost=cost_of(settings, size, asked.chain),
        trained_on=size,
        first=arguments,
        code=[call("submission_use_code", env.paths.root)],
    )
    check_job(request)
    for check in hooks("check").values():
        request = check(request)
    _check_training(request)
    return request


def _check_order(job: JobFile, asked: Asked, options: Mapping[str, str]) -> None:
    if asked.chain > 1 and "array" in options:
        raise LongshipError(
            "--chain cannot be used with job arrays", "leave out --chain or --array"
        )
    if asked.after and "dependency" in options:
        raise LongshipError(
            f"--after and --dependency={options['dependency']} cannot be combined",
            f"type one: --dependency=afterok:{asked.after},{options['dependency']}",
        )
    if job.is_interactive and (asked.chain > 1 or asked.after or asked.as_json):
        raise LongshipError(
            f"{job.path} is interactive", "--chain, --after and --json require an .sbatch file"
        )


def _check_training(request: Request) -> None:
    """Stop if the settings of a training do not fit its size."""
    if request.job.step == "training":
        training = request.env.training
        overridden = any("parallel" in each for each in request.arguments)  # known to the stack
        if not request.size.unclear and not overridden:
            training.check_parallel(request.trained_on.gpus, request.trained_on.nodes)


def total_cost(first: Request) -> Cost:
    """Return the cost of a job and of those that are submitted with it."""
    return together([each.cost for each in (first, *first.then)])


def submit_lines(first: Request) -> list[str]:
    """Return the lines that check a job, print its cost and submit it."""
    jobs = [first, *first.then]
    asked, settings, paths = first.asked, first.env.settings, first.env.paths
    cost = total_cost(first)
    above = settings.configuration.jobs.ask_above
    asks = above > 0 and (cost.is_unclear or (cost.amount or 0) > above)
    logs = [name for each in jobs for name in log_directories(each) if name != str(paths.runs)]
    # the image of a run that is re-run has been checked
    unchecked = [each for each in jobs if each.job.needs_image and not each.again]
    return [
        *stack_lines(first),
        call("submission_begin", settings.machine.name, paths.root, sys.executable or "python3"),
        *([] if first.job.machine else [call("warn_of", *_own_script(first.job))]),
        *make_lines(paths),
        *(line for each in unchecked for line in check_lines(each.env)),
        *_data_lines(first),
        *([wrapped("directory_make", *dict.fromkeys(logs))] if logs else []),
        call("directory_check_room", paths.scratch_dir),
        *_kept(first),
        *first.lines,
        "",
        *(line for each in jobs for line in _options(each)),
        *([call("submission_check_after", asked.after, paths.runs)] if asked.after else []),
        *(_test_line(each) for each in jobs),
        *(line for each in jobs for line in _memory_lines(each)),
        call("note", cost.words),
        *([call("cost_confirm", cost.asked)] if asks and not asked.agreed else []),
        *first.code,
        *_start(jobs),
    ]


def _own_script(job: JobFile) -> tuple[str, str]:
    """Say that a job script starts nothing in the environment, and how it would."""
    return (
        f"{job.path} runs outside the environment, and submit.py status will not know its run",
        "add start_job to it: docs/how-to/your_own_training.md",
    )


def _test_line(request: Request) -> str:
    """Return the line that lets Slurm check a job, with the limits that may explain its refusal."""
    limits = limits_text(request.size, request.env.machine)
    return call("submission_test", limits, *request.words)


def _memory_lines(request: Request) -> list[str]:
    """Return the line that asks Slurm whether a job gets more cores for its memory, if that costs.

    Memory of GPUs gives it none.
    """
    size, options = request.size, request.options
    of_core, of_node = (gigabytes(options.get(each, "")) or 0 for each in ("mem-per-cpu", "mem"))
    memory = max(of_core * size.cores, of_node * size.nodes)
    cores = priced_cores(size, request.env.machine)
    if not memory or math.isinf(cores) or size.unclear:
        return []
    numbers = (str(math.ceil(1024 * memory)), str(cores), "1" if uses_one_thread(options) else "")
    return [call("cost_check_memory", *numbers, *size.partitions)]


def _data_lines(request: Request) -> list[str]:
    """Return the lines that look for what the settings name, unless a job before makes it."""
    env, step = request.env, request.job.step
    if not step or request.asked.after or "dependency" in request.options:
        return []
    environment = env.settings.configuration.environment
    cache = hub_cache(environment, env.paths)
    if "HF_HOME" not in environment.set:  # that of the caller is kept inside
        cache = Path(env.settings.environ.get("HF_HOME") or cache)
    return [
        *(call("setting_check_path", *each) for each in env.training.patterns(step)),
        *(wrapped("setting_check_cache", *each) for each in env.training.repos(cache, step)),
    ]


def _kept(request: Request) -> list[str]:
    """Return the lines that keep the configuration as it is; it may change while the job waits."""
    settings, options = request.env.settings, (*request.account, *request.typed)
    kept = request.env.paths.runs / "configurations"
    return [
        *keep_lines("LONGSHIP_CONFIGURATION", kept, resolved(settings), request.prefix),
        exports(
            LONGSHIP_STACK=settings.stack.name,
            LONGSHIP_JOB_OPTIONS="\n".join(call(each.word) for each in options),
        ),
    ]


def keep_lines(variable: str, directory: Path, text: str, prefix: str = "") -> list[str]:
    """Return the lines that keep a file for the jobs, and export where it is.

    The text is below the plan, in a variable with the prefix.
    """
    file = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}.json"
    name = f"{prefix}{variable.lower()}"
    return [
        text_below(name, text, f"What {variable} names."),
        call("submission_keep", variable, file, Expansion(f'"${name}"')),
    ]


def _options(request: Request) -> list[str]:
    """Return the lines that set the arrays ``options`` and ``job``."""
    job, account, own = request.job, request.account, combined(request.own)
    typed = request.typed
    if job.is_interactive:  # salloc reads no header
        typed = [Option(name, value or None) for name, value in own.items()]
        typed = [each for each in typed if each.is_read]
    options = [each.word for each in (*account, *typed)]
    if not job.is_interactive:
        if "output" not in own:
            options.append(f"--output={request.log}")
        if request.asked.after:
            after = f"--dependency=afterok:{request.asked.after}"
            options += [after, "--kill-on-invalid-dep=yes"]
    words: list[Word] = [job.path, *request.arguments]
    return [array(f"{request.prefix}options", options), array(f"{request.prefix}job", words)]


def _start(jobs: list[Request]) -> list[str]:
    first, *then = jobs
    if first.job.is_interactive:
        return ['command_exec salloc "${options[@]}" bash "${job[@]}"']
    count = Expansion("${#options[@]}")
    lines = [call("submission_send", str(first.asked.chain), count, *first.words)]
    for each in then:
        trained = (each.env.paths.runs, first.size.name)
        lines += [_FORGET, *_kept(each), call(each.send, *trained, *each.words)]
    if first.asked.as_json:
        lines.append(call("jobs_print_json", *map(_row, jobs)))
    show = "jobs_print_commands" if first.asked.as_json else "jobs_print"
    return [*lines, call(show, first.named_log), *first.sent]


def _row(request: Request) -> str:
    """Return what --json prints of a job, as a JSON object with Slurm's placeholders."""
    amount, unit = request.cost.amount, request.cost.unit
    each = None if amount is None else round_up(amount / request.asked.chain, 2)
    row = {"id": "%j", "log": request.named_log, "cost_at_most": each, "cost_unit": unit}
    return json_object(row)
