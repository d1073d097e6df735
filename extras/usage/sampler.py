# The columns of usage/NODE.csv; a value that is not measured is empty, and a total 0.
#
#   time                  seconds since 1970
#   device                index of the GPU; `cpu`: the processes of the job step
#   program               that measured: `nvidia-smi`, `rocm-smi`, or `proc` (files in /proc)
#   utilisation           percent; of `cpu`: of one core
#   memory                MiB
#   power                 W
#   seconds               total of the run: time in which the utilisation was measured
#   utilisation_seconds   total: the integral of the utilisation over that time
#   peak_memory           total: MiB
#   energy                total: J, the integral of the power
"""Measure a node of a job until a rank ends: its GPUs, or load and memory without GPUs.

    sampler.py SECONDS yes|no RANK STEP

It runs on the host, with Python 3.6 or newer, and imports nothing of Longship. RANK and STEP are
processes: STEP has started all ranks of the node, unless a daemon has: no.
"""

import csv
import fcntl
import glob
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

TOTALS = ("seconds", "utilisation_seconds", "peak_memory", "energy")
COLUMNS = ("time", "device", "program", "utilisation", "memory", "power", *TOTALS)
_TAIL = 1 << 14  # bytes with the last line of each device


def last_rows(stream):
    """Return the last row of each device in a file of samples; other lines are passed over."""
    heading = stream.readline(_TAIL).decode("utf-8", "replace").strip().split(",")
    stream.seek(max(stream.tell(), os.fstat(stream.fileno()).st_size - _TAIL))
    lines = stream.read(_TAIL).decode("utf-8", "replace").split("\n")[:-1]
    rows = [each.split(",") for each in lines]
    rows = [dict(zip(heading, each)) for each in rows if len(each) == len(heading)]
    return {row["device"]: row for row in rows if _is_sample(row)}


def _is_sample(row):
    values = [row.get("device", "").replace("cpu", "0"), *(row.get(x, "?") or "0" for x in TOTALS)]
    is_time = re.fullmatch("[0-9]{1,10}", row.get("time", ""))
    return bool(is_time) and all(re.fullmatch("[0-9]{1,12}", each) for each in values)


# ---------- what measures: device, utilisation, memory and power; nothing if it does not work


def nvidia_smi():
    """Ask NVIDIA's driver."""
    fields = "--query-gpu=index,utilization.gpu,memory.used,power.draw"
    text = _output("nvidia-smi", fields, "--format=csv,noheader,nounits")
    return _own_gpus([each.split(", ") for each in text.splitlines()])


def rocm_smi():
    """Ask AMD's driver; the power of an MI250X is that of its first die."""
    text = _output("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--csv")
    rows = []
    for row in csv.DictReader(x for x in text.splitlines() if re.match("device,|card[0-9]", x)):
        memory = row.get("VRAM Total Used Memory (B)") or ""
        memory = int(memory) >> 20 if re.fullmatch("[0-9]{1,15}", memory) else ""
        power = [each for name, each in row.items() if str(name).endswith("Package Power (W)")]
        rows.append([row["device"][4:], row.get("GPU use (%)"), memory, *(power or [""])[:1]])
    return _own_gpus(rows)


def processes(step):
    """Yield load and memory of all processes that one has started, with their ended children."""
    before = None
    while True:
        found, pages, used = {}, 0, 0
        for file in glob.glob("/proc/[0-9]*/stat"):
            with suppress(OSError), open(file, errors="replace") as stream:
                fields = stream.read().rpartition(")")[2].split()
                found[int(file.split("/")[2])] = [int(x) for x in (fields[1], *fields[11:22])]
        for each, (_, *values) in found.items():
            up = each
            while up in found and up not in (step, os.getpid()):
                up = found[up][0]
            if up == step and each != step:
                used, pages = used + sum(values[:4]), pages + values[-1]
        now, seconds, load = time.monotonic(), used / os.sysconf("SC_CLK_TCK"), ""
        if before and seconds >= before[1]:
            load = 100 * (seconds - before[1]) / (now - before[0])
        before = now, seconds
        yield [["cpu", load, pages * os.sysconf("SC_PAGE_SIZE") >> 20, ""]]


