"""Report the facts of a job's node as JSON in one line, for doctor.py --job.

    node_facts.py ADDRESS PORT FIRST NODES DIR FILE...

It runs on the host, with any Python 3. The FIRST of the NODES serves its time at PORT of ADDRESS: a
node that cannot connect has a broken network or name, and one that differs a wrong clock.
"""

import glob
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import suppress

NODE = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
CLIENT_GONE = threading.Semaphore(0)


def output_of(*command):
    """Return what a program prints; nothing if it fails, or hangs."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=20).decode()
    return ""


def content_of(path):
    """Return the content of a file; nothing if it cannot be read."""
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


class Clock(socketserver.ThreadingTCPServer):
    """Sends the time for each line that a client sends."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 1024


class Client(socketserver.StreamRequestHandler):
    """The connection of one node."""

    def handle(self):
        """Send the time until the client disconnects."""
        with suppress(OSError):
            for _ in self.rfile:
                self.wfile.write(f"{time.time()!r}\n".encode())
        CLIENT_GONE.release()


def listener_at(port):
    """Name the process that listens at a port, if this user is allowed to see it."""
    table = content_of("/proc/net/tcp") + content_of("/proc/net/tcp6")
    listening = rf"^ *\d+: \w+:{port:04X} \S+ 0A (?:\S+ +){{5}}(\d+)"
    inodes = {f"socket:[{each}]" for each in re.findall(listening, table, re.MULTILINE)}
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):  # it has ended, or is another user's
            if os.readlink(link) in inodes:
                pid = link.split("/")[2]
                command = content_of(f"/proc/{pid}/cmdline").replace("\0", " ")
                return f"process {pid}, {' '.join(command.split())[:60]}"
    return "a process of another user"


def compare_clocks(address, port):
    """Return how far this clock is ahead, and half of the round trip, which bounds the error.

    Both are in milliseconds. Return None without a connection, [] without an answer.
    """
    connection, deadline = None, time.monotonic() + 20  # the server may be about to start
    while not connection:
        try:
            connection = socket.create_connection((address, port), timeout=3)
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)
    found = []
    with suppress(OSError, ValueError), connection, connection.makefile("rw") as stream:
        for _ in range(8):
            before = time.time()
            stream.write("time\n")
            stream.flush()
            theirs, after = float(stream.readline()), time.time()
            found.append([(after - before) * 500, (before + after) * 500 - theirs * 1000])
    return min(found)[::-1] if found else []


def gpu_facts():
    """Return the GPUs of the node and of the job, the driver, and memory errors."""
    devices = glob.glob("/dev/nvidia[0-9]*")
    kfd = glob.glob("/sys/class/kfd/kfd/topology/nodes/*/gpu_id")
    devices += [each for each in kfd if content_of(each).strip() != "0"]  # 0: a processor
    nvidia = re.search(r"[0-9]+\.[0-9.]+", content_of("/proc/driver/nvidia/version"))
    amd = content_of("/sys/module/amdgpu/version").strip()
    query = "--query-gpu=ecc.errors.uncorrected.volatile.total"
    errors = output_of("nvidia-smi", query, "--format=csv,noheader,nounits") if nvidia else ""
    return {
        "gpus": len(devices),
        "asked": int(os.environ.get("SLURM_GPUS_ON_NODE") or 0),
        "driver": "NVIDIA " + nvidia.group() if nvidia else "amdgpu " + amd if amd else "none",
        "ecc": ", ".join(errors.split()) if re.search("[1-9]", errors) else "",
    }


def main():
    """Print the facts; the first node goes on until all others have compared their clocks."""
    address, port, first, nodes, directory = sys.argv[1:6]
    clock, taken, port = None, "", int(port)
    if first == NODE:
        try:
            clock = Clock(("", port), Client)
            threading.Thread(target=clock.serve_forever, daemon=True).start()
        except OSError:
            taken = listener_at(port)
    known = (output_of("getent", "ahostsv4", address).split() or [""])[0]
    kind = output_of("stat", "-f", "-c", "%T", "--", directory).strip()
    disk = os.statvfs(directory) if kind else None
    memory = re.search(r"MemAvailable: *(\d+)", content_of("/proc/meminfo"))
    facts = {
        "node": NODE,
        "kernel": os.uname().release,
        "unseen": ", ".join(each for each in sys.argv[6:] if not os.access(each, os.R_OK)),
        "address": known,
        "room": disk.f_bavail * disk.f_frsize >> 30 if disk else 0,
        "kind": kind or "not there",
        "memory": int(memory.group(1)) >> 20 if memory else 0,
        "taken": taken,
        "clock": compare_clocks(known, port) if known else None,
    }
    facts.update(gpu_facts())
    print(json.dumps(facts), flush=True)
    deadline = time.monotonic() + 30
    for _ in range(int(nodes) if clock else 0):
        CLIENT_GONE.acquire(timeout=max(deadline - time.monotonic(), 0))


if __name__ == "__main__":
    main()
