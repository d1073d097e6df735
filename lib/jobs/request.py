"""What is submitted: a job script, its options, and everything that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lib.jobs.cost import Cost
from lib.jobs.job_files import JobFile
from lib.jobs.options import Option
from lib.jobs.size import Size
from lib.runtimes.environment import Environment
from lib.script.quoting import Expansion, Word


class Asked(NamedTuple):
    """The values of the options of submit.py."""

    chain: int = 1  # number of jobs, each of which resumes the previous one
    after: str = ""  # job that must complete first
    agreed: bool = False  # do not ask about the cost
    as_json: bool = False
    options: Mapping[str, str] = {}  # machine, stack and configuration
    extras: Mapping[str, Mapping[str, Any]] = {}  # of the options of each extra, by its name

    def of(self, module: str) -> Mapping[str, Any]:
        """Return the values of the options of the extra that a module belongs to."""
        return self.extras.get(module.split(".")[1], {})


class Request(NamedTuple):
    """A checked submission, complete when it is made: its lines and its record follow from it."""

    env: Environment
    job: JobFile
    asked: Asked
    again: str  # directory of the run that is re-run; or ""
    typed: Sequence[Option]  # sbatch options from the command line
    arguments: tuple[str, ...]  # of the job
    own: Sequence[Option]  # sbatch options of header, environment and command line
    account: Sequence[Option]  # the account of the configuration, if no other is given
    options: Mapping[str, str]  # all of them by long name, with ``job-name``
    log: str  # with Slurm's placeholders
    size: Size
    cost: Cost
    trained_on: Size  # without spare nodes
    first: Sequence[str]  # the arguments; those of an array's first task
    code: Sequence[str]  # lines that export where the job finds its code
    lines: tuple[str, ...] = ()  # before the cost is shown
    sent: tuple[str, ...] = ()  # after the submission
    then: tuple[Request, ...] = ()  # jobs that are submitted with this one
    prefix: str = ""  # of the arrays with its options and arguments
    send: str = ""  # the function that submits it after this one

    @property
    def words(self) -> tuple[Word, ...]:
        """The arguments of sbatch."""
        arrays = (f"{self.prefix}options", f"{self.prefix}job")
        return tuple(Expansion(f'"${{{each}[@]}}"') for each in arrays)

    @property
    def named_log(self) -> str:
        """The log with its name, without the job's ID."""
        return self.log.replace("%x", self.size.name)
