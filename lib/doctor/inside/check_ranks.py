"""Measure how the ranks of a job talk to each other, for doctor.py --job.

    check_ranks.py RANKS GPUS brief|complete NODE,...

Each task of a step is called so and starts so many ranks; a node of the job has so many GPUs. The
first task hosts the store that all ranks report to, and judges: it takes no part itself, so that it
can name who does not answer. Each finding is a line: finding, state, topic, text, fix.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import judge_ranks as judge
from judge_network import network_findings
from judge_ranks import Finding
from measure_rank import ARRIVE, STEP, Rank, open_store

TASK = int(os.environ.get("RANK", "0"))
TRY = "run: srun --overlap --nodelist={} python3 container_run.py python -c 'import torch'"
LOOK = "check it: srun --overlap --nodelist={0} hostname; or exclude it: sbatch --exclude={0}"
# Where the backend was chosen, the order in which ranks report.
STAGES = ("group", "pairs", "inside", "all", "network")


class Judge:
    """The first task's view of all ranks.

    Parameters
    ----------
    count : int
        How many ranks there are.
    """

    def __init__(self, count: int) -> None:
        self.ranks = range(count)
        self.store = open_store(host=True)
        self.nodes: dict[str, list[int]] = {}
        self.node_of: dict[int, str] = {}

    def said(self, stage: str) -> dict[int, Any]:
        """Return what the ranks have reported."""
        keys = {rank: f"{stage}/{rank}" for rank in self.ranks}
        return {
            rank: json.loads(self.store.get(key))
            for rank, key in keys.items()
            if self.store.check([key])
        }

    def wait(self, stage: str, seconds: float) -> dict[int, Any]:
        """Wait until all have reported, or one has failed, or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.said(stage)
            if len(found) == len(self.ranks) or time.monotonic() > deadline:
                return found
            if stage != "failed" and self.said("failed"):
                time.sleep(2)  # others may fail for a reason of their own
                return self.said(stage)
            time.sleep(0.1)

    def run(self, names: Sequence[str], *, complete: bool) -> None:
        """Watch the ranks, and tell what is found."""
        here = self.wait("here", ARRIVE)
        for rank, facts in here.items():
            self.nodes.setdefault(facts["node"], []).append(rank)
            self.node_of[rank] = facts["node"]
        tell(judge.map_findings(list(here.values()), complete=complete))
        if len(here) < len(self.ranks):
            self.store.set("go", json.dumps({"backend": ""}))
            tell(self.absent(names))
            return
        blind = [rank for rank, facts in here.items() if not facts["gpu"]]
        backend = "gloo" if blind else "nccl"
        self.store.set("go", json.dumps({"backend": backend, "nodes": self.nodes}))
        said: dict[str, dict[int, Any]] = {}
        for stage in STAGES:
            said[stage] = self.wait(stage, STEP)
            if len(said[stage]) < len(self.ranks):
                tell(self.stuck(stage, said[stage]))
                said["pairs"] = said.get("pairs") or self.said("link")
                break
        tell(self.speeds(said))
        if len(said.get("network", {})) == len(self.ranks):
            tell([self.all_reduce(said["all"], backend), *self.network(said["network"], backend)])

    def absent(self, names: Sequence[str]) -> list[Finding]:
        """Say from which nodes not all have come."""
        due = len(self.ranks) // len(names)
        within = f"of {due} ranks reported within {ARRIVE:.0f} s"
        return [
            Finding(
                "problem",
                "all_reduce",
                f"{node}: only {len(self.nodes.get(node, ()))} {within}",
                TRY.format(node),
            )
            for node in names
            if len(self.nodes.get(node, ())) < due
        ]

    def stuck(self, stage: str, done: Mapping[int, Any]) -> list[Finding]:
        """Say who has failed or stopped, and otherwise who has not come to the end of a stage."""
        before = self.alive()
        time.sleep(3)
        now = self.alive()
        failed = self.said("failed")  # these have ended, and told why
        silent = [rank for rank in self.ranks if now[rank] == before[rank] and rank not in failed]
        if silent:
            return [
                Finding(
                    "problem", "all_reduce", f"{node}: rank {who} has stopped", LOOK.format(node)
                )
                for node, who in self.by_node(silent)
            ]
        if failed:
            return [
                Finding(
                    "problem",
                    "all_reduce",
                    f"{node}: rank {who}: {failed[first]}",
                    LOOK.format(node),
                )
                for node, who in self.by_node(failed)
                for first in [next(rank for rank in failed if self.node_of[rank] == node)]
            ]
        return [
            Finding(
                "problem",
                "all_reduce",
                f"{node}: rank {who} did not finish within {STEP:.0f} s ({stage})",
                LOOK.format(node),
            )
            for node, who in self.by_node([rank for rank in self.ranks if rank not in done])
        ]

    def alive(self) -> dict[int, bytes]:
        """Return each rank's last sign of life."""
        return {rank: self.store.get(f"alive/{rank}") for rank in self.ranks}

    def by_node(self, ranks: Any) -> list[tuple[str, str]]:
        """Return the nodes of some ranks, and which they are there."""
        some = set(ranks)
        found = ((node, some.intersection(own)) for node, own in self.nodes.items())
        return [(node, judge.shown(sorted(own))) for node, own in found if own]

    def speeds(self, said: Mapping[str, Mapping[int, Any]]) -> list[Finding]:
        """Return what is to be said of each node, by its links and in itself."""
        links: dict[tuple[str, str], float] = {}
        for rank, found in said.get("pairs", {}).items():
            for other, figure in found:
                pair = (self.node_of[rank], other)
                links[pair] = links.get(pair, 0) + figure
        inside = {
            self.node_of[rank]: judge.bus_bandwidth(*found, len(self.nodes[self.node_of[rank]]))
            for rank, found in said.get("inside", {}).items()
            if len(self.nodes[self.node_of[rank]]) > 1
        }
        between = judge.best_links(links)
        return [
            *judge.speed_findings("links", "to its neighbours", between),
            *judge.speed_findings("all_reduce", "among its own ranks", inside),
        ]

    def all_reduce(self, said: Mapping[int, Any], backend: str) -> Finding:
        """Return the bandwidth over all ranks: that of the slowest."""
        if len(self.ranks) == 1:
            return Finding("ok", "all_reduce", f"one rank, by {backend}: no other rank")
        size, seconds = max(said.values(), key=lambda each: float(each[1]))
        figure = judge.bus_bandwidth(size, seconds, len(self.ranks))
        text = (
            f"{len(self.ranks)} ranks on {len(self.nodes)} nodes by {backend}: "
            f"{figure:.2f} GB/s bus bandwidth, {size >> 20} MiB in {seconds * 1e3:.2f} ms"
        )
        return Finding("ok", "all_reduce", text)

    def network(self, said: Mapping[int, Any], backend: str) -> list[Finding]:
        """Return what it went over."""
        if len(self.nodes) == 1:
            return [Finding("ok", "network", "not tested: requires two nodes")]
        if backend != "nccl":
            return [Finding("ok", "network", "not tested: no GPUs, so gloo over sockets, not NCCL")]
        return network_findings({self.node_of[rank]: tuple(own) for rank, own in said.items()})


