"""Measure how the ranks of a job communicate, for doctor.py --job.

    check_ranks.py RANKS GPUS brief|complete NODE,...

Each task of a step is called so and starts RANKS ranks; a node of the job has GPUS GPUs. The first
task hosts the store that all ranks report to and monitors them: it is no rank itself, so that it
can name a rank that does not respond. Each finding is a line: finding, state, topic, text, fix.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rank_findings
from measure_rank import ARRIVE, STEP, Rank, open_store
from network_findings import network_findings
from rank_findings import Finding, bus_bandwidth, format_numbers

TASK = int(os.environ.get("RANK", "0"))
TRY = "run: srun --overlap --nodelist={} python3 container_run.py python -c 'import torch'"
LOOK = "check it: srun --overlap --nodelist={0} hostname; or exclude it: sbatch --exclude={0}"
# Once the backend is chosen, the order in which ranks report.
STAGES = ("group", "pairs", "inside", "all", "network")


class RankMonitor:
    """The first task's view of all ranks."""

    def __init__(self, count: int) -> None:
        self.ranks = range(count)
        self.store = open_store(host=True)
        self.nodes: dict[str, list[int]] = {}
        self.node_of: dict[int, str] = {}

    def reports(self, stage: str) -> dict[int, Any]:
        """Return the reports of a stage, by rank."""
        keys = {rank: f"{stage}/{rank}" for rank in self.ranks}
        return {
            rank: json.loads(self.store.get(key))
            for rank, key in keys.items()
            if self.store.check([key])
        }

    def wait(self, stage: str, seconds: float) -> dict[int, Any]:
        """Return the reports when all ranks have reported, one has failed, or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.reports(stage)
            if len(found) == len(self.ranks) or time.monotonic() > deadline:
                return found
            if stage != "failed" and self.reports("failed"):
                time.sleep(2)  # others may fail for a reason of their own
                return self.reports(stage)
            time.sleep(0.1)

    def run(self, names: Sequence[str], *, complete: bool) -> None:
        """Monitor the ranks, and print the findings."""
        arrived = self.wait("here", ARRIVE)
        for rank, facts in arrived.items():
            self.nodes.setdefault(facts["node"], []).append(rank)
            self.node_of[rank] = facts["node"]
        print_findings(rank_findings.map_findings(list(arrived.values()), complete=complete))
        if len(arrived) < len(self.ranks):
            self.store.set("go", json.dumps({"backend": ""}))
            print_findings(self.absent(names))
            return
        backend = "nccl" if all(facts["gpu"] for facts in arrived.values()) else "gloo"
        self.store.set("go", json.dumps({"backend": backend, "nodes": self.nodes}))
        reports: dict[str, dict[int, Any]] = {}
        for stage in STAGES:
            reports[stage] = self.wait(stage, STEP)
            if len(reports[stage]) < len(self.ranks):
                print_findings(self.stuck(stage, reports[stage]))
                reports["pairs"] = reports.get("pairs") or self.reports("link")
                break
        print_findings(self.speeds(reports))
        if len(reports.get("network", {})) == len(self.ranks):
            print_findings([self.all_reduce(reports["all"], backend)])
            print_findings(self.network(reports["network"], backend))

    def absent(self, names: Sequence[str]) -> list[Finding]:
        """Name the nodes from which ranks are missing."""
        due = len(self.ranks) // len(names)
        within = f"of {due} ranks reported within {ARRIVE:.0f} s"
        arrived = {node: len(self.nodes.get(node, ())) for node in names}
        return [
            problem(f"{node}: only {count} {within}", TRY.format(node))
            for node, count in arrived.items()
            if count < due
        ]

    def stuck(self, stage: str, done: Mapping[int, Any]) -> list[Finding]:
        """Name the ranks that have stopped or failed, else those that did not finish a stage."""
        before = self.signs_of_life()
        time.sleep(3)
        now = self.signs_of_life()
        failed = self.reports("failed")  # these have ended, and reported why
        silent = [rank for rank in self.ranks if now[rank] == before[rank] and rank not in failed]
        unfinished = [rank for rank in self.ranks if rank not in done]
        found = []
        for node, ranks in self.by_node(silent or failed or unfinished):
            state = f" did not finish within {STEP:.0f} s ({stage})"
            if silent:
                state = " has stopped"
            elif failed:
                state = f": {failed[ranks[0]]}"
            text = f"{node}: rank {format_numbers(ranks)}{state}"
            found.append(problem(text, LOOK.format(node)))
        return found

    def signs_of_life(self) -> dict[int, bytes]:
        """Return each rank's last sign of life."""
        return {rank: self.store.get(f"alive/{rank}") for rank in self.ranks}

    def by_node(self, ranks: Iterable[int]) -> list[tuple[str, list[int]]]:
        """Return the nodes of some ranks, and which of the ranks run there."""
        some = set(ranks)
        found = ((node, sorted(some.intersection(own))) for node, own in self.nodes.items())
        return [(node, own) for node, own in found if own]

    def speeds(self, reports: Mapping[str, Mapping[int, Any]]) -> list[Finding]:
        """Return the findings about each node's links, and about its own ranks."""
        links: dict[tuple[str, str], float] = {}
        for rank, found in reports.get("pairs", {}).items():
            for other, figure in found:
                pair = (self.node_of[rank], other)
                links[pair] = links.get(pair, 0) + figure
        inside = {
            node: bus_bandwidth(*found, len(self.nodes[node]))
            for rank, found in reports.get("inside", {}).items()
            for node in [self.node_of[rank]]
            if len(self.nodes[node]) > 1
        }
        between = rank_findings.best_links(links)
        return [
            *rank_findings.speed_findings("links", "to its neighbours", between),
            *rank_findings.speed_findings("all_reduce", "among its own ranks", inside),
        ]

    def all_reduce(self, reports: Mapping[int, Any], backend: str) -> Finding:
        """Return the bandwidth over all ranks, which is that of the slowest."""
        if len(self.ranks) == 1:
            return Finding("ok", "all_reduce", f"one rank, by {backend}: no other rank")
        size, seconds = max(reports.values(), key=lambda each: float(each[1]))
        figure = bus_bandwidth(size, seconds, len(self.ranks))
        text = (
            f"{len(self.ranks)} ranks on {len(self.nodes)} nodes by {backend}: "
            f"{figure:.2f} GB/s bus bandwidth, {size >> 20} MiB in {seconds * 1e3:.2f} ms"
        )
        return Finding("ok", "all_reduce", text)

    def network(self, reports: Mapping[int, Any], backend: str) -> list[Finding]:
        """Return which network was used."""
        if len(self.nodes) == 1:
            return [Finding("ok", "network", "not tested: requires two nodes")]
        if backend != "nccl":
            return [Finding("ok", "network", "not tested: no GPUs, so gloo over sockets, not NCCL")]
        return network_findings({self.node_of[rank]: tuple(own) for rank, own in reports.items()})


def problem(text: str, fix: str) -> Finding:
    """Return a problem of the ranks."""
    return Finding("problem", "all_reduce", text, fix)


def print_findings(findings: Sequence[Finding]) -> None:
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
    """Be a rank, or the task that starts ranks; the first task is the monitor too."""
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
            RankMonitor(world).run(sys.argv[4].split(","), complete=sys.argv[3] == "complete")
            print_findings([Finding("end", "", "")])
        for each in started:
            each.wait()
    finally:
        for each in started:
            each.kill()


if __name__ == "__main__":
    main()
