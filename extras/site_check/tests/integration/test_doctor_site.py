"""doctor.py --site on a real Slurm: partitions that differ from site.toml, and a new site's jobs.

Only accounting is a program that says what the real one would, as a database is a server more.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support import processes
from support.jobs import TOY
from support.repository import Clone

pytestmark = pytest.mark.xdist_group("doctor_site")

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

NODES = {
    "gpu": "Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 CoreSpecCount=4 RealMemory=512000 "
    "Gres=gpu:a100:4",
    "cpu": "Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=256000",
}
PARTITIONS = """\
PartitionName=gpu Nodes=gpu[1-2] MaxTime=2-0 MaxNodes=2 Default=YES
PartitionName=debug Nodes=gpu[1-2] MaxTime=1:00:00
PartitionName=cpu Nodes=cpu[1-2] MaxTime=12:00:00
PartitionName=admin Nodes=ALL RootOnly=YES
PartitionName=hidden Nodes=ALL Hidden=YES
"""
CHANGED = """\
PartitionName=gpu Nodes=gpu[1-2] MaxTime=1-0 MaxNodes=1
PartitionName=cpu Nodes=gpu[1-2] MaxTime=12:00:00 Default=YES
PartitionName=long Nodes=cpu[1-2] MaxTime=7-0 MaxNodes=1
"""
SITE = """\
# Skald, a cluster of a test.

[machines.skald]
description = "Skald"
recognise.cluster = "skald"     # inside jobs
arch = "amd64"
gpu = "cuda"
runtime = "apptainer"
cores_per_node = 60             # four are reserved
gpus_per_node = 4
default_partition = "gpu"
accounts = "no"

# The main one first.
[machines.skald.partitions]
gpu = { max_time = "2-00:00:00", max_nodes = 2, price = { gpu = 1, unit = "GPU-hours" } }   # whole
debug = { max_time = "60" }
cpu = { max_time = "12:00:00", cores_per_node = 128, gpus_per_node = 0 }
"""
SACCTMGR = """\
#!/bin/sh
case $* in
*"show qos format=Name,MaxWall,MaxTRES")
    printf '%s\\n' 'normal||' 'devel|02:00:00|gres/gpu=16,node=4' 'mine|1-00:00:00|' ;;
*"show associations"*) printf '%s\\n' 'devel,mine' ;;
*) exit 1 ;;
esac
"""


class Skald(Clone):
    """A clone with a site of its own, and what doctor.py reports of it."""

    def describe(self, text):
        """Write the site's file."""
        (self.root / "skald").mkdir(exist_ok=True)
        (self.root / "skald/site.toml").write_text(text)

    def slurm(self, command):
        processes.run(command, env=self.environment)

    def compare(self, **more):
        """Give described value, machine's value and command of each difference, and all states."""
        done = self.type("doctor.py", "--site", "--machine", "skald", "--json", check=False, **more)
        assert done.stdout, done.stderr
        rows = json.loads(done.stdout)
        found = {row["key"]: tuple(row.values())[2:] for row in rows if row["state"] == "different"}
        assert done.returncode == bool(found)
        return found, {row["key"]: row["state"] for row in rows}


class Controller:
    """A Slurm controller of the test's own, as an ordinary user: partitions of any kind, no jobs.

    They are not those of servers/slurm.sh, which stand for the sites'. The nodes' daemons register
    them; no job is started.
    """

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


@pytest.fixture
def skald(root, controller, tmp_path):
    """Give the clone; its Slurm runs, with the partitions that `SITE` describes."""
    controller.start(NODES, PARTITIONS)
    clone = Skald(root, tmp_path / "it's a clone", controller.environment)
    clone.describe(SITE)
    return clone


NODE_SAYS, PARTITION_SAYS = "scontrol show node", "scontrol show partition"


