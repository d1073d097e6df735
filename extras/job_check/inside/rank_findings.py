"""Findings about the ranks of a job, from the figures that check_ranks.py collects."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

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


# ---------- binding


def format_numbers(numbers: Iterable[int]) -> str:
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
    ends = [part.partition("-")[::2] for part in filter(None, text.strip().split(","))]
    return {each for a, b in ends for each in range(int(a), int(b or a) + 1)}


def map_findings(ranks: Sequence[Facts], *, complete: bool) -> list[Finding]:
    """Return the binding of the ranks: of all nodes if `complete`, else of each distinct layout."""
    on: dict[str, list[Facts]] = {}
    for each in ranks:
        on.setdefault(each["node"], []).append(each)
    layouts = {
        node: repr([(sorted(x["cores"]), x["gpu"] and x["gpu"]["index"]) for x in own])
        for node, own in on.items()
    }
    usual = statistics.mode(layouts.values()) if layouts else ""
    alike = [node for node in on if layouts[node] == usual]
    told = [node for node in on if complete or node in alike[:1] or node not in alike]
    found = [
        Finding("ok", "binding", f"rank {each['rank']}: {each['node']}, {_binding(each)}")
        for each in ranks
        if each["node"] in told
    ]
    if len(told) < len(on):
        text = f"{len(on) - len(told)} more nodes have the layout of {alike[0]}"
        found.append(Finding("ok", "binding", text))
    for node, own in on.items():
        if node not in alike:
            text = f"{node} has another layout than {alike[0]}"
            found.append(Finding("warning", "binding", text, BINDING))
        found += _node_problems(node, own)
    return found


def _binding(rank: Facts) -> str:
    gpu, cores, numa = rank["gpu"], format_numbers(rank["cores"]), format_numbers(rank["numa"])
    on = f"GPU {gpu['index']} ({gpu['name']}, {gpu['bus'] or gpu['uuid']})" if gpu else "no GPU"
    return f"cores {cores}, NUMA {numa or '?'}, {on}"


def _node_problems(node: str, ranks: Sequence[Facts]) -> list[Finding]:
    """Return the ranks of a node that share cores or a GPU, or have too few or distant ones."""
    found = []

    def add(state: str, text: str, fix: str, is_wrong: Callable[[Facts], Any]) -> None:
        wrong = [each["rank"] for each in ranks if is_wrong(each)]
        if wrong:
            text = f"{node}: rank {format_numbers(wrong)} {text}"
            found.append(Finding(state, "binding", text, fix))

    # the ranks of one task, which torchrun starts, are not bound one by one
    users = Counter(core for core, _ in {(core, x["task"]) for x in ranks for core in x["cores"]})
    contested = {core for core, count in users.items() if count > 1}
    text = f"share cores {format_numbers(contested)}"
    add("warning", text, BINDING, lambda x: contested & set(x["cores"]))
    cores, tasks = ranks[0]["cores_of_node"], [each["task"] for each in ranks]
    if cores >= 4 * len(ranks):
        text = f"has at most one core, of {cores} for {len(ranks)} ranks"
        add("problem", text, BINDING, lambda x: len(x["cores"]) <= tasks.count(x["task"]))
    text = f"sees no GPU, but the job has {ranks[0]['gpus_asked']} on each node"
    add("problem", text, NO_GPU, lambda x: x["gpus_asked"] and not x["gpu"])
    # all cores where those near the GPU are not known
    near = {x["rank"]: set((x["gpu"] or x)["cores"] or x["cores"]) for x in ranks}
    text = "has no core near its GPU"
    add("warning", text, BINDING, lambda x: near[x["rank"]].isdisjoint(x["cores"]))
    uuids = [each["gpu"]["uuid"] for each in ranks if each["gpu"] and each["gpu"]["uuid"]]
    fix = "start one rank per GPU: --ntasks-per-node"
    add("problem", "share a GPU", fix, lambda x: x["gpu"] and uuids.count(x["gpu"]["uuid"]) > 1)
    return found


# ---------- speed


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


def best_links(links: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Return the better one of each node's links: a slow node slows its neighbours' down too."""
    best: dict[str, float] = {}
    for pair, figure in links.items():
        for node in pair:
            best[node] = max(figure, best.get(node, 0))
    return best


