"""The start of a job: its run's directory, and the script there that the job file sources."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.configuration.paths import Paths, check_roots, is_below
from lib.jobs.cost import hourly_cost
from lib.jobs.frozen_code import clone_of, frozen_names, repositories
from lib.jobs.request import processes_per_node, request_from_facts, run_name
from lib.jobs.sweep import kept_sweep
from lib.jobs.watcher import watch_limits
from lib.runtimes.choice import srun_lines
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.runtime import runtime_of
from lib.script.command import array, assign, call, comment, export, wrapped
from lib.script.errors import write_error
from lib.script.execute import make_directory
from lib.script.quoting import Expansion
from lib.script.records import read_record, readable_values, seconds_before
from lib.script.trust import check_trusted, is_own

_RUN = Expansion('"$RUN_DIR"')
_NOTHING = ("", "(null)")  # the latter is Slurm's


def check_own(paths: Paths, configuration: str) -> None:
    """Stop if others can change what a job reads; sbatch itself may have submitted it."""
    check_roots(paths)
    if is_below(configuration, str(paths.runs)):
        check_trusted(Path(configuration), paths.scratch_dir)


def make_run_directory(
    paths: Paths, facts: Mapping[str, str], cluster: str, *, restarted: bool
) -> Path:
    """Create the directory of a run, which no other run has and only its user can write to.

    Clusters that share a file system, such as JUWELS and JURECA, have jobs of the same ID. A
    requeued job keeps the newest one of its cluster.
    """
    make_directory(paths.runs)
    check_trusted(paths.runs, paths.scratch_dir)
    first, own = paths.runs / run_name(facts), None
    for number in itertools.count(1):
        directory = first.with_name(f"{first.name}.{number}") if number > 1 else first
        there = is_own(directory)
        if there and (directory / "record.json").exists():
            if read_record(directory / "record.json").get("cluster", "") == cluster:
                own = directory
            continue
        if restarted and own:
            return own
        try:
            directory.mkdir(mode=0o755, exist_ok=there)
        except FileExistsError:  # of a job that starts at the same time
            continue
        except OSError as error:
            hint = "make it writable, or set paths.scratch_dir in configuration.toml"
            message = f"cannot create the directory {directory}"
            raise write_error(paths.runs, message, hint, error) from error
        return directory
    raise AssertionError


def start_lines(
    env: Environment,
    run: Path,
    facts: Mapping[str, str],
    named: Mapping[str, str],
    messages: str,
    arguments: Sequence[str] = (),
) -> list[str]:
    """Return the lines of ``<run>/start.bash``; the record also gets what was pinned.

    After a line of its log that matches the messages, a job cannot continue.
    """
    settings, paths, machine = env.settings, env.paths, env.machine
    is_batch = facts.get("BatchFlag", "0") != "0"
    on_node = settings.environ.get("SLURM_GPUS_ON_NODE", "")
    chained = settings.environ.get("LONGSHIP_CHAINED_AFTER", "")
    record, filled = _record(env, run, facts, named), []
    task = settings.environ.get("SLURM_ARRAY_TASK_ID", "")
    sweep = kept_sweep(arguments, settings.environ.get("LONGSHIP_VALUES", "")) if task else None
    if sweep:
        filled, record["values"] = sweep.of_task(int(task)), call(*sweep.values(int(task)))
    jobs, origin = settings.configuration.jobs, settings.origins["jobs.silence"]
    restarts, silence = watch_limits(jobs, origin) if is_batch else (0, 0)
    is_watched, log = restarts > 0 or silence > 0, _file(facts, "StdOut")
    errors = _file(facts, "StdErr") or log  # another one with --error: it tells why the job ended
    stack = paths.root / "stacks" / settings.stack.name
    evaluates = (stack / "run_evaluation.sh").exists()
    exports = ['job_export "${JOB_ARGUMENTS[0]-}"'] if evaluates else []
    nodes = int(record["nodes"])
    spares = min(jobs.spare_nodes, nodes - 1) if restarts else 0
    record["spare_nodes"] = str(spares or "")
    limits = (restarts, spares, silence)
    return [
        *module_lines(machine, env.runtime),
        export("LONGSHIP_ROOT", paths.root),
        export("RUN_DIR", run),
        comment("shellcheck disable=SC2034  # for the job file"),
        assign("LAUNCHER", run / "launcher"),
        comment("shellcheck disable=SC2034"),
        assign("STACK_DIR", stack),
        *([call("job_keep_spares", str(nodes - spares))] if spares else []),
        *([array("JOB_ARGUMENTS", filled)] if filled else []),
        call("set_rendezvous", machine.rendezvous),
        call("job_set_shape", str(processes_per_node(facts, on_node, machine))),
        *srun_lines(env),
        *([call("job_label_output")] if is_batch else []),
        # also of an interactive job, from whose run another job exports a model: job_export
        f"if watch_is_child; then {'; '.join([*exports, 'return'])}; fi",
        wrapped(
            "code_record_begin", sys.executable or "python3", _RUN, *repositories(settings, paths)
        ),
        " \\\n    ".join(
            [
                call("run_begin", errors if is_batch else ""),
                *(call(*each) for each in record.items() if each[1] not in _NOTHING),
            ]
        ),
        *([call("job_check_previous", chained)] if chained else []),
        *([call("watch_run", *map(str, limits), log, messages)] if is_watched else exports),
    ]


def _file(facts: Mapping[str, str], name: str) -> str:
    """Return the path of a log, in which Slurm up to 24.11 leaves the name of the node open."""
    return facts.get(name, "").replace("%N", facts.get("BatchHost", "%N"))


def sampler_lines(env: Environment) -> list[str]:
    """Return the lines of ``<run>/sampler``; a container's daemon starts no child of a rank."""
    processes = "no" if runtime_of(env.runtime).DAEMON else "yes"
    seconds = str(env.settings.configuration.jobs.usage)
    return [call("usage_sample", seconds, processes, Expansion('"$@"'))]


def _record(
    env: Environment, run: Path, facts: Mapping[str, str], named: Mapping[str, str]
) -> dict[str, str]:
    """Return what the record says at the start."""
    settings, environ = env.settings, env.settings.environ
    request = request_from_facts(facts, environ.get("SLURM_GPUS_ON_NODE", ""))
    price = hourly_cost(request, settings.machine)
    earlier = readable_values(run / "record.json")  # of a requeued job
    return {
        "job": run_name(facts).partition("-")[0],
        "name": facts["JobName"],
        "cluster": environ.get("SLURM_CLUSTER_NAME", ""),
        "machine": settings.machine.name,
        "site": settings.machine.site_file,
        "project": settings.configuration.project.name,
        "stack": settings.stack.name,
        "repository": str(clone_of(settings, env.paths)),
        "code": frozen_names(settings),
        "runtime": env.runtime,
        **named,
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "nodes": str(request.nodes),
        "gpus": str(request.gpus),
        "time_limit": facts["TimeLimit"],
        "submitted": facts.get("SubmitTime", ""),
        "restarts": facts.get("Restarts", "0"),
        "excluded": facts.get("ExcNodeList", ""),
        "earlier_seconds": str(seconds_before(run, earlier)) if earlier else "",
        "attempts": earlier.get("attempts", ""),
        "log": _file(facts, "StdOut"),
        "goes_on_from": environ.get("LONGSHIP_CHAINED_AFTER", ""),
        "run_again": environ.get("LONGSHIP_RERUN", ""),
        "cost_per_hour": f"{price[0]:g}" if price else "",
        "cost_unit": price[1] if price else "",
    }