def test_true_file_is_confirmed(skald):
    different, states = skald.compare()
    assert different == {}
    keys = "arch gpu runtime cores_per_node gpus_per_node default_partition recognise.cluster "
    keys += "partitions.cpu.cores_per_node partitions.debug.max_time partitions.gpu.max_nodes"
    assert {states[each] for each in keys.split()} == {"confirmed"}
    undecided = {key for key, state in states.items() if state == "undecided"}
    assert undecided == {"description", "partitions.gpu.price"}


def test_changed_partitions_are_found(skald, controller):
    controller.change(CHANGED)
    different, states = skald.compare()
    assert different == {
        "default_partition": ('"gpu"', '"cpu"', PARTITION_SAYS),
        "partitions.gpu.max_time": ('"2-00:00:00"', '"1-00:00:00"', PARTITION_SAYS),
        "partitions.gpu.max_nodes": ("2", "1", PARTITION_SAYS),
        "partitions.debug": ('{ max_time = "60" }', "nothing", PARTITION_SAYS),
        "partitions.cpu.cores_per_node": ("128", "60", PARTITION_SAYS),
        "partitions.cpu.gpus_per_node": ("0", "4", PARTITION_SAYS),
        "partitions.long": (
            "nothing",
            '{ max_time = "7-00:00:00", max_nodes = 1, cores_per_node = 128, gpus_per_node = 0 }',
            PARTITION_SAYS,
        ),
    }
    assert "reported" not in states.values()
    for state in ("DOWN", "DRAIN", "INACTIVE"):
        skald.slurm(["scontrol", "update", "PartitionName=long", f"State={state}"])
        done = skald.type("doctor.py", "--site", "--machine", "skald", check=False)
        assert re.search(rf"(?m)^partitions.long +{state} +{PARTITION_SAYS}$", done.stdout)


@pytest.mark.slow  # as changed partitions above
def test_wrong_file_is_corrected_by_what_is_reported(skald):
    wrong = SITE
    for old, new in {
        '"amd64"': '"arm64"',
        '"cuda"': '"rocm"',
        '"apptainer"': '"enroot"',
        "= 60 ": "= 64 ",
        "gpus_per_node = 4": "gpus_per_node = 8",
        "cores_per_node = 128": "cores_per_node = 96",
        'accounts = "no"': 'accounts = "yes"',
        'cluster = "skald"': 'cluster = "other"',
    }.items():
        assert old in wrong
        wrong = wrong.replace(old, new)
    skald.describe(wrong)
    different, _ = skald.compare()
    assert {*different} == {
        *("recognise.cluster", "arch", "gpu", "runtime", "cores_per_node", "gpus_per_node"),
        *("accounts", "partitions.cpu.cores_per_node"),
    }
    assert different["arch"] == ('"arm64"', '"amd64"', NODE_SAYS)
    for key, (described, found, _) in different.items():
        name = key.rpartition(".")[2]
        wrong = re.sub(rf"\b{name} = {re.escape(described)}(?! .*#$)", f"{name} = {found}", wrong)
    assert wrong == SITE


@pytest.mark.slow  # as partitions, and sacctmgr is a stand-in
def test_qualities_of_service_are_compared(skald, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sacctmgr").write_text(SACCTMGR)
    (programs / "sacctmgr").chmod(0o755)
    skald.environment["PATH"] = f"{programs}:{skald.environment['PATH']}"
    skald.describe(f"{SITE}\n[machines.skald.qos]\ndevel = {{ max_gpus = 32 }}\ngone = {{}}\n")
    says = "sacctmgr show qos"
    assert skald.compare()[0] == {
        "qos.devel.max_gpus": ("32", "16", says),
        "qos.devel.max_time": ("nothing", '"02:00:00"', says),
        "qos.devel.max_nodes": ("nothing", "4", says),
        "qos.gone": ("{}", "nothing", says),
        "qos.mine": ("nothing", '{ max_time = "1-00:00:00" }', says),
    }


def test_file_to_attach_names_neither_user_nor_account_nor_own_paths(skald, controller, tmp_path):
    controller.change(CHANGED)
    skald.configure(
        '[project]\nname = "secretproject"\naccount = "secretaccount"\n'
        f'[paths]\nproject_dir = "{tmp_path}"\nscratch_dir = "{tmp_path}"\n'
    )
    done = skald.type("doctor.py", "--site", "--machine", "skald", check=False)
    text = (skald.root / ".cache/doctor/site-skald.txt").read_text()
    names = ("secretaccount", "secretproject", str(skald.root), skald.environment["HOME"])
    for name in (skald.environment["USER"], *names):
        assert not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text), name
    assert "\npartitions.long " in text and re.search(r", Slurm \d\d\.\d\d\.", text)
    assert "attach .cache/doctor/site-skald.txt to an issue" in done.stdout.splitlines()[-1]


