"""Report what only a compute node knows about its site as JSON in one line, for doctor.py --site.

    node_facts.py URL DIR...

It runs on the host, with any Python 3. The URL shows whether the node has internet access.
"""

import glob
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress


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


def facts_of(url, *directories):
    """Return what doctor.py --site compares, and under `shown` what it only reports."""
    kfd = glob.glob("/sys/class/kfd/kfd/topology/nodes/*/gpu_id")
    gpus = glob.glob("/dev/nvidia[0-9]*")
    gpus += [each for each in kfd if content_of(each).strip() != "0"]  # 0: a processor
    nvidia = re.search(r"[0-9]+\.[0-9.]+", content_of("/proc/driver/nvidia/version"))
    amd = content_of("/sys/module/amdgpu/version").strip()
    driver = "NVIDIA " + nvidia.group() if nvidia else "amdgpu " + amd if amd else "none"
    links = sorted(name for _, name in socket.if_nameindex())
    machine = os.uname().machine
    places = glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/")
    cores = {content_of(f"{x}physical_package_id") + content_of(f"{x}core_id") for x in places}
    memory = re.search(r"MemTotal: *(\d+)", content_of("/proc/meminfo"))
    names = re.findall(r"GPU \d+: (.*?)(?: \(|$)", output_of("nvidia-smi", "-L"), re.MULTILINE)
    disks = output_of("df", "--local", "--block-size=1G", "--output=fstype,avail").split("\n")[1:]
    with suppress(OSError):
        links += sorted(os.listdir("/sys/class/infiniband"))
    try:
        urllib.request.urlopen(url, timeout=8).close()
        internet = "yes"
    except urllib.error.HTTPError:
        internet = "yes"
    except (OSError, ValueError) as error:
        internet = f"no: {error}"
    return {
        "node": os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        "arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine),
        "gpu": "cuda" if nvidia else "rocm" if amd else None,
        "gpus_per_node": len(gpus) or None,
        "cores_per_node": len(cores) or None,
        "links": links,
        "unseen": [each for each in directories if not os.path.exists(each)],
        "shown": {
            "architecture": machine,
            "GPUs": " ".join([str(len(gpus)), *sorted(set(names)), "driver", driver]),
            "cores": str(len(cores)),
            "memory": f"{int(memory.group(1)) >> 20} GiB" if memory else "unknown",
            "local disks, GB free": "; ".join(
                " ".join(each.split()) for each in sorted({*disks} - {""})
            ),
            "network devices": ", ".join(links),
            "internet": internet,
        },
    }


if __name__ == "__main__":
    print(json.dumps(facts_of(*sys.argv[1:])))
