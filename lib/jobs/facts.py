"""What Slurm says of a job: the facts of ``scontrol show job --oneliner``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lib.configuration.partitions import hours
from lib.configuration.sites import Machine
from lib.jobs.resources import Request
from lib.script.errors import LongshipError

# of a job's name, in bytes: a name of a file has 255, and more than this stands in some
LONGEST_NAME = 200

_FACT = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s+[A-Z][\w/:]*=|\s*$)", re.DOTALL)
_NEEDED = ("JobId", "JobName", "Partition", "NumNodes", "NumCPUs", "TimeLimit")
_NUMBER_OF_GPUS = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?[:=](\d+)")


def slurm_facts(text: str, name: str = "") -> dict[str, str]:
    """Read what ``scontrol show job --oneliner`` prints.

    Parameters
    ----------
    text : str
        One line, unless the job's name or arguments hold newlines.
    name : str
        The job's name where it is known; in the text nothing tells where it ends.

    Raises
    ------
    LongshipError
        If there is no job in it.
    """
    job = text.partition("\nJobId=")[0]  # an array's number stands for all of its tasks
    named = {"JobName": name} if name and f" JobName={name} " in job else {}
    if named:
        job = job.replace(f" JobName={name} ", " ", 1)
    # between the two are the job's arguments as they are, whatever they hold
    head, _, rest = job.partition(" Command=")
    tail = "WorkDir=" + rest.rpartition(" WorkDir=")[2] if rest else ""
    facts = {**dict(_FACT.findall(tail)), **dict(reversed(_FACT.findall(head))), **named}
    if any(each not in facts for each in _NEEDED):
        raise LongshipError(
            "not a job: Slurm reports nothing about it",
            "`begin` is what a job calls itself; to submit one: python3 submit.py SITE/JOB.sbatch",
        )
    return facts


def run_name(facts: Mapping[str, str]) -> str:
    """Return the name of a run's folder: the job's id and name, such as ``123_4-train``."""
    job = facts["JobId"]
    if "ArrayTaskId" in facts:
        job = f"{facts['ArrayJobId']}_{facts['ArrayTaskId']}"
    name = re.sub(r"[^\w.+-]", "_", facts["JobName"])
    return f"{job}-{name.encode()[:LONGEST_NAME].decode(errors='ignore')}"


def gpus_per_node(facts: Mapping[str, str], on_node: str) -> int:
    """Return how many GPUs a job has on each node; 0 where Slurm counts none.

    Parameters
    ----------
    facts : mapping
        From `slurm_facts`.
    on_node : str
        Slurm's variable SLURM_GPUS_ON_NODE, which salloc does not set; may be empty.
    """
    nodes = _nodes(facts)
    per_task = -(-int(facts.get("NumTasks", nodes)) // nodes)
    for text, times, shared in (
        (f"gpu:{on_node}", 1, 1),
        (facts.get("TresPerNode", ""), 1, 1),
        (facts.get("TresPerJob", ""), 1, nodes),
        (facts.get("TresPerTask", ""), per_task, 1),
        (facts.get("AllocTRES") or facts.get("TRES", ""), 1, nodes),
    ):
        found = _NUMBER_OF_GPUS.search(text)
        if found:
            return int(found[1]) * times // shared
    return 0


def processes_per_node(facts: Mapping[str, str], on_node: str, machine: Machine) -> int:
    """Return how many processes torchrun starts on each node: one for each GPU.

    Parameters are those of `gpus_per_node`, and the machine; where Slurm does not count its GPUs a
    job has all of a node.
    """
    limits = machine.partitions.get(facts["Partition"])
    own = limits.gpus_per_node if limits else None
    return gpus_per_node(facts, on_node) or (machine.gpus_per_node if own is None else own) or 1


def _nodes(facts: Mapping[str, str]) -> int:
    return max(int(facts["NumNodes"].partition("-")[0] or 1), 1)


def request_of(facts: Mapping[str, str], on_node: str) -> Request:
    """Return what a running job has, to say what it costs.

    Parameters are those of `gpus_per_node`.
    """
    nodes = _nodes(facts)
    memory = re.search(r"\bmem=([\d.]+)([MGT])", facts.get("AllocTRES") or facts.get("TRES", ""))
    factor = {"M": 1 / 1024, "G": 1, "T": 1024}
    features = facts.get("Features", "")
    return Request(
        name=facts["JobName"],
        partition=facts["Partition"],
        qos=facts.get("QOS", ""),
        account=facts.get("Account", ""),
        constraint="" if features == "(null)" else features,
        nodes=nodes,
        cores=int(facts["NumCPUs"]),
        gpus=nodes * gpus_per_node(facts, on_node),
        memory=float(memory[1]) * factor[memory[2]] if memory else 0,
        hours=hours(facts["TimeLimit"], "TimeLimit"),
        jobs=1,
    )
