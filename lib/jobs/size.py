"""The size of a job: in sbatch options, as Slurm reports it, and what its site limits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lib.configuration.partitions import Limits, Price, hours, time_text
from lib.configuration.sites import Machine
from lib.jobs.options import COUNTED, HARMLESS, MEMORY
from lib.script.errors import LongshipError

# bytes of a job's name: file names, which have at most 255, are built from it
LONGEST_NAME = 200

_GPU = re.compile(r"(?:^|[,/:])gpu(:[\w.-]*[A-Za-z][\w.-]*)?(?:[:=](\d+))?(?=[,(]|$)")
_MEMORY = ("mem", "mem-per-gpu", "mem-per-cpu")
_GIGABYTES = {"K": 1 / 2**20, "M": 1 / 2**10, "G": 1, "T": 2**10}

_FACT = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s+[A-Z][\w/:]*=|\s*$)", re.DOTALL)
_NEEDED = ("JobId", "JobName", "Partition", "NumNodes", "NumCPUs", "TimeLimit")


class Size(NamedTuple):
    """What a job requests of its machine; strings are empty if nothing is requested."""

    name: str
    partition: str  # one, or several of which Slurm chooses one
    qos: str
    account: str
    constraint: str
    nodes: int
    cores: int  # in total, as GPUs and memory
    gpus: int
    memory: float  # gigabytes; 0 if not requested
    hours: float | None
    jobs: int  # tasks of an array
    unclear: str = ""  # an option with which the job can be larger than this

    @property
    def partitions(self) -> list[str]:
        """The partitions of which Slurm chooses one; one empty string if none is requested."""
        return self.partition.split(",")


def size_of_options(options: Mapping[str, str], machine: Machine) -> Size:
    """Compute what sbatch options, by long name and with ``job-name``, request at most."""
    partition = options.get("partition", machine.default_partition)
    limits = machine.partitions.get(partition, Limits())
    qos = machine.qos.get(options.get("qos", ""), Limits())
    has_cores, has_gpus = _of_a_node(machine, partition, max)
    per_node = _number(options, "gpus-per-node") + count_gpus(options.get("gres", ""))
    tasks = _tasks(options)
    nodes = _number(options, "nodes") or _nodes_needed(options, machine, partition)
    tasks = max(tasks, nodes * (_number(options, "ntasks-per-node") or 1))
    of_tasks = tasks * _number(options, "gpus-per-task")
    gpus = max(_number(options, "gpus"), nodes * per_node, of_tasks)
    cores = tasks * (_number(options, "cpus-per-task") or 1)
    cores = max(cores, gpus * _number(options, "cpus-per-gpu"))
    if _takes_whole_nodes(options):
        cores, gpus = max(cores, nodes * has_cores), max(gpus, nodes * has_gpus)
    return Size(
        name=options["job-name"],
        partition=partition,
        qos=options.get("qos", ""),
        account=options.get("account", ""),
        constraint=options.get("constraint", ""),
        nodes=nodes,
        cores=cores,
        gpus=gpus,
        memory=_memory(options, nodes, cores, gpus),
        hours=hours(options["time"], "--time")
        if "time" in options
        else qos.max_hours or limits.max_hours,
        jobs=sum(map(len, array_tasks(options.get("array", "")))) or 1,
        unclear=next(filter(None, (_unclear(*each, options) for each in options.items())), "")
        or _unclear_nodes(options, machine, partition),
    )


def _unclear(name: str, value: str, options: Mapping[str, str]) -> str:
    """Return the option, if a job can be larger with it than what is counted; or ""."""
    if name in HARMLESS or (name in ("#PBS", "#BSUB") and "ignore-pbs" in options):
        return ""
    shown = f"--{name}" if name.islower() else name  # or a variable, or a line of the header
    if name not in COUNTED or (name == "nodelist" and "nodes" not in options):
        return shown
    return "" if re.fullmatch(COUNTED[name], value, re.IGNORECASE) else f"{shown}={value}"


def _unclear_nodes(options: Mapping[str, str], machine: Machine, partition: str) -> str:
    """Return what leaves open how many nodes are priced, or what a whole node has; or ""."""
    limits = (machine.partitions.get(each, Limits()) for each in partition.split(","))
    prices = [each.price or machine.price or Price() for each in limits]
    has_cores, _ = _of_a_node(machine, partition, min)
    is_whole = _takes_whole_nodes(options)
    if is_whole and not has_cores and any(each.core + each.slice for each in prices):
        return "whole nodes of unknown size"
    tasks, gpus = _tasks(options), _number(options, "gpus") or _number(options, "gpus-per-task")
    if "nodes" in options or (tasks < 2 and gpus < 2):
        return ""
    of_node = not {"gpus-per-node", "ntasks-per-node"}.isdisjoint(options)
    per_node = is_whole or of_node or count_gpus(options.get("gres", "")) > 0
    for each in prices:
        is_open = each.node or (each.core and (per_node or gpus > tasks)) or (each.gpu and per_node)
        if is_open or (each.slice and (per_node or "mem" in options)):
            return "a missing --nodes"  # Slurm takes what is free, on as many nodes as it needs
    return ""


def _of_a_node(machine: Machine, partition: str, most: Callable[..., int]) -> tuple[int, int]:
    """Return the cores and GPUs of a node; 0 if unknown. Of several partitions: most, or least."""
    names = partition.split(",")
    limits = (machine.partitions.get(each, Limits()) for each in names)
    cores = most(each.cores_per_node or machine.cores_per_node for each in limits)
    return cores, most(gpus_of_a_node(machine, each) for each in names)


def gpus_of_a_node(machine: Machine, partition: str) -> int:
    """Return the number of GPUs that nodes of a partition have; 0 if unknown."""
    own = machine.partitions.get(partition, Limits()).gpus_per_node
    return machine.gpus_per_node if own is None else own


def _takes_whole_nodes(options: Mapping[str, str]) -> bool:
    """Tell whether a job gets all of its nodes: no memory limit means all of the memory."""
    return "exclusive" in options or any(
        each in options and gigabytes(options[each]) == 0 for each in _MEMORY
    )


def _number(options: Mapping[str, str], name: str) -> int:
    """Read an integer; 0 if the option is not given or unclear."""
    match = re.fullmatch(COUNTED[name], options.get(name, ""))
    return int(match[1]) if match else 0


def _tasks(options: Mapping[str, str]) -> int:
    """Return how many tasks a job asks for; GPUs in total, and of a task, say so too."""
    of_gpus = _number(options, "gpus") // (_number(options, "gpus-per-task") or math.inf)
    return _number(options, "ntasks") or int(of_gpus) or 1


def _nodes_needed(options: Mapping[str, str], machine: Machine, partition: str) -> int:
    """Return how many nodes Slurm allocates if their number is not requested."""
    has_cores, has_gpus = _of_a_node(machine, partition, min)
    tasks, gpus_per_task = _tasks(options), _number(options, "gpus-per-task")
    per_node = _number(options, "gpus-per-node") + count_gpus(options.get("gres", ""))
    fitting = (
        _number(options, "ntasks-per-node"),
        has_cores and max(has_cores // (_number(options, "cpus-per-task") or 1), 1),
        has_gpus // gpus_per_task if gpus_per_task else 0,
    )
    on_each = min((each for each in fitting if each), default=tasks)
    for_gpus = math.ceil(_number(options, "gpus") / (per_node or has_gpus or math.inf))
    return max(math.ceil(tasks / on_each), for_gpus)


def count_gpus(text: str) -> int:
    """Count the GPUs of a list, such as ``gpu:a100:4``, ``gres:gpu:2`` and ``cpu=48,gres/gpu=8``.

    Slurm lists the total next to the numbers of each type, or only these.
    """
    found = [(kind, int(count or 1)) for kind, count in _GPU.findall(text)]
    return max(
        sum(count for kind, count in found if not kind), sum(count for kind, count in found if kind)
    )


def gigabytes(text: str) -> float | None:
    """Read an amount of memory, by default in megabytes; None if it is not one."""
    match = re.fullmatch(MEMORY, text, re.IGNORECASE)
    return float(match[1]) * _GIGABYTES[match[2].upper() or "M"] if match else None


def _memory(options: Mapping[str, str], nodes: int, cores: int, gpus: int) -> float:
    cpus = cores
    # whole cores are given, with two threads at most, and the memory is that of each thread
    alone = {"threads-per-core": "1", "hint": "nomultithread"}.items() & options.items()
    if not alone and (_takes_whole_nodes(options) or (_number(options, "cpus-per-task") or 1) % 2):
        cpus = 2 * cores
    counts = dict(zip(_MEMORY, (nodes, gpus, cpus)))
    return max((gigabytes(options.get(each, "")) or 0) * counts[each] for each in _MEMORY)


def uses_one_thread(options: Mapping[str, str]) -> bool:
    """Tell whether a job uses one thread of each core: then Slurm's CPUs are cores."""
    one = {"threads-per-core": "1", "hint": "nomultithread"}
    return not one.items().isdisjoint(options.items())


