"""What a job asks for, against what its site allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from lib.configuration.partitions import LIMIT_NAMES, Limits, time_text
from lib.configuration.sites import Machine
from lib.jobs.resources import Request
from lib.script.errors import LongshipError, near_miss


def check_request(request: Request, options: Mapping[str, str], machine: Machine) -> None:
    """Stop where Slurm would refuse the job, or let it wait for ever.

    Parameters
    ----------
    request : Request
        From `read_request`.
    options : mapping of str to str
        The options that it was read from.
    machine : Machine
        Where the job runs.

    Raises
    ------
    LongshipError
        With the values that are allowed.
    """
    site = machine.site_file
    for name, allowed in (("partition", machine.partitions), ("qos", machine.qos)):
        for value in getattr(request, name).split(","):
            if value and allowed and value not in allowed:
                hint = f"{near_miss(value, list(allowed))}; add missing ones to {site}"
                raise LongshipError(f"unknown {name} on {machine.name}: {value}", hint)
    for name in machine.required:
        names = (name, "mem-per-gpu", "mem-per-cpu") if name == "mem" else (name,)
        if not any(options.get(each) for each in names):
            raise LongshipError(f"{machine.name} requires --{name}", _hint_for(name))
    for what, limits in _applying(request, machine):
        _check_limits(request, what, limits, site)
    for partition in request.partitions:
        _check_nodes(request, machine, partition)


def _hint_for(name: str) -> str:
    if name == "account":
        return (
            "set project.account in configuration.toml, or add --account=NAME after the job script"
        )
    return f"add --{name}=VALUE after the job script, or a #SBATCH directive to it"


def _applying(request: Request, machine: Machine) -> Iterator[tuple[str, Limits]]:
    qos = machine.qos.get(request.qos, Limits())
    own = {name: None for name in LIMIT_NAMES if getattr(qos, name) is not None}
    for each in request.partitions:
        if each in machine.partitions:  # what the QOS limits, the partition does not
            yield f"partition {each}", machine.partitions[each]._replace(**own)
    yield f"QOS {request.qos}", qos


def _check_limits(request: Request, what: str, limits: Limits, site: str) -> None:
    """Compare with the largest job of a partition or QOS."""
    if request.hours and limits.max_hours and request.hours > limits.max_hours:
        raise LongshipError(
            f"--time={time_text(request.hours)} exceeds the limit of {what}",
            f"use at most --time={time_text(limits.max_hours)} ({site})",
        )
    for name, most in (("nodes", limits.max_nodes), ("gpus", limits.max_gpus)):
        asked = getattr(request, name)
        if most is not None and asked > most:
            raise LongshipError(
                f"{asked} {'GPUs' if name == 'gpus' else name} exceed the limit of {what}",
                f"use at most {most} ({site})",
            )


def _check_nodes(request: Request, machine: Machine, partition: str) -> None:
    """Compare with what one node has."""
    facts = machine.partitions.get(partition, Limits())
    for what, asked, own, common, times in (
        ("GPUs", request.gpus, facts.gpus_per_node, machine.gpus_per_node, 1),
        # Slurm counts what a core has of them, unless --threads-per-core=1
        ("threads", request.cores, facts.cores_per_node, machine.cores_per_node, 2),
    ):
        has = times * (common if own is None else own)
        each = math.ceil(asked / request.nodes)
        where = f"of {partition} " if own is not None else ""
        if (has or own == 0) and each > has:
            raise LongshipError(
                f"{each} {what} per node requested, but nodes {where}have {has}",
                f"request fewer, or more nodes ({machine.site_file})",
            )
