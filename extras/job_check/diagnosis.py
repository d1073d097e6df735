"""The verdict on how the ranks of a job communicate: doctor.py --job."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lib.configuration.sites import Expected
from lib.doctor.report import Diagnosis, Finding, ok, problem, warning
from lib.runtimes.choice import srun_lines
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.launch import run_lines
from lib.script.command import call, comment
from lib.script.errors import LongshipError
from lib.script.execute import read_output

_TIME_LIMIT = 180  # seconds, whatever a rank does: Slurm kills the tasks of an srun that ends
_PROGRAM = "extras/job_check/inside/check_ranks.py"
_LOOK = "check it: srun --overlap --nodelist={0} hostname; or exclude it: sbatch --exclude={0}"
_INSTALL = "python3 set_up.py install; or set container.image to an image with PyTorch"
_TEST = (
    "test one: srun --overlap --ntasks=1 python3 container_run.py python -c 'import torch; "
    "print(torch.cuda.device_count())'"
)
_SUMS = "do not train like this; with GH200 and Slingshot test NCCL_PROTO=^LL128 (NVIDIA/nccl#2001)"
_PLUGIN = (
    "with InfiniBand, Slingshot or EFA: compare the job with those of the site; are NCCL's network "
    "plugin (aws-ofi-nccl) and the devices visible inside? NCCL_DEBUG=INFO tells"
)
_INTERFACES = "check the interfaces that NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name: ip address"
_Event = Mapping[str, Any]  # what check_ranks.py tells


def job_lines(env: Environment) -> list[str]:
    """Return the lines of the script that starts all ranks, and is started again as each task.

    It travels as text, so that it needs no file that all nodes see.
    """
    return [
        comment("From where doctor.py was typed; Slurm starts the tasks with these options."),
        "if [[ ${1:-} != rank ]]; then",
        call("ranks_find_job", env.machine.rendezvous),
        "CONTAINER_OPTIONS=()",
        *module_lines(env.machine, env.runtime),
        *srun_lines(env),
        'ranks_start ${CONTAINER_OPTIONS[@]+"${CONTAINER_OPTIONS[@]}"} \\',
        '  bash -c "$(script_text)" doctor.py rank "$@"',
        "fi",
        "",
        comment("A task: become the program that starts its ranks, inside."),
        "shift",
        *run_lines(env),
    ]


def diagnose(env: Environment, script: str, report: Diagnosis) -> None:
    """Check the job that this runs in, or that SLURM_JOB_ID names."""
    if not os.environ.get("SLURM_JOB_ID"):
        fix = "salloc --nodes=2 OPTION... python3 doctor.py --job; or add it to a job script, "
        raise LongshipError("not in a job: SLURM_JOB_ID is not set", f"{fix}before srun")
    program = ("python", str(env.paths.root / _PROGRAM))
    text = read_output(["bash", "-c", script, "doctor.py", *program], _TIME_LIMIT).text
    for each in findings(text, env.machine.expected or Expected()):
        report.add(each)
    report.end()


def _read(text: str) -> list[_Event]:
    """Return what the ranks have told."""
    events: list[_Event] = []
    for line in re.findall(r'^ *\d+: (\{"rank": .*\})$', text, re.M):
        with suppress(ValueError):  # damaged by what others have printed at once
            events.append(json.loads(line))
    return events


def findings(text: str, expected: Expected) -> Iterator[Finding]:
    """Return the verdict, from what srun and all ranks have printed."""
    events = _read(text)
    nodes = [name for line in re.findall("^job_nodes (.*)", text, re.M) for name in line.split()]
    failures = list(_failures(text, events, nodes))
    backend = ", ".join(_by("backend", events))
    done = f"{len(_by('rank', events))} on {len(nodes)} nodes by {backend}: all are done"
    yield from failures or [ok("ranks", done)]
    for family, some in _by("family", events).items():
        yield ok("rendezvous", f"by {family}: {_where(some)}")
    wrong = _by("size", [each for each in events if each.get("wrong")])
    for size, some in wrong.items():
        count = sum(each["wrong"] for each in some)
        yield problem("sums", f"{count} wrong sums of {size:g} MiB: {_where(some)}", _SUMS)
    sizes = [f"{size:g} MiB" for size in _by("size", events)]
    if sizes and not wrong:
        yield ok("sums", f"right for {', '.join(sizes)}")
    if not failures:
        yield from _bandwidth(events, len(nodes), expected)
    for node, reason, others in _slow_nodes(events):
        yield warning("nodes", f"{node} is {reason}, {others}", _LOOK.format(node))
    for network, some in _by("network", events).items() if len(nodes) > 1 else ():
        state, fix = (warning, _PLUGIN) if network == "Socket" else (ok, "")
        yield state("network", f"NCCL uses {network} between nodes: {_where(some)}", fix)


def _by(key: str, events: Sequence[_Event]) -> dict[Any, list[_Event]]:
    """Return the events of each value of a key, but for those without one."""
    values = sorted({each[key] for each in events if each.get(key, "") != ""})
    return {value: [each for each in events if each.get(key) == value] for value in values}


def _where(events: Sequence[_Event]) -> str:
    """Name the ranks of events with their nodes."""
    if len(_by("rank", events)) == events[0]["world"]:
        return "all ranks"
    of_node = {node: map(str, _by("rank", some)) for node, some in _by("node", events).items()}
    return ", ".join(f"{node} (rank {' '.join(ranks)})" for node, ranks in of_node.items())


def _launch_failures(text: str, silent: Sequence[str]) -> Iterator[Finding]:
    """Return why tasks have not become ranks: their last line, with its hint, or what srun tells.

    srun labels the lines of tasks with their numbers.
    """
    printed, hints = {}, {}
    for task, line in re.findall(r"^(?: *(\d+): )?(.*)$", text, re.M):
        if line.startswith("hint: ") and printed.get(task, "").startswith("error: "):
            hints[printed[task]] = line[6:]
        else:
            printed[task] = line
    nodes: dict[str, list[str]] = {}
    for node in silent:
        told = re.findall(rf"^srun: .*\b{re.escape(node)}\b.*", text, re.M)[-1:]
        tasks = re.findall(r"tasks? (\d+)", "".join(told))
        last = [printed[task] for task in tasks if task in printed]
        nodes.setdefault([*last, *told, "no message"][0], []).append(node)
    for reason, names in nodes.items():
        fix = hints.pop(reason, _LOOK.format(names[0]))
        yield problem("ranks", f"{' '.join(names)} started no rank: {reason}", fix)
    yield from (problem("ranks", error, hint) for error, hint in hints.items())


def _failures(text: str, events: Sequence[_Event], nodes: Sequence[str]) -> Iterator[Finding]:
    """Return why ranks are not done: of what is known, what can be the cause of all the rest.

    Tasks without ranks; the end of a rank; errors of ranks, which can have waited for another one;
    or else the ranks that got least far.
    """
    silent = [node for node in nodes if node not in _by("node", events)]
    found = set(_launch_failures(text, silent))
    if not events and not found:
        found.add(problem("ranks", f"no rank has started: {text.strip()}", _LOOK.format("NODE")))
    last = {each["rank"]: each for each in events if "stage" in each}
    left = {rank: each for rank, each in last.items() if each["stage"] != "end"}
    for key in ("ended", "error"):
        told = [each for each in events if key in each and each["rank"] in left and not found]
        told = [{**x, "what": f"{x[key]}, in: {left[x['rank']]['stage']}"} for x in told]
        for what, some in _by("what", told).items():
            fix = _INSTALL if "No module named 'torch'" in what else _TEST
            found.add(problem("ranks", f"{_where(some)}: {what}", fix))
    if left and not found:
        stages = _by("step", [*left.values()])
        some = stages[min(stages)]
        what = f"{_where(some)} did not get beyond: {some[0]['stage']}"
        everywhere = len(some) == some[0]["world"]
        fix = _INTERFACES if everywhere else _LOOK.format(some[0]["node"])
        found.add(problem("ranks", what, fix))
    yield from sorted(found)


def _bandwidth(events: Sequence[_Event], nodes: int, expected: Expected) -> Iterator[Finding]:
    """Report the bus bandwidth at the two largest sizes, that of the slowest rank."""
    of_size = _by("size", [each for each in events if each.get("among") == "all ranks"])
    speeds = {size: min(each["speed"] for each in some) for size, some in of_size.items()}
    text = ", ".join(f"{speeds[size]:.2f} GB/s at {size:g} MiB" for size in [*speeds][-2:])
    world = events[0]["world"]
    gpus = world if "nccl" in _by("backend", events) else 0
    if world == 1:
        yield ok("bandwidth", "not measured: one rank")
    elif (nodes, gpus) != (expected.nodes, expected.gpus):
        yield ok("bandwidth", f"{text}; site.toml expects none for such a job")
    elif max(speeds.values()) < expected.bus_bandwidth / 2:
        text += f": less than half of the {expected.bus_bandwidth:g} GB/s expected"
        yield problem("bandwidth", text, _PLUGIN)
    else:
        yield ok("bandwidth", f"{text}; {expected.bus_bandwidth:g} GB/s expected of large sizes")


def _slow_nodes(events: Sequence[_Event]) -> Iterator[tuple[str, str, str]]:
    """Yield each node with less than half of the others' median, how slow it is, and that median.

    Of a node's links the better one counts: a slow node slows those of its neighbours too.
    """
    for among in ("ranks of a node", "neighbouring nodes"):
        of_node = _by("node", [each for each in events if each.get("among") == among])
        best = {node: max(each["speed"] for each in of) for node, of in of_node.items()}
        for node, speed in best.items() if len(best) > 1 else ():
            median = statistics.median(other for name, other in best.items() if name != node)
            if speed < median / 2:
                reason = f"slow: {speed:.2f} GB/s among {among}"
                yield node, reason, f"others {median:.2f} (median)"
