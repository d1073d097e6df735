"""The start of a job: its run's directory, and the script there that the job file sources."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lib.configuration.paths import Paths, check_roots, is_below
from lib.configuration.schema import entry_name
from lib.jobs.cost import hourly_cost
from lib.jobs.runs import steps_of_chain
from lib.jobs.size import Size, processes_per_node, run_name, size_of_facts
from lib.runtimes.choice import srun_lines
from lib.runtimes.environment import Environment, module_lines
from lib.script.command import array, call, export, wrapped
from lib.script.errors import write_error
from lib.script.execute import make_directory
from lib.script.hooks import hooks
from lib.script.quoting import Expansion
from lib.script.records import first_start, read_record, readable_values, seconds_before
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


class Start(NamedTuple):
    """The start of a job: its launcher, its record and its start.bash follow from it.

    Extras return it with what they add.
    """

    env: Environment
    run: Path
    facts: Mapping[str, str]  # what Slurm reports of the job
    arguments: Sequence[str]
    repositories: Mapping[str, Path]  # this clone and the external repositories, to be recorded
    again: Path | None = None  # the run whose launcher is taken
    record: Mapping[str, str] = {}  # keys of extras
    scripts: Mapping[str, tuple[str, list[str]]] = {}  # in the run: arguments for its title, lines
    variables: tuple[str, ...] = ()  # lines that set variables of the job script
    step: tuple[str, ...] = ()  # lines right before those of the job script
    begun: tuple[str, ...] = ()  # lines after the beginning of the run; they need not return
    at_end: tuple[str, ...] = ()  # functions of bash that the end calls with the exit code

    @property
    def size(self) -> Size:
        """What the job was allocated."""
        return size_of_facts(self.facts, self.env.settings.environ.get("SLURM_GPUS_ON_NODE", ""))

    @property
    def is_batch(self) -> bool:
        """Whether it has a log, and not a terminal."""
        return self.facts.get("BatchFlag", "0") != "0"

    @property
    def log(self) -> str:
        """The path of its log."""
        return self.file("StdOut")

    @property
    def stack(self) -> Path:
        """The directory of its stack."""
        return self.env.paths.root / "stacks" / self.env.settings.stack.name

    def usage(self, name: str) -> str:
        """Return what a script of the run is for, as its title says."""
        known = {"launcher": "the command", "start.bash": ""}
        words = known[name] if name in known else self.scripts[name][0]
        what = "start" if name == "start.bash" else name
        return f"{what} of job {self.run.name}" + (f"; arguments: {words}" if words else "")

    def file(self, name: str) -> str:
        """Return the path of a log, in which Slurm up to 24.11 leaves the name of the node open."""
        return self.facts.get(name, "").replace("%N", self.facts.get("BatchHost", "%N"))


def repositories_of(env: Environment) -> dict[str, Path]:
    """Return the directories of this clone and of each external repository by name."""
    names = [entry_name(each) for each in env.settings.configuration.repositories]
    return {"longship": env.paths.root, **{each: env.paths.repositories / each for each in names}}


def start_of(
    env: Environment, run: Path, facts: Mapping[str, str], arguments: Sequence[str] = ()
) -> Start:
    """Return the start of a job, with what the extras add."""
    found = Start(env, run, facts, arguments, repositories_of(env))
    for start in hooks("start").values():
        found = start(found)
    return found


def start_lines(start: Start, named: Mapping[str, str]) -> list[str]:
    """Return the lines of ``<run>/start.bash``; the record also gets what was pinned."""
    env, facts = start.env, start.facts
    environ, machine = env.settings.environ, env.machine
    chained = environ.get("LONGSHIP_JOB_RESUMES", "")
    steps = steps_of_chain(env.paths, chained, environ.get("SLURM_CLUSTER_NAME", ""))
    errors = start.file("StdErr") or start.log  # another one with --error: it tells why it ended
    shape = processes_per_node(facts, environ.get("SLURM_GPUS_ON_NODE", ""), machine)
    repositories = [word for pair in start.repositories.items() for word in pair]
    facts_of_run = {**_record(start, named), **start.record}
    return [
        *module_lines(machine, env.runtime),
        call("temporary_choose", "/tmp"),
        export("LONGSHIP_ROOT", env.paths.root),
        export("RUN_DIR", start.run),
        call("job_set", "LAUNCHER", start.run / "launcher"),
        call("job_set", "STACK_DIR", start.stack),
        *start.variables,
        call("set_rendezvous", machine.rendezvous),
        call("job_set_shape", str(shape)),
        *srun_lines(env._replace(held=named)),
        *([call("job_label_output")] if start.is_batch else []),
        f"if run_has_begun; then {'; '.join([*start.step, 'return'])}; fi",
        *([array("longship_at_end", start.at_end)] if start.at_end else []),
        wrapped("code_record_begin", sys.executable or "python3", _RUN, *repositories),
        " \\\n    ".join(
            [
                call("run_begin", errors if start.is_batch else ""),
                *(call(*each) for each in facts_of_run.items() if each[1] not in _NOTHING),
            ]
        ),
        *([call("job_check_previous", chained, *steps)] if chained else []),
        *start.begun,
        *start.step,
    ]


def _record(start: Start, named: Mapping[str, str]) -> dict[str, str]:
    """Return what the record says at the start."""
    settings, facts, size = start.env.settings, start.facts, start.size
    price = hourly_cost(size, settings.machine)
    earlier = readable_values(start.run / "record.json")  # of a requeued job
    return {
        "job": run_name(facts).partition("-")[0],
        "name": facts["JobName"],
        "cluster": settings.environ.get("SLURM_CLUSTER_NAME", ""),
        "machine": settings.machine.name,
        "site": settings.machine.site_file,
        "project": settings.configuration.project.name,
        "stack": settings.stack.name,
        "repository": str(start.env.paths.root),
        "runtime": start.env.runtime,
        **named,
        "partition": size.partition,
        "account": size.account,
        "qos": size.qos,
        "nodes": str(size.nodes),
        "gpus": str(size.gpus),
        "time_limit": facts["TimeLimit"],
        "submitted": facts.get("SubmitTime", ""),
        "restarts": facts.get("Restarts", "0"),
        # what the job has read may have been replaced between two starts
        "first_started": first_start(earlier),
        "earlier_seconds": str(seconds_before(start.run, earlier)) if earlier else "",
        "log": start.log,
        "goes_on_from": settings.environ.get("LONGSHIP_JOB_RESUMES", ""),
        "cost_per_hour": f"{price[0]:g}" if price else "",
        "cost_unit": price[1] if price else "",
    }
