"""How long a job waits for its first import, by number of nodes: a model, no measurement.

What is measured on one node (calls, bytes, seconds, see scale.py) is multiplied; what a Lustre does
at scale is published: Dell EMC, "Dell HPC Lustre Storage solution with Mellanox Infiniband EDR"
(240 disks, Lustre 2.7.15): stat of files 34,000 a second by 12 threads, 544,000 at most (figure
12); reading 18.5 GB/s at most, 1.5 GB/s by one client (figure 10).

A file system that other jobs use as well is slower, so the model is kind to what asks it most. The
latency of single reads is left out, and so is what a client's cache of names spares.
"""

from __future__ import annotations

from dataclasses import dataclass

from tables import Table, plural, seconds

STATS_PER_SECOND = 544_000
STATS_PER_SECOND_AND_THREAD = 34_000 / 12
READ_BANDWIDTH = 18.5e9
CLIENT_BANDWIDTH = 1.5e9
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
    """

    path_operations: float
    read_bytes: float
    seconds: float


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
    return metadata + demand.read_bytes / bandwidth + demand.seconds


def model_table(demands: dict[str, Demand], ranks: int) -> Table:
    """Return the model's table.

    Parameters
    ----------
    demands : mapping
        Of each way, by its name.
    ranks : int
        On each node.
    """
    rows, figures = [], {}
    for name, demand in demands.items():
        figures[name] = [first_import(demand, nodes, ranks) for nodes in NODES]
        rows.append((name, *map(seconds, figures[name])))
    note = (
        "**A model, not a measurement.** Measured on one node: path operations of a rank, bytes of "
        "a node, seconds of a warm launch. Published: what a Lustre of 240 disks serves "
        "(Dell), which benchmarks/model.py cites."
    )
    heads = [f"{plural(each, 'node')}" for each in NODES]
    columns = (f"model: seconds to the last rank's import, {plural(ranks, 'rank')} a node", *heads)
    return Table(columns, rows, note, figures=figures)