def array_tasks(text: str) -> list[range]:
    """Return the tasks of ``--array``, such as ``0-7``, ``1,4-10:2`` and ``0-99%5``."""
    tasks = []
    for part in text.partition("%")[0].strip("[]").split(",") if text else []:
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not match:
            raise LongshipError(
                f'--array: expected indices, got "{text}"', "write --array=0-7 or --array=1,4,9%2"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        tasks.append(range(first, last + 1, max(step, 1)))
    return tasks


def slurm_facts(text: str, name: str = "") -> dict[str, str]:
    """Read the output of ``scontrol show job --oneliner``.

    The job's name and arguments can contain newlines, and nothing marks the end of the name, so
    the name is passed if it is known.
    """
    job = text.partition("\nJobId=")[0]  # an array's number stands for all of its tasks
    named = {"JobName": name} if name and f" JobName={name} " in job else {}
    if named:
        job = job.replace(f" JobName={name} ", " ", 1)
    # between the two are the job's arguments, unquoted
    head, _, rest = job.partition(" Command=")
    tail = "WorkDir=" + rest.rpartition(" WorkDir=")[2] if rest else ""
    facts = {**dict(_FACT.findall(tail)), **dict(reversed(_FACT.findall(head))), **named}
    if any(each not in facts for each in _NEEDED):
        raise LongshipError(
            "standard input is not a job: expected the output of `scontrol show job`",
            "only jobs run `submit.py begin`; to submit one: python3 submit.py SITE/JOB.sbatch",
        )
    return facts


def run_name(facts: Mapping[str, str]) -> str:
    """Return the name of a run directory: the job's ID and name, such as ``123_4-train``."""
    job = facts["JobId"]
    if "ArrayTaskId" in facts:
        job = f"{facts['ArrayJobId']}_{facts['ArrayTaskId']}"
    name = re.sub(r"[^\w.+-]", "_", facts["JobName"])
    return f"{job}-{name.encode()[:LONGEST_NAME].decode(errors='ignore')}"


def size_of_facts(facts: Mapping[str, str], on_node: str) -> Size:
    """Return what a running job was allocated.

    SLURM_GPUS_ON_NODE is passed too: salloc does not set it.
    """
    nodes = _allocated_nodes(facts)
    memory = re.search(r"\bmem=([^,\s]+)", _allocated(facts))
    features = facts.get("Features", "")
    return Size(
        name=facts["JobName"],
        partition=facts["Partition"],
        qos=facts.get("QOS", ""),
        account=facts.get("Account", ""),
        constraint="" if features == "(null)" else features,
        nodes=nodes,
        cores=int(facts["NumCPUs"]),
        gpus=nodes * gpus_per_node(facts, on_node),
        memory=gigabytes(memory[1]) or 0 if memory else 0,
        hours=hours(facts["TimeLimit"], "TimeLimit"),
        jobs=1,
    )


def _allocated(facts: Mapping[str, str]) -> str:
    return facts.get("AllocTRES") or facts.get("TRES", "")


def _allocated_nodes(facts: Mapping[str, str]) -> int:
    return max(int(facts["NumNodes"].partition("-")[0] or 1), 1)


def gpus_per_node(facts: Mapping[str, str], on_node: str) -> int:
    """Return the number of GPUs on each node; 0 if Slurm counts none."""
    nodes = _allocated_nodes(facts)
    per_task = -(-int(facts.get("NumTasks", nodes)) // nodes)
    for text, times, shared in (
        (f"gpu:{on_node}", 1, 1),
        (facts.get("TresPerNode", ""), 1, 1),
        (facts.get("TresPerJob", ""), 1, nodes),
        (facts.get("TresPerTask", ""), per_task, 1),
        (_allocated(facts), 1, nodes),
    ):
        count = count_gpus(text)
        if count:
            return count * times // shared
    return 0


def processes_per_node(facts: Mapping[str, str], on_node: str, machine: Machine) -> int:
    """Return how many processes torchrun starts on each node: one for each GPU.

    A job whose GPUs Slurm does not count has all of a node.
    """
    return gpus_per_node(facts, on_node) or gpus_of_a_node(machine, facts["Partition"]) or 1


def check_required(options: Mapping[str, str], machine: Machine) -> None:
    """Stop if a job does not say what its site wants to be told."""
    for name in machine.required:
        names = (name, "mem-per-gpu", "mem-per-cpu") if name == "mem" else (name,)
        if not any(options.get(each) for each in names):
            hint = f"add --{name}=VALUE after the job script, or a #SBATCH directive to it"
            if name == "account":
                hint = f"set project.account in configuration.toml, or {hint}"
            raise LongshipError(f"{machine.name} requires --{name}", hint)


def limits_text(size: Size, machine: Machine) -> str:
    """Return the limits that the site file states, for a job that Slurm has refused."""
    known = [(f"partition {each}", machine.partitions.get(each)) for each in size.partitions]
    known.append((f"QOS {size.qos}", machine.qos.get(size.qos)))
    stated = []
    for what, limits in known:
        if limits:
            numbers = [f"{limits.max_nodes} nodes"] if limits.max_nodes else []
            numbers += [f"{limits.max_gpus} GPUs"] if limits.max_gpus else []
            numbers += [time_text(limits.max_hours)] if limits.max_hours else []
            stated += [f"{what} has at most {', '.join(numbers)}"] if numbers else []
    return f"{'; '.join(stated)} ({machine.site_file})" if stated else ""
