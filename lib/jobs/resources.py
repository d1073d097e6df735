"""What a job asks for, and what that costs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from lib.configuration.partitions import Limits, hours
from lib.configuration.sites import Machine
from lib.script.errors import LongshipError

_GIGABYTES = {"K": 1 / 2**20, "M": 1 / 2**10, "G": 1, "T": 2**10}
_GPUS = r"(?:[\w.-]+:)?(\d+)"  # with or without their kind


class Request(NamedTuple):
    """What a job asks for.

    Parameters
    ----------
    name : str
        Of the job.
    partition, qos, account, constraint : str
        Empty where nothing is said.
    nodes, cores, gpus : int
        In all.
    memory : float
        Gigabytes in all; 0 where nothing is said.
    hours : float or None
        The time limit; None where nothing is said.
    jobs : int
        How many there are: the tasks of an array.
    """

    name: str
    partition: str
    qos: str
    account: str
    constraint: str
    nodes: int
    cores: int
    gpus: int
    memory: float
    hours: float | None
    jobs: int

    @property
    def partitions(self) -> list[str]:
        """The partitions of which Slurm may choose one; one empty text where nothing is said."""
        return self.partition.split(",")

    def per_hour(self, machine: Machine) -> tuple[float, str] | None:
        """Return what an hour of one job costs at most, and the unit; None if unknown."""
        found = []
        for each in self.partitions:
            price = machine.partitions.get(each, Limits()).price or machine.price
            if price is not None:
                amount = price.per_hour(
                    nodes=self.nodes,
                    cores=self.cores,
                    gpus=self.gpus,
                    memory=self.memory,
                    constraint=self.constraint,
                )
                found.append((amount, price.unit))
        return max(found) if found and max(found)[0] else None


def read_request(options: Mapping[str, str], machine: Machine) -> Request:
    """Work out what options of sbatch ask for.

    Parameters
    ----------
    options : mapping of str to str
        Value by long name, from `lib.jobs.sbatch.combined`; the job's name is among them.
    machine : Machine
        Where the job runs.

    Raises
    ------
    LongshipError
        If a number, a time or an amount of memory cannot be read.
    """
    partition = options.get("partition", machine.default_partition)
    facts = machine.partitions.get(partition, Limits())
    qos = machine.qos.get(options.get("qos", ""), Limits())
    longest = qos.max_hours or facts.max_hours
    nodes = _number(options, "nodes", r"(?:\d+-)?(\d+)") or _nodes_needed(options, facts, machine)
    tasks = _number(options, "ntasks") or nodes * (_number(options, "ntasks-per-node") or 1)
    cores = tasks * (_number(options, "cpus-per-task") or 1)
    gpus = _gpus(options, nodes, tasks)
    if "exclusive" in options or options.get("mem") == "0":  # all of the nodes
        has = machine.gpus_per_node if facts.gpus_per_node is None else facts.gpus_per_node
        cores = max(cores, nodes * (facts.cores_per_node or machine.cores_per_node))
        gpus = max(gpus, nodes * has)
    return Request(
        name=options["job-name"],
        partition=partition,
        qos=options.get("qos", ""),
        account=options.get("account", ""),
        constraint=options.get("constraint", ""),
        nodes=nodes,
        cores=cores,
        gpus=gpus,
        memory=_memory(options, nodes, cores, gpus),
        hours=hours(options["time"], "--time") if "time" in options else longest,
        jobs=_array_size(options.get("array", "")),
    )


def _number(options: Mapping[str, str], name: str, pattern: str = r"(\d+)") -> int:
    """Read a whole number; 0 where the option is not given."""
    if name not in options:
        return 0
    match = re.fullmatch(pattern, options[name])
    if not match:
        raise LongshipError(
            f'--{name}: expected a number, got "{options[name]}"', f"write --{name}=4"
        )
    return int(match[1])


def _nodes_needed(options: Mapping[str, str], facts: Limits, machine: Machine) -> int:
    """Return how many nodes Slurm takes where none are asked for: as many as it needs."""
    has_cores = facts.cores_per_node or machine.cores_per_node
    has_gpus = machine.gpus_per_node if facts.gpus_per_node is None else facts.gpus_per_node
    tasks = _number(options, "ntasks") or 1
    gpus_per_task = _number(options, "gpus-per-task", _GPUS)
    fitting = (
        _number(options, "ntasks-per-node"),
        has_cores // (_number(options, "cpus-per-task") or 1),
        has_gpus // gpus_per_task if gpus_per_task else 0,
    )
    on_each = min((each for each in fitting if each), default=tasks)
    for_gpus = math.ceil(_number(options, "gpus", _GPUS) / (has_gpus or math.inf))
    return max(math.ceil(tasks / on_each), for_gpus)


def _gpus(options: Mapping[str, str], nodes: int, tasks: int) -> int:
    """Return all GPUs of a job, whichever option asks for them."""
    per_node = _number(options, "gpus-per-node", _GPUS)
    for each in options.get("gres", "").split(","):
        match = re.fullmatch(r"gpu(?::[\w.-]*[A-Za-z][\w.-]*)?(?::(\d+))?", each)
        if match:
            per_node += int(match[1] or 1)
    per_task = _number(options, "gpus-per-task", _GPUS)
    return _number(options, "gpus", _GPUS) or per_node * nodes or per_task * tasks


def _memory(options: Mapping[str, str], nodes: int, cores: int, gpus: int) -> float:
    """Return all memory of a job, in gigabytes."""
    for name, count in (("mem", nodes), ("mem-per-gpu", gpus), ("mem-per-cpu", cores)):
        if name in options:
            match = re.fullmatch(r"(\d+)([KMGT]?)B?", options[name], re.IGNORECASE)
            if not match:
                raise LongshipError(
                    f'--{name}: expected a size, got "{options[name]}"', f"write --{name}=110G"
                )
            return int(match[1]) * _GIGABYTES[match[2].upper() or "M"] * count
    return 0


def _array_size(text: str) -> int:
    """Count the tasks of ``--array``, such as ``0-7``, ``1,4-10:2`` and ``0-99%5``."""
    size = 0
    for part in text.partition("%")[0].strip("[]").split(",") if text else []:
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not match:
            raise LongshipError(
                f'--array: expected indices, got "{text}"', "write --array=0-7 or --array=1,4,9%2"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        size += len(range(first, last + 1, max(step, 1)))
    return size or 1
