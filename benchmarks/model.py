"""How long a job waits for its first import, by number of nodes: a model, not a measurement.

It multiplies measurements on one node (calls, bytes, seconds, see scale.py). The performance of
Lustre is published: Dell EMC, "Dell HPC Lustre Storage solution with Mellanox Infiniband EDR" (240
disks, Lustre 2.7.15): 34,000 stats per second with 12 threads, at most 544,000 (figure 12); reading
at most 18.5 GB/s, 1.5 GB/s by one client (figure 10).

A file system that other jobs also use is slower, so the model favours the alternative with the most
requests. It leaves out the effect of a client's name cache. How a job waits for a file system that
answers late is measured: see `waits`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tables import Table, plural, seconds

STATS_PER_SECOND = 544_000
STATS_PER_SECOND_AND_THREAD = 34_000 / 12
READ_BANDWIDTH = 18.5e9
CLIENT_BANDWIDTH = 1.5e9
NODES = (1, 8, 64, 512, 4096)
LATENCIES = (0, 1, 10)  # milliseconds that each request waits, in addition


@dataclass(frozen=True)
class Demand:
    """Measured load of the import on one node on the shared file system.

    Parameters
    ----------
    path_operations : float
        Per rank.
    read_bytes : float
        Per node, because its ranks share the page cache.
    seconds : float
        Launch and import of a rank with a warm cache, which do not depend on the number of nodes.
    waits : float
        Requests of a node with empty caches that wait for each other; others wait at the same time.
    """

    path_operations: float
    read_bytes: float
    seconds: float
    waits: float


def first_import(demand: Demand, nodes: int, ranks: int, latency: float = 0) -> float:
    """Return the seconds from the start of the job's step to the last rank's import.

    Parameters
    ----------
    demand : Demand
        Load of one node.
    nodes : int
        Number of nodes.
    ranks : int
        Ranks per node.
    latency : float
        Milliseconds that each request waits, in addition.
    """
    requests = demand.path_operations
    one_rank = requests / STATS_PER_SECOND_AND_THREAD  # a rank sends one request after the other
    metadata = max(one_rank, nodes * ranks * requests / STATS_PER_SECOND)
    bandwidth = min(CLIENT_BANDWIDTH, READ_BANDWIDTH / nodes)
    waiting = demand.waits * latency / 1000
    return metadata + demand.read_bytes / bandwidth + demand.seconds + waiting


def model_table(demands: dict[str, Demand], ranks: int) -> Table:
    """Return the model's table.

    Parameters
    ----------
    demands : mapping
        Load of each alternative, by its name.
    ranks : int
        Ranks per node.
    """
    rows, figures = [], {}
    for latency, (name, demand) in itertools.product(LATENCIES, demands.items()):
        found = [first_import(demand, nodes, ranks, latency) for nodes in NODES]
        figures.setdefault(name, found)  # the plot has those without latency
        rows.append((name, f"{latency} ms", *map(seconds, found)))
    note = (
        "**A model, not a measurement.** Measured on one node: path operations of a rank, bytes of "
        "a node, seconds of a warm launch, requests that wait for each other. Published: what a "
        "Lustre of 240 disks serves (Dell), which benchmarks/model.py cites."
    )
    heads = [f"{plural(each, 'node')}" for each in NODES]
    columns = (
        f"model: seconds to the last rank's import, {plural(ranks, 'rank')} a node",
        "latency",
        *heads,
    )
    return Table(columns, rows, note, figures=figures)
