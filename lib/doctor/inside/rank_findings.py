"""Findings about the ranks of a job, from the figures that check_ranks.py collects."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Facts = Mapping[str, Any]


class Finding(NamedTuple):
    """One line of the report, and what to do about it."""

    state: str
    topic: str
    text: str
    fix: str = ""


BINDING = "cores: --cpus-per-task, and export SRUN_CPUS_PER_TASK for srun; order: --cpu-bind"
NO_GPU = (
    "check `srun nvidia-smi` (AMD: rocm-smi); request --gpus-per-node, and check [container] "
    "and the runtime in doctor.py"
)
REPLACE = "tell your site's support, and exclude the node: sbatch --exclude="


def format_numbers(numbers: Sequence[int]) -> str:
    """Write numbers as Linux lists cores: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def parse_numbers(text: str) -> set[int]:
    """Read numbers as Linux lists them, the opposite of `format_numbers`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return the links of a ring of nodes, in rounds in which each node has at most one link."""
    links = [(node, (node + 1) % count) for node in range(count if count > 2 else count - 1)]
    last = [links.pop()] if count > 2 and count % 2 else []
    return [each for each in (links[::2], links[1::2], last) if each]


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """Return the GB/s of each link in an all_reduce of `size` bytes per rank.

    It does not depend on the number of ranks: a ring moves 2 (n - 1) / n of the size over each link
    (nccl-tests, doc/PERFORMANCE.md).
    """
    return 2 * (ranks - 1) / ranks * size / seconds / 1e9


def slow_nodes(figures: Mapping[str, float]) -> list[str]:
    """Return the nodes with less than half of the median."""
    if len(figures) < 2:
        return []
    half = statistics.median(figures.values()) / 2
    return [name for name, figure in figures.items() if figure < half]


def best_links(links: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Return the better one of each node's links: a slow node slows its neighbours' down too."""
    best: dict[str, float] = {}
    for pair, figure in links.items():
        for node in pair:
            best[node] = max(figure, best.get(node, 0))
    return best


def speed_findings(topic: str, what: str, figures: Mapping[str, float]) -> list[Finding]:
    """Return the findings about one figure for each node, in GB/s."""
    if not figures:
        return []
    found = slow_nodes(figures)
    median = statistics.median(figures.values())
    if not found:
        low, high = min(figures.values()), max(figures.values())
        text = f"{what}: {low:.2f} to {high:.2f} GB/s, median {median:.2f}, on {len(figures)} nodes"
        return [Finding("ok", topic, text)]
    return [
        Finding(
            "problem",
            topic,
            f"{node} is slow: {what} {figures[node]:.2f} GB/s, median {median:.2f}",
            f"{REPLACE}{node}; or check for other processes on the node",
        )
        for node in found
    ]


def describe_binding(facts: Facts) -> str:
    """Describe what a rank is bound to."""
    gpu = facts["gpu"]
    on = f"GPU {gpu['index']} ({gpu['name']}, {gpu['bus'] or gpu['uuid']})" if gpu else "no GPU"
    return (
        f"cores {format_numbers(facts['cores'])}, NUMA {format_numbers(facts['numa']) or '?'}, {on}"
    )


def map_findings(ranks: Sequence[Facts], *, complete: bool) -> list[Finding]:
    """Return the binding of the ranks: of all nodes if `complete`, else of each distinct layout."""
    layouts: dict[str, list[Any]] = {}
    for each in ranks:
        gpu = each["gpu"] and each["gpu"]["index"]
        layouts.setdefault(each["node"], []).append((sorted(each["cores"]), gpu))
    usual = statistics.mode(map(repr, layouts.values())) if layouts else ""
    alike = [node for node, layout in layouts.items() if repr(layout) == usual]
    told = [node for node in layouts if complete or node in alike[:1] or node not in alike]
    found = [
        Finding("ok", "binding", f"rank {each['rank']}: {each['node']}, {describe_binding(each)}")
        for each in ranks
        if each["node"] in told
    ]
    if len(told) < len(layouts):
        more = len(layouts) - len(told)
        found.append(Finding("ok", "binding", f"{more} more nodes have the layout of {alike[0]}"))
    for node in layouts:
        if node not in alike:
            text = f"{node} has another layout than {alike[0]}"
            found.append(Finding("warning", "binding", text, BINDING))
        found += _node_problems(node, [each for each in ranks if each["node"] == node])
    return found


def _node_problems(node: str, ranks: Sequence[Facts]) -> list[Finding]:
    """Return the problems of the binding on one node."""
    found = []

    def add(state: str, wrong: Sequence[Facts], text: str, fix: str) -> None:
        if wrong:
            numbers = format_numbers([each["rank"] for each in wrong])
            found.append(Finding(state, "binding", f"{node}: rank {numbers} {text}", fix))

    # the ranks of one task, which torchrun starts, are not bound one by one
    users: dict[int, set[int]] = {}
    for each in ranks:
        for core in each["cores"]:
            users.setdefault(core, set()).add(each["task"])
    contested = {core for core, tasks in users.items() if len(tasks) > 1}
    sharing = [each for each in ranks if contested & set(each["cores"])]
    add("warning", sharing, f"share cores {format_numbers(sorted(contested))}", BINDING)

    there = ranks[0]["cores_of_node"]
    per_task = {each["task"]: [o for o in ranks if o["task"] == each["task"]] for each in ranks}
    few = [
        each
        for each in ranks
        if len(each["cores"]) <= len(per_task[each["task"]]) and there >= 4 * len(ranks)
    ]
    add("problem", few, f"has at most one core, of {there} for {len(ranks)} ranks", BINDING)
    blind = [each for each in ranks if each["gpus_asked"] and not each["gpu"]]
    asked = ranks[0]["gpus_asked"]
    add("problem", blind, f"sees no GPU, but the job has {asked} on each node", NO_GPU)
    far = [
        each
        for each in ranks
        if (near := set((each["gpu"] or {}).get("cores", ()))) and not near & set(each["cores"])
    ]
    add("warning", far, "has no core near its GPU", BINDING)
    uuids = [each["gpu"]["uuid"] for each in ranks if each["gpu"] and each["gpu"]["uuid"]]
    twice = [each for each in ranks if each["gpu"] and uuids.count(each["gpu"]["uuid"]) > 1]
    add("problem", twice, "share a GPU", "start one rank per GPU: --ntasks-per-node")
    return found
