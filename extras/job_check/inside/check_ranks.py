"""Measure how the ranks of a job communicate, for doctor.py --job.

    check_ranks.py RANKS GPUS brief|complete NODE,...

Each task of a step is called so and starts RANKS ranks; a node of the job has GPUS GPUs. The first
task hosts the store that all ranks report to and monitors them: it is no rank itself, so that it
can name a rank that does not respond. Each finding is a line: finding, state, topic, text, fix.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Callable

import rank_findings
from rank_findings import Finding, bus_bandwidth, format_numbers

ARRIVE, STEP = 40.0, 20.0  # seconds for all ranks to arrive, and for each measurement
TRIES = 30  # the fastest counts, as others may use the network and the cores
TASK = int(os.environ.get("RANK", "0"))
NODE = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
TRY = "run: srun --overlap --nodelist={} python3 container_run.py python -c 'import torch'"
LOOK = "check it: srun --overlap --nodelist={0} hostname; or exclude it: sbatch --exclude={0}"
# Once the backend is chosen, the order in which ranks report.
STAGES = ("group", "pairs", "inside", "all", "network")


def open_store(*, host: bool) -> Any:
    """Open the store at MASTER_ADDR, or host it."""
    from torch.distributed import TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        limit = timedelta(seconds=ARRIVE)
        return TCPStore(address, port, None, host, limit, wait_for_workers=False)
    except RuntimeError as error:  # TCPStore has no class of its own
        reason = str(error).splitlines()[0]
        sys.exit(
            f"error: {NODE} cannot {'listen' if host else 'reach the first rank'} at "
            f"{address}, port {port}: {reason}\n"
            "hint: check address and port above; a firewall must allow the port between nodes"
        )


# ---------- a rank


def facts_of_rank(task: int, gpus: int) -> dict[str, Any]:
    """Return the rank, its node, and what it is bound to."""
    import torch

    cores, numa, gpu = os.sched_getaffinity(0), {}, None
    for directory in glob.glob("/sys/devices/system/node/node[0-9]*"):
        with open(f"{directory}/cpulist") as file:
            numa[int(directory.rpartition("node")[2])] = rank_findings.parse_numbers(file.read())
    if torch.cuda.is_available():
        index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        gpu = _gpu(torch.cuda.get_device_properties(index), index, numa)
    return {
        **{"rank": int(os.environ["RANK"]), "task": task, "node": NODE, "cores": sorted(cores)},
        **{"numa": [number for number, own in numa.items() if own & cores], "gpu": gpu},
        **{"cores_of_node": os.cpu_count() or 1, "gpus_asked": gpus},
    }


def _gpu(properties: Any, index: int, numa: Mapping[int, set[int]]) -> dict[str, Any]:
    """Describe a GPU; older versions of PyTorch do not report its bus."""
    bus, near = "", set()
    if hasattr(properties, "pci_bus_id"):
        bus = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        bus += f"{properties.pci_device_id:02x}.0"
    where = f"/sys/bus/pci/devices/{bus}/numa_node"
    with contextlib.suppress(OSError, ValueError), open(where) as file:
        near = numa.get(int(file.read()), set())
    uuid = str(getattr(properties, "uuid", ""))
    names = {"index": index, "name": properties.name, "bus": bus, "uuid": uuid}
    return {**names, "cores": sorted(near)}


def fastest(operation: Callable[[], None], tries: int) -> float:
    """Return the seconds of the fastest try, after one that opens the connections."""
    import torch

    times = []
    for _ in range(tries + 1):
        begin = time.perf_counter()
        operation()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


class Rank:
    """One rank of a task: it measures, and reports to the store."""

    def __init__(self, task: int, gpus: int) -> None:
        self.number = int(os.environ["RANK"])
        self.store = open_store(host=False)
        self.facts = facts_of_rank(task, gpus)

    def report(self, stage: str, result: Any) -> None:
        """Send a result to the monitor."""
        self.store.set(f"{stage}/{self.number}", json.dumps(result))

    def show_life(self) -> None:
        """Show the monitor that this process runs, whatever it waits for."""
        store = open_store(host=False)
        with contextlib.suppress(RuntimeError):  # the monitor has ended
            while True:
                store.set(f"alive/{self.number}", str(time.time()))
                time.sleep(1)

    def run(self) -> None:
        """Arrive, measure, and report an error."""
        self.store.set(f"alive/{self.number}", "0")
        threading.Thread(target=self.show_life, daemon=True).start()
        self.report("here", self.facts)
        layout = json.loads(self.store.get("go"))
        try:
            if layout["backend"]:
                self.measure(layout["backend"], layout["nodes"])
        except RuntimeError as error:
            self.report("failed", (str(error).splitlines() or [""])[0])

    def measure(self, backend: str, nodes: Mapping[str, Sequence[int]]) -> None:
        """Measure pairs of nodes, each node in itself, and all ranks together."""
        import torch
        import torch.distributed as dist

        on_gpu = backend == "nccl"
        device = torch.device("cuda" if on_gpu else "cpu")
        # in memory, so that nothing is left of a rank that is killed
        log = open(os.memfd_create("nccl"), errors="replace")  # noqa: SIM115
        own = f"/proc/self/fd/{log.fileno()}"
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=own, NCCL_DEBUG_SUBSYS="INIT,NET,ENV")
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", self.store),
            rank=self.number,
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=4 * STEP),  # the monitor must see them wait
        )
        data = torch.zeros((64 if on_gpu else 1) << 20, device=device)
        # as many as go into two seconds, and all ranks the same number
        tries = 2 / fastest(lambda: dist.all_reduce(data), 1)
        agreed = torch.tensor([min(max(int(tries), 2), TRIES)], device=device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        self.tries = int(agreed.item())
        self.report("group", self.tries)
        self.report("pairs", self.pairs(data, list(nodes), nodes))
        group = dist.new_group(list(nodes[NODE]), use_local_synchronization=True)

        def all_reduce(ranks: Any = None) -> list[float]:
            return [data.nbytes, fastest(lambda: dist.all_reduce(data, group=ranks), self.tries)]

        self.report("inside", all_reduce(group))
        self.report("all", all_reduce())
        text = log.read()
        self.report("network", [rank_findings.network_of(text), rank_findings.network_fix(text)])
        dist.destroy_process_group()

    def pairs(self, data: Any, names: list[str], nodes: Mapping[str, Sequence[int]]) -> list[Any]:
        """Exchange data with the neighbours in the ring of nodes; return name and GB/s of each."""
        import torch
        import torch.distributed as dist

        own, place = names.index(NODE), nodes[NODE].index(self.number)
        received, found = torch.empty_like(data), []
        links = (each for some in rank_findings.rounds(len(names)) for each in some if own in each)
        for first, second in links:
            other = names[first if second == own else second]
            if place >= len(nodes[other]):
                continue
            peer = nodes[other][place]

            def exchange(peer: int = peer) -> None:
                both = [dist.P2POp(dist.isend, data, peer), dist.P2POp(dist.irecv, received, peer)]
                for each in dist.batch_isend_irecv(both):
                    each.wait()

            found.append([other, data.nbytes / fastest(exchange, self.tries) / 1e9])
            self.report("link", found)
        return found


# ---------- the monitor


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
        done = [rank for rank, key in keys.items() if self.store.check([key])]
        return {rank: json.loads(self.store.get(keys[rank])) for rank in done}

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
        named = set(silent or failed or set(self.ranks) - set(done))
        found = []
        for node, ranks in self.nodes.items():
            here = sorted(named.intersection(ranks))
            state = f" did not finish within {STEP:.0f} s ({stage})"
            if silent:
                state = " has stopped"
            elif failed and here:
                state = f": {failed[here[0]]}"
            if here:
                text = f"{node}: rank {format_numbers(here)}{state}"
                found.append(problem(text, LOOK.format(node)))
        return found

    def signs_of_life(self) -> dict[int, bytes]:
        """Return when each rank last showed that it runs, as text."""
        return {rank: self.store.get(f"alive/{rank}") for rank in self.ranks}

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
        count = len(self.ranks)
        if count == 1:
            return Finding("ok", "all_reduce", f"one rank, by {backend}: no other rank")
        size, seconds = max(reports.values(), key=lambda each: float(each[1]))
        figure = f"{bus_bandwidth(size, seconds, count):.2f} GB/s bus bandwidth"
        text = f"{count} ranks on {len(self.nodes)} nodes by {backend}: {figure}, "
        return Finding("ok", "all_reduce", f"{text}{size >> 20} MiB in {seconds * 1e3:.2f} ms")

    def network(self, reports: Mapping[int, Any], backend: str) -> list[Finding]:
        """Return the network that NCCL used between nodes, or why none was tested."""
        if len(self.nodes) == 1:
            return [Finding("ok", "network", "not tested: requires two nodes")]
        if backend != "nccl":
            return [Finding("ok", "network", "not tested: no GPUs, so gloo over sockets, not NCCL")]
        logs = {self.node_of[rank]: tuple(own) for rank, own in reports.items()}
        return rank_findings.network_findings(logs)


def problem(text: str, fix: str) -> Finding:
    """Return a problem of the topic all_reduce."""
    return Finding("problem", "all_reduce", text, fix)


def print_findings(findings: Iterable[Finding]) -> None:
    """Print a line for each finding, its parts between tabs."""
    for each in findings:
        print("finding", *(" ".join(part.split()) for part in each), sep="\t", flush=True)


def start_rank(number: int, count: int, gpus: str) -> subprocess.Popen[bytes]:
    """Start one of the `count` ranks of this task, with torchrun's variables."""
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
