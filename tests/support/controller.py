"""A real Slurm controller of the test's own, as an ordinary user: partitions of any kind, no jobs.

Its partitions are not those of servers/slurm.sh, which stand for the sites'. The nodes' daemons
register them; no job is started.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from support import processes

HEAD = """\
ClusterName=skald
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
"""
NODE = "NodeName={names} NodeAddr=127.0.0.1 NodeHostName={host} Port={ports} {facts}\n"


class Controller:
    """The daemons, and the partitions that they were last told."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = {**environment, "SLURM_CONF": str(folder / "slurm.conf")}
        self.ports = processes.free_ports(5)
        self.nodes = []

    def start(self, nodes, partitions):
        """Start with two nodes of each kind, given as ``{name: facts}``, and these partitions."""
        self.nodes = [each.partition("[")[0] + number for each in nodes for number in "12"]
        host, user, ports = socket.gethostname().split(".")[0], self.environment["USER"], self.ports
        text = HEAD.format(folder=self.folder, host=host, user=user, port=ports[0])
        for number, (names, facts) in enumerate(nodes.items()):
            at = ",".join(map(str, ports[1 + 2 * number : 3 + 2 * number]))
            text += NODE.format(names=f"{names}[1-2]", host=host, ports=f"[{at}]", facts=facts)
        self.head = text
        (self.folder / "state").mkdir()
        (self.folder / "key").write_bytes(os.urandom(128))
        (self.folder / "key").chmod(0o600)
        # a GPU must be a device, and an ordinary user can make none
        devices = [
            f"Name=gpu Type=a100 File=/dev/{x}\n" for x in ("null", "zero", "full", "random")
        ]
        (self.folder / "gres.conf").write_text("".join(["AutoDetect=off\n", *devices]))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._write(partitions)
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files.update({"log-file": "munged.log", "seed-file": "seed"})
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._run(["munged", "--force", *options])
        self._run(["slurmctld", "-c"])
        for each in self.nodes:
            self._run(["slurmd", "-N", each])
        processes.wait_until(lambda: self._shown("node").count("State=IDLE ") == len(self.nodes))

    def change(self, partitions):
        """Let it have other partitions."""
        self._write(partitions)
        self._run(["scontrol", "reconfigure"])
        names = [line.split("=")[1].split()[0] for line in partitions.splitlines()]
        processes.wait_until(lambda: self._shown("partition").count("\n") == len(names))
        time.sleep(0.5)

    def stop(self):
        """End the daemons, by their process ids."""
        for name in ("slurmctld", *(f"slurmd-{each}" for each in self.nodes), "munged"):
            file = self.folder / f"{name}.pid"
            if file.exists():
                os.kill(int(file.read_text()), signal.SIGTERM)
                processes.wait_until(lambda file=file: not file.exists())

    def _write(self, partitions):
        (self.folder / "slurm.conf").write_text(self.head + partitions)

    def _shown(self, what):
        command = ["scontrol", "--all", "--oneliner", "show", what]
        return processes.run(command, env=self.environment, check=False).stdout

    def _run(self, command):
        done = subprocess.run(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"


@pytest.fixture
def controller(require, clean_environment):
    """Give a controller that is not started yet; its folder's path is short, as a socket's is."""
    require("slurm")
    folder = Path(tempfile.mkdtemp(prefix="longship-controller-"))
    made = Controller(folder, clean_environment)
    yield made
    made.stop()
    shutil.rmtree(folder)