def tell(findings: Sequence[Finding]) -> None:
    """Print findings for doctor.py's script."""
    for each in findings:
        print("finding", *(" ".join(part.split()) for part in each), sep="\t", flush=True)


def start_rank(number: int, count: int, gpus: str) -> subprocess.Popen[bytes]:
    """Start one of a task's ranks."""
    environ = dict(os.environ)
    environ["RANK"] = str(TASK * count + number)
    environ["LOCAL_RANK"] = str(int(environ.get("LOCAL_RANK", "0")) * count + number)
    environ["WORLD_SIZE"] = str(int(environ.get("WORLD_SIZE", "1")) * count)
    return subprocess.Popen([sys.executable, __file__, "rank", str(TASK), gpus], env=environ)


def main() -> None:
    """Be the judge, a rank, or the task that starts ranks."""
    if importlib.util.find_spec("torch") is None:
        sys.exit(
            "error: PyTorch not found in the environment: cannot measure the ranks\n"
            "hint: run: python3 set_up.py install; or set container.image to an image with PyTorch"
        )
    if sys.argv[1] == "rank":
        Rank(task=int(sys.argv[2]), gpus=int(sys.argv[3])).run()
        os._exit(0)  # the thread that shows life would hold the store, and with it the end
    count, gpus = int(sys.argv[1]), sys.argv[2]
    started = [start_rank(number, count, gpus) for number in range(count)]
    try:
        if TASK == 0:
            world = count * int(os.environ.get("WORLD_SIZE", "1"))
            Judge(world).run(sys.argv[4].split(","), complete=sys.argv[3] == "complete")
            tell([Finding("end", "", "")])
        for each in started:
            each.wait()
    finally:
        for each in started:
            each.kill()


if __name__ == "__main__":
    main()