def speed_findings(topic: str, what: str, figures: Mapping[str, float]) -> list[Finding]:
    """Return the nodes with less than half of the median GB/s, or what all nodes have."""
    if not figures:
        return []
    median, low, high = (f(figures.values()) for f in (statistics.median, min, max))
    text = f"{what}: {low:.2f} to {high:.2f} GB/s, median {median:.2f}, on {len(figures)} nodes"
    return [
        Finding(
            *("problem", topic),
            f"{node} is slow: {what} {figure:.2f} GB/s, median {median:.2f}",
            f"{REPLACE}{node}; or check for other processes on the node",
        )
        for node, figure in figures.items()
        if figure < median / 2
    ] or [Finding("ok", topic, text)]


# ---------- NCCL's network, from its log (NCCL_DEBUG=INFO): the fast one, or plain sockets

# Only what the channels go through counts: NCCL opens a network before it knows whether it is used.
_CHANNEL = re.compile(r"\bvia NET/([\w ]+?)/\d")
_NETWORK = re.compile(r"\bUsing network ([\w ]+)")
_REASONS = {
    r"NET/OFI.*(?:[Cc]ould not find any optimal provider|No eligible providers)": (
        "aws-ofi-nccl finds no network on this node: bind the site's libfabric and its devices, "
        "and set FI_PROVIDER (cxi, efa)"
    ),
    r"NCCL_NET_PLUGIN set by environment to none|NCCL_IB_DISABLE set .*to 1": (
        "the environment disables the fast network: unset NCCL_NET_PLUGIN, NCCL_IB_DISABLE"
    ),
    r"Failed to open libibverbs": (
        "the image lacks libibverbs, which InfiniBand requires: add rdma-core to the image"
    ),
    r"NET/IB : No device found": (
        "no InfiniBand device is visible in the container: check NCCL_IB_HCA, and bind "
        "/dev/infiniband; on Slingshot and EFA: the plugin aws-ofi-nccl (libnccl-net.so) is not "
        "found, check binds and LD_LIBRARY_PATH of the site's job scripts"
    ),
    "": "compare the job with those of the site: binds, NCCL_*, FI_PROVIDER, aws-ofi-nccl",
}


def network_of(log: str) -> str:
    """Return what NCCL uses between nodes, according to its log: IB, Socket, AWS Libfabric, ..."""
    used = _CHANNEL.findall(log) or _NETWORK.findall(log)
    return ("Socket" if "Socket" in used else (used or [""])[0]).strip()


def network_fix(log: str) -> str:
    """Return the fix for NCCL on sockets, from the reason in its log."""
    return next(fix for reason, fix in _REASONS.items() if re.search(reason, log))


def network_findings(logs: Mapping[str, tuple[str, str]]) -> list[Finding]:
    """Return NCCL's network, or the nodes that fell back to sockets.

    `logs` contains, for each node, the results of `network_of` and `network_fix`.
    """
    kinds = {kind for kind, _ in logs.values()} - {""}
    if not kinds:
        fix = "check /etc/nccl.conf and ~/.nccl.conf for NCCL_DEBUG and NCCL_DEBUG_FILE"
        return [Finding("warning", "network", "NCCL does not report which network it uses", fix)]
    return [
        Finding("problem", "network", f"{node}: NCCL uses plain sockets", fix)
        for node, (kind, fix) in logs.items()
        if kind == "Socket"
    ] or [Finding("ok", "network", f"NCCL uses {', '.join(sorted(kinds))}")]
