"""One of the ranks that check_ranks.py starts: it measures, and reports to the store."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Callable

from network_findings import network_fix, network_of
from rank_findings import parse_numbers, rounds

ARRIVE, STEP = 40.0, 20.0  # seconds for all ranks to arrive, and for each measurement
TRIES = 30  # the fastest counts, as others may use the network and the cores
NODE = os.environ.get("SLURMD_NODENAME") or os.uname().nodename


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


def facts_of_rank(task: int, gpus: int) -> dict[str, Any]:
    """Return the rank, its node, and what it is bound to."""
    import torch

    cores = os.sched_getaffinity(0)
    numa = {}
    for folder in glob.glob("/sys/devices/system/node/node[0-9]*"):
        with open(f"{folder}/cpulist") as file:
            numa[int(folder.rpartition("node")[2])] = parse_numbers(file.read())
    gpu = None
    if torch.cuda.is_available():
        index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        gpu = _gpu(torch.cuda.get_device_properties(index), index, numa)
    return {
        "rank": int(os.environ["RANK"]),
        "task": task,
        "node": NODE,
        "cores": sorted(cores),
        "cores_of_node": os.cpu_count() or 1,
        "numa": [number for number, own in numa.items() if own & cores],
        "gpus_asked": gpus,
        "gpu": gpu,
    }


def _gpu(properties: Any, index: int, numa: Mapping[int, set[int]]) -> dict[str, Any]:
    """Describe a GPU; older versions of PyTorch do not report its bus."""
    bus = ""
    if hasattr(properties, "pci_bus_id"):
        bus = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        bus += f"{properties.pci_device_id:02x}.0"
    near: set[int] = set()
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/sys/bus/pci/devices/{bus}/numa_node") as f,
    ):
        near = numa.get(int(f.read()), set())
    uuid = str(getattr(properties, "uuid", ""))
    return {
        **{"index": index, "name": properties.name, "bus": bus, "uuid": uuid},
        "cores": sorted(near),
    }


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
    """One rank of a task, on a node with a number of GPUs."""

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
        if not layout["backend"]:
            return
        try:
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
        self.report("inside", self.inside(data, nodes))
        seconds = fastest(lambda: dist.all_reduce(data), self.tries)
        self.report("all", [data.nbytes, seconds])
        text = log.read()
        self.report("network", [network_of(text), network_fix(text)])
        dist.destroy_process_group()

    def pairs(self, data: Any, names: list[str], nodes: Mapping[str, Sequence[int]]) -> list[Any]:
        """Exchange data with the neighbours in the ring of nodes; return name and GB/s of each."""
        import torch
        import torch.distributed as dist

        own = names.index(NODE)
        place = nodes[NODE].index(self.number)
        received = torch.empty_like(data)
        found = []
        for pair in [each for some in rounds(len(names)) for each in some if own in each]:
            other = names[pair[0] if pair[1] == own else pair[1]]
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

    def inside(self, data: Any, nodes: Mapping[str, Sequence[int]]) -> list[float]:
        """Reduce among the ranks of this node; return bytes and seconds."""
        import torch.distributed as dist

        group = dist.new_group(list(nodes[NODE]), use_local_synchronization=True)
        return [data.nbytes, fastest(lambda: dist.all_reduce(data, group=group), self.tries)]
