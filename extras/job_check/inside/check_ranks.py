"""The ranks of a task: does all_reduce give the right sums, and how fast? For doctor.py --job.

A task that has its node to itself starts a rank for each GPU, or two, as torchrun does; of several
tasks each is one. A rank prints a JSON object for what it begins and measures, so that its last
line tells how far it got. It waits for others for as long as srun lets it.
"""

from __future__ import annotations

import glob
import json
import os
import re
import socket
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

# MiB. NVIDIA/nccl#2001: some sums were wrong, without an error, most often of 1 MiB. The last one
# is for GPUs: sites tell the bandwidth of large sizes.
SIZES = [1 / 16, 1 / 4, 1, 2, 4, 8, 64, 1024]
NODE = os.environ.get("SLURMD_NODENAME") or os.uname().nodename


class Rank:
    """One rank, which prints what it does."""

    def __init__(self, local: int, count: int, gpus: int) -> None:
        self.number = int(os.environ.get("RANK", "0")) * count + local
        self.world = int(os.environ.get("WORLD_SIZE", "1")) * count
        self.local = int(os.environ.get("LOCAL_RANK", "0")) * count + local
        self.gpus, self.step = gpus, 0

    def tell(self, **facts: Any) -> None:
        """Print facts in one piece, as other ranks print too."""
        about = {"rank": self.number, "node": NODE, "world": self.world}
        os.write(1, f"{json.dumps({**about, **facts})}\n".encode())

    def begin(self, stage: str) -> None:
        """Print what follows; all ranks begin as many stages, in the same order."""
        self.step += 1
        self.tell(stage=stage, step=self.step)

    def run(self) -> None:
        """Meet the other ranks, and measure."""
        self.begin("import of PyTorch")
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.device = torch, dist, torch.device("cpu")
        if self.gpus:
            if not torch.cuda.is_available():
                raise RuntimeError(f"PyTorch sees no GPU, but the job has {self.gpus} here")
            self.device = torch.device("cuda", self.local % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        backend = "nccl" if self.gpus else "gloo"
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.begin(f"rendezvous at {address}, port {port}")
        patience, first = timedelta(hours=1), self.number == 0
        store = dist.TCPStore(address, port, self.world, first, patience)
        self.tell(family=family_of_connection(port), backend=backend)
        store.set(f"node/{self.number}", NODE)
        of_ranks = store.multi_get([f"node/{rank}" for rank in range(self.world)])
        # in memory, so that nothing is left of a rank that is killed
        log = open(os.memfd_create("nccl"), errors="replace")  # noqa: SIM115
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"/proc/self/fd/{log.fileno()}")
        self.begin(f"start of {backend}")
        dist.init_process_group(backend, None, patience, self.world, self.number, store)
        for size in SIZES if self.gpus else SIZES[:-1]:
            self.all_reduce(size, "all ranks", range(self.world))
        self.compare_nodes([name.decode() for name in of_ranks])
        self.tell(network=network_of(log.read()))
        self.begin("end")
        dist.barrier()

    def compare_nodes(self, of_ranks: Sequence[str]) -> None:
        """Measure within each node, and then between neighbours in a ring of nodes.

        Among all, each rank waits for the slowest. In a round a node has at most one neighbour.
        """
        nodes = list(dict.fromkeys(of_ranks))
        ring = list(zip(nodes, [*nodes[1:], nodes[0]])) if len(nodes) > 2 else []
        last = [ring.pop()] if len(ring) % 2 else []
        for links in filter(None, ([(NODE,)], ring[::2], ring[1::2], last)):
            # PyTorch needs as many groups on all ranks: one without a link stays within its node
            link = next((each for each in links if NODE in each), (NODE,))
            ranks = [rank for rank, node in enumerate(of_ranks) if node in link]
            group = self.dist.new_group(ranks, use_local_synchronization=True)
            among = "neighbouring nodes" if len(link) > 1 else "ranks of a node"
            self.all_reduce(64 if self.gpus else 8, among, ranks, group)

    def all_reduce(self, size: float, among: str, ranks: Sequence[int], group: Any = None) -> None:
        """Verify sums of data that differ in each rank, element and try; tell the fastest try.

        float32 holds integers below 2^24 exactly, in whatever order they are added. The bus
        bandwidth is that of nccl-tests (doc/PERFORMANCE.md): in a ring each link carries
        2 (n - 1) / n of the data.
        """
        self.begin(f"all_reduce of {size:g} MiB among {among}")
        wrong, times = 0, []
        index = self.torch.arange(int(size * 2**18), dtype=self.torch.int32, device=self.device)
        few = size == SIZES[-1] or not (self.gpus or group)  # that take long
        for number in range(3 if few else 20):
            pattern = ((index + number) % 251).float()
            data = pattern + self.number % 97
            self.dist.barrier(group)
            begin = time.perf_counter()
            self.dist.all_reduce(data, group=group)
            if self.gpus:
                self.torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
            wrong += int((data != pattern * len(ranks) + sum(x % 97 for x in ranks)).sum())
        speed = 2 * (len(ranks) - 1) / len(ranks) * size * 2**20 / min(times) / 1e9
        self.tell(among=among, size=size, wrong=wrong, speed=speed)


def is_socket(fd: int) -> bool:
    """Whether a descriptor is open, and a socket."""
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def family_of_connection(port: int) -> str:
    """Return the address family of this process's connection to a port."""
    sockets = [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_socket(fd)]
    for fd in sockets:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
            peer = each.getpeername()
            if isinstance(peer, tuple) and peer[1] == port:
                return "IPv4" if "." in peer[0] else "IPv6"  # ::ffff:10.0.0.1 is IPv4
    return "an unknown address family"


def network_of(log: str) -> str:
    """Return what NCCL uses between nodes: IB, Socket, ...; its channels tell it best."""
    used = re.findall(r"\bvia NET/([\w ]+?)/\d", log) or re.findall(r"Using network ([\w ]+)", log)
    return ("Socket" if "Socket" in used else (used or [""])[0]).strip()


def main() -> None:
    """Start the ranks of this task, and tell of one that something has ended."""
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or len(glob.glob("/dev/nvidia[0-9]*")))
    alone = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1"
    if alone and os.environ.get("CUDA_VISIBLE_DEVICES", "").count(",") + 1 < gpus:
        # JSC's Slurm shows a task one GPU, of those that its ranks shall share
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    count = (gpus or 2) if alone else 1
    ranks = {}
    for rank in (Rank(local, count, gpus) for local in range(count)):
        pid = os.fork()
        if not pid:
            try:
                rank.run()
            except Exception as error:  # whatever it is, the user must see it
                rank.tell(error=f"{type(error).__name__}: {error}".splitlines()[0][:300])
            os._exit(0)  # threads of PyTorch would delay it
        ranks[pid] = rank
    for _ in range(count):
        pid, status = os.wait()
        if status:
            how = f"signal {status & 127}" if status & 127 else f"exit code {status >> 8}"
            ranks[pid].tell(ended=f"ended with {how}")


if __name__ == "__main__":
    main()