def _output(*command):
    try:
        text = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return text.decode("utf-8", "replace")


def _own_gpus(rows):
    """Return those of this job, if a node without cgroups shows those of others too."""
    rows = [each for each in rows if len(each) == 4 and re.fullmatch("[0-9]{1,4}", each[0])]
    own = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    of_others = own and len(rows) > own.count(",") + 1
    return [each for each in rows if each[0] in own.split(",")] if of_others else rows


# ---------- the loop


def main(seconds, has_children, rank, step):
    """Append what the first program that works measures until the rank ends."""
    bind_to(rank)
    os.nice(19)
    os.umask(0o022)
    for _ in range(20):  # nothing is measured of a rank that ends at once, and Slurm waits for this
        if not os.path.exists(f"/proc/{rank}"):
            return
        time.sleep(0.1)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    path = os.path.join(os.environ["RUN_DIR"], "usage", node + ".csv")
    with suppress(FileExistsError):
        os.mkdir(os.path.dirname(path), 0o755)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    while os.path.exists(f"/proc/{rank}"):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:  # another step of this job measures
            time.sleep(2)
        except OSError:  # a file system without locks
            break
    with open(file, "rb+", buffering=0) as stream:
        if not os.fstat(file).st_size:
            stream.write(",".join(COLUMNS).encode() + b"\n")
        rows = last_rows(stream)
        totals = {each: [int(row[x] or 0) for x in TOTALS] for each, row in rows.items()}
        repeat(stream, totals, "nvidia-smi", nvidia_smi, rank, seconds)
        repeat(stream, totals, "rocm-smi", rocm_smi, rank, seconds)
        if has_children:
            repeat(stream, totals, "proc", processes(step).__next__, rank, seconds)


def bind_to(rank):
    """Let the kernel end this process with its parent, the rank: Slurm waits for what is left.

    Apptainer is written in Go and starts its second program from any thread, which the kernel takes
    for the end of the parent: wait for that.
    """
    with suppress(ImportError, OSError):
        from ctypes import CDLL

        while os.getppid() == rank:
            with open(f"/proc/{rank}/comm") as stream:
                if stream.read().strip() not in ("bash", "apptainer", "singularity"):
                    CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                    break
            time.sleep(0.02)


def repeat(stream, totals, program, measure, rank, seconds):
    """Append what is measured, again and again, and so rarely that it takes 0.4 % of a core."""
    times, before = {}, sum(os.times()[:4])
    while os.path.exists(f"/proc/{rank}"):
        sample, now, lines = measure(), int(time.time()), ""
        if not sample:
            return
        for device, *texts in sample:
            values = utilisation, memory, power = [_number(each) for each in texts]
            passed, times[device] = now - times.get(device, now), now
            total = totals.setdefault(device, [0, 0, 0, 0])
            if utilisation is not None:
                total[0] += passed
                total[1] += passed * utilisation
            total[2] = max(total[2], memory or 0)
            total[3] += passed * (power or 0)
            cells = (now, device, program, *values, *total)
            lines += ",".join("" if each is None else str(each) for each in cells) + "\n"
        stream.write(lines.encode())
        used = sum(os.times()[:4]) - before  # AMD's program starts a Python each time
        before += used
        end = time.monotonic() + max(seconds, 250 * used)
        while time.monotonic() < end and os.path.exists(f"/proc/{rank}"):
            time.sleep(1)


def _number(value):
    found = re.fullmatch(r"[0-9]{1,9}([.][0-9]+)?", str(value).strip())
    return round(float(found.group())) if found else None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "yes", int(sys.argv[3]), int(sys.argv[4]))
