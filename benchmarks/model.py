"""How long a job waits for its first import, by number of nodes: a model, no measurement.

What is measured on one node (calls, bytes, seconds, see scale.py) is multiplied; what a file system
and a broadcast do at scale is published:

- Lustre: Dell EMC, "Dell HPC Lustre Storage solution with Mellanox Infiniband EDR" (240 disks,
  Lustre 2.7.15): stat of files 34,000 a second by 12 threads, 544,000 at most (figure 12); reading
  18.5 GB/s at most, 1.5 GB/s by one client (figure 10).
- Broadcast: ezpz, docs/cli/yeet.md (github.com/saforem2/ezpz), also sam.onl/posts/2026/05/01: the
  archive of an environment of 8.3 GB to node-local storage of 8 to 4,096 nodes of Aurora, unpacking
  included, measured 2026-04-30 to 2026-05-01.

A file system that other jobs use as well is slower, so the model is kind to what asks it most. The
latency of single reads is left out, and so is what a client's cache of names spares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tables import Table, megabytes, plural, seconds

STATS_PER_SECOND = 544_000
STATS_PER_SECOND_AND_THREAD = 34_000 / 12
READ_BANDWIDTH = 18.5e9
CLIENT_BANDWIDTH = 1.5e9
# Assumed, as no site publishes it: what such a Lustre has left for one job where others work too.
SHARED_BANDWIDTH = 5e9
# Measured: the part of an overlay that an import reads (benchmarks/results/results.md).
READ_SHARE = 0.21
BROADCAST_BYTES = 8.3e9
# nodes: seconds of the broadcast
BROADCAST_SECONDS = {
    8: 69.7,
    16: 89.7,
    32: 89.2,
    64: 91.2,
    128: 110.4,
    256: 132.9,
    512: 174.5,
    1024: 255.4,
    2048: 421.4,
    4096: 750.6,
}
NODES = (1, 8, 64, 512, 4096)


@dataclass(frozen=True)
class Demand:
    """What the import on one node asks of the shared file system, as measured.

    Parameters
    ----------
    path_operations : float
        Of one rank.
    read_bytes : float
        Of one node; its ranks share the node's page cache.
    seconds : float
        Of one rank's launch and import with a warm cache, which do not grow with the nodes.
    broadcast_bytes : float
        What is sent to each node before; 0 where nothing is.
    """

    path_operations: float
    read_bytes: float
    seconds: float
    broadcast_bytes: float = 0.0


def first_import(demand: Demand, nodes: int, ranks: int) -> float:
    """Return the seconds from the start of the job's step to the last rank's import.

    Parameters
    ----------
    demand : Demand
        What a node asks for.
    nodes : int
        How many.
    ranks : int
        On each of them.
    """
    asked = demand.path_operations
    one_rank = asked / STATS_PER_SECOND_AND_THREAD  # it asks one thing after the other
    metadata = max(one_rank, nodes * ranks * asked / STATS_PER_SECOND)
    bandwidth = min(CLIENT_BANDWIDTH, READ_BANDWIDTH / nodes)
    sending = broadcast(nodes, demand.broadcast_bytes)
    return sending + metadata + demand.read_bytes / bandwidth + demand.seconds


def broadcast(nodes: int, size: float) -> float:
    """Return the seconds of sending so many bytes to so many nodes.

    Between two published numbers of nodes it is a straight line of the logarithms; below the first
    it takes as long as there. It is proportional to the size.
    """
    known = sorted(BROADCAST_SECONDS)
    nodes = min(max(nodes, known[0]), known[-1])
    above = next(each for each in known if each >= nodes)
    below = max((each for each in known if each <= nodes), default=above)
    share = math.log(nodes / below) / math.log(above / below) if above > below else 0.0
    low, high = (math.log(BROADCAST_SECONDS[each]) for each in (below, above))
    return math.exp(low + share * (high - low)) * size / BROADCAST_BYTES


def gain(nodes: int, size: float) -> float:
    """Return the seconds by which sending so many bytes to so many nodes is faster than reading.

    lib/jobs/stage.bash decides by a straight line through it.
    """
    return READ_SHARE * size * nodes / SHARED_BANDWIDTH - broadcast(nodes, size)


def break_even(one: Demand, other: Demand, ranks: int) -> int:
    """Return the smallest power of two, up to 4,096, from which on the first is faster; else 0."""
    faster = 0
    for exponent in reversed(range(13)):
        nodes = 2**exponent
        if first_import(one, nodes, ranks) >= first_import(other, nodes, ranks):
            break
        faster = nodes
    return faster


def needed_bandwidth(mounted: Demand, staged: Demand, nodes: int = NODES[-1]) -> float:
    """Return the bytes per second of the file system below which sending is faster than reading."""
    return nodes * mounted.read_bytes / broadcast(nodes, staged.broadcast_bytes)


def model_table(demands: dict[str, Demand], ranks: int) -> Table:
    """Return the model's table.

    Parameters
    ----------
    demands : mapping
        Of each way, by its name: a venv, other ways, and what is staged as the last.
    ranks : int
        On each node.
    """
    rows, figures = [], {}
    for name, demand in demands.items():
        figures[name] = [first_import(demand, nodes, ranks) for nodes in NODES]
        rows.append((name, *map(seconds, figures[name])))
    *_, overlay, staged = demands.values()
    size = megabytes(staged.broadcast_bytes)
    nodes = break_even(staged, overlay, ranks)
    faster = f"from {plural(nodes, 'node')} on" if nodes else "at no number of nodes up to 4,096"
    note = (
        "**A model, not a measurement.** Measured on one node: path operations of a rank, bytes of "
        "a node, seconds of a warm launch. Published: what a Lustre of 240 disks serves "
        "(Dell) and how long a broadcast to as many nodes of Aurora took (ezpz, 8.3 GB, with "
        f"unpacking; here {size} in proportion). benchmarks/model.py cites both. By it, staging is "
        f"faster than mounting the shared files {faster}; on {NODES[-1]:,} it is where the file "
        f"system gives this job less than {needed_bandwidth(overlay, staged) / 1e9:.1f} GB/s."
    )
    heads = [f"{plural(each, 'node')}" for each in NODES]
    columns = (f"model: seconds to the last rank's import, {plural(ranks, 'rank')} a node", *heads)
    return Table(columns, rows, note, figures=figures)