def test_silent_controller_is_one_error(skald, controller):
    controller.stop()
    for words in (["--machine", "skald"], ["--new", "other"]):
        done = skald.type("doctor.py", "--site", *words, check=False, timeout=200)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: Slurm does not respond: ")


def test_new_site_is_what_is_reported(skald):
    began = time.monotonic()
    text = skald.type("doctor.py", "--site", "--new", "skald").stdout
    assert time.monotonic() - began < 5
    values = {line.split(" = ")[0]: line for line in text.splitlines() if " = " in line}
    assert values.keys() >= {"recognise.host", "runtime", "partitions.debug", "partitions.cpu"}
    assert values["cores_per_node"] == "cores_per_node = 60    # scontrol show node"
    cpu = '{ max_time = "12:00:00", cores_per_node = 128, gpus_per_node = 0 }'
    assert values["partitions.cpu"] == f"partitions.cpu = {cpu}    # {PARTITION_SAYS}"
    assert "admin" not in text and "hidden" not in text
    skald.describe(text)
    assert skald.compare()[0] == {}


# --- in a job, and a new site: on the cluster that runs jobs


@pytest.fixture(scope="module")
def clone(make_job_clone, tmp_path_factory):
    """Give a clone whose jobs have PyTorch."""
    return make_job_clone(tmp_path_factory.mktemp("doctor_site"))


def test_compute_node_decides_on_directories(clone, slurm):
    """On a login node a directory can be missing that compute nodes have."""
    site = clone.root / "lumi/site.toml"
    site.write_text(site.read_text().replace('"/pfs", ', f'"{clone.root}", "/nowhere", '))
    words = [sys.executable, clone.root / "doctor.py", "--site", "--json", "--machine", "lumi"]
    for before, state in ([], "undecided"), (["srun", "--quiet", "--nodes=1"], "different"):
        done = slurm.run([*before, *words], env=clone.environment, cwd=clone.root, check=False)
        rows = {row["key"]: row for row in json.loads(done.stdout[: done.stdout.rindex("]") + 1])}
        assert rows["binds"]["state"] == state
    assert (
        "/nowhere" in rows["binds"]["command"] and str(clone.root) not in rows["binds"]["command"]
    )


def test_new_site_runs_jobs(clone, slurm):
    page = (clone.root / "docs/how-to/add_a_site.md").read_text()
    (commands,) = re.findall(r"```bash\n(mkdir skald\n.*?)```", page, re.DOTALL)
    bash = ["bash", "-ec", commands]
    processes.run(bash, env=clone.environment, cwd=clone.root)
    report = clone.type("doctor.py", "--site", "--machine", "skald", "--json")
    assert "different" not in report.stdout
    less = ("--cpus-per-task=4", "--gpus-per-node=2", "--time=10")
    data = ("--max-megabytes", "0.3", "--vocab-size", "500")
    clone.finish("skald/preprocess_data_skald.sbatch", "--", *data)
    run = clone.finish(
        *("skald/run_training_skald.sbatch", *less, "--", "--run-name", "new", *TOY, "--steps", "2")
    )
    assert run.record["machine"] == "skald"
    assert len(clone.losses("new")) == 2
    shell = clone.submit("skald/interactive.salloc", "--gpus-per-node=0", "--", "echo", "inside")
    assert "inside" in shell.stdout
