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
from support.git import Repository
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
JOB = """\
#!/usr/bin/env bash
#SBATCH --partition=gpu
#SBATCH --gpus-per-node=4
#SBATCH --mem=400G
start_job skald
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

    def describe(self, text, job=JOB):
        """Write the site's files, and commit them."""
        (self.root / "skald").mkdir(exist_ok=True)
        (self.root / "skald/site.toml").write_text(text)
        (self.root / "skald/run_training_skald.sbatch").write_text(job)
        self.git = Repository(self.root, self.environment)
        if not (self.root / ".git").exists():
            self.git.git("init", "--quiet")
        self.git.commit("the site")

    def doctor(self, *options, **more):
        """Compare, and return the report."""
        words = ("--site", "--machine", "skald", "--json", *options)
        done = self.type("doctor.py", *words, check=False, **more)
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert done.returncode == bool(report["counts"]["different"])
        return report

    def apply(self):
        """Apply the patch as the report says."""
        self.git.git("apply", ".cache/doctor/site-skald.patch")


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


def facts(report, state):
    """Give topic and text of a state."""
    found = {each["topic"]: each["text"] for each in report["findings"] if each["state"] == state}
    assert "problem" not in {each["state"] for each in report["findings"]}
    return found


@pytest.fixture
def skald(root, controller, tmp_path):
    """Give the clone; its Slurm runs, with the partitions that `SITE` describes."""
    controller.start(NODES, PARTITIONS)
    clone = Skald(root, tmp_path / "it's a clone", controller.environment)
    clone.describe(SITE)
    return clone


def test_true_file_is_confirmed(skald):
    report = skald.doctor()
    assert facts(report, "different") == {}
    assert report["patch"] == ""
    confirmed = facts(report, "confirmed")
    assert confirmed["partitions.cpu.cores_per_node"] == "128"
    assert confirmed["partitions.debug.max_time"] == "60"
    assert {"arch", "gpu", "cores_per_node", "default_partition", "recognise.cluster"} <= {
        *confirmed
    }
    assert confirmed["skald/run_training_skald.sbatch"] == "accepted by sbatch --test-only"
    assert "sacctmgr" not in str(report) and facts(report, "undecided").keys() >= {"description"}
    assert facts(report, "reported")["memory of a node"].startswith("500 GB in gpu, debug; 250 GB")


def test_changed_partitions_are_found_and_the_patch_corrects_them(skald, controller):
    controller.change(CHANGED)
    report = skald.doctor()
    assert facts(report, "different") == {
        "default_partition": "cpu found, gpu stated",
        "partitions.gpu.max_time": "1-00:00:00 found, 2-00:00:00 stated",
        "partitions.gpu.max_nodes": "1 found, 2 stated",
        "partitions.debug": 'nothing found, { max_time = "60" } stated',
        "partitions.cpu.cores_per_node": "60 found, 128 stated",
        "partitions.cpu.gpus_per_node": "4 found, 0 stated",
        "partitions.long": '{ max_time = "7-00:00:00", max_nodes = 1, cores_per_node = 128, '
        "gpus_per_node = 0 } found, nothing stated",
    }
    skald.apply()
    text = (skald.root / "skald/site.toml").read_text()
    assert 'gpu = { max_time = "1-00:00:00", max_nodes = 1, price = { gpu = 1, ' in text
    kept = [line for line in SITE.splitlines() if "#" in line and "gpu =" not in line]
    assert [line for line in kept if line not in text.splitlines()] == []
    assert "}   # whole\n" in text and "debug" not in text
    again = skald.doctor()
    assert (facts(again, "different"), again["patch"]) == ({}, "")


@pytest.mark.slow  # as changed partitions above
def test_wrong_file_is_corrected(skald):
    wrong = SITE
    for old, new in {
        '"amd64"': '"arm64"',
        '"cuda"': '"rocm"',
        '"apptainer"': '"podman-hpc"',
        "= 60 ": "= 64 ",
        "gpus_per_node = 4": "gpus_per_node = 8",
        "cores_per_node = 128": "cores_per_node = 96",
        'accounts = "no"': 'accounts = "yes"',
        'cluster = "skald"': 'cluster = "other"',
    }.items():
        assert old in wrong
        wrong = wrong.replace(old, new)
    wrong = wrong.replace("podman-hpc", "enroot")
    skald.describe(wrong, JOB.replace("400G", "900G"))
    report = skald.doctor()
    different = facts(report, "different")
    reason = different.pop("skald/run_training_skald.sbatch")  # memory: not in site.toml
    assert "Requested node configuration is not available" in reason
    assert {*different} == {
        *("recognise.cluster", "arch", "gpu", "runtime", "cores_per_node", "gpus_per_node"),
        *("accounts", "partitions.cpu.cores_per_node"),
    }
    assert different["arch"] == "amd64 found, arm64 stated"
    skald.apply()
    assert (skald.root / "skald/site.toml").read_text() == SITE
    assert {*facts(skald.doctor(), "different")} == {"skald/run_training_skald.sbatch"}


@pytest.mark.slow  # as partitions, and sacctmgr is a stand-in
def test_qualities_of_service_are_compared(skald, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sacctmgr").write_text(SACCTMGR)
    (programs / "sacctmgr").chmod(0o755)
    skald.environment["PATH"] = f"{programs}:{skald.environment['PATH']}"
    skald.describe(f"{SITE}\n[machines.skald.qos]\ndevel = {{ max_gpus = 32 }}\ngone = {{}}\n")
    assert facts(skald.doctor(), "different") == {
        "qos.devel.max_gpus": "16 found, 32 stated",
        "qos.devel.max_time": "02:00:00 found, nothing stated",
        "qos.devel.max_nodes": "4 found, nothing stated",
        "qos.gone": "nothing found, {} stated",
        "qos.mine": '{ max_time = "1-00:00:00" } found, nothing stated',
    }
    skald.apply()
    assert facts(skald.doctor(), "different") == {}


def test_file_to_share_names_neither_user_nor_account_nor_paths(skald, controller, tmp_path):
    controller.change(CHANGED)
    user = skald.environment["USER"]
    skald.configure(
        '[project]\nname = "secretproject"\naccount = "secretaccount"\n'
        f'[paths]\nproject_dir = "{tmp_path}"\nscratch_dir = "{tmp_path}"\n'
    )
    own = f'[machines.skald.configuration]\npaths.project_dir = "{tmp_path}/{{user}}/x"\n'
    skald.describe(SITE + own)
    skald.doctor()
    text = (skald.root / ".cache/doctor/site-skald.txt").read_text()
    patch = (skald.root / ".cache/doctor/site-skald.patch").read_text()
    assert text.endswith(patch)
    said = text.removesuffix(patch)
    for name in (
        user,
        "secretaccount",
        "secretproject",
        str(skald.root),
        skald.environment["HOME"],
    ):
        assert not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", said), name
    assert "partitions.long" in said and "+default_partition" in patch


@pytest.mark.slow  # as Slurm's silence: test_doctor.py
def test_controller_that_is_silent_leaves_the_rest(skald, controller):
    controller.stop()
    report = skald.doctor(timeout=200)
    assert facts(report, "confirmed").keys() >= {"runtime"}
    undecided = facts(report, "undecided")
    assert "Slurm does not respond" in undecided["arch"]
    assert "Slurm does not respond" in undecided["partitions.gpu"]
    assert report["patch"] == ""


# --- in a job, and a new site: on the cluster that runs jobs


@pytest.fixture(scope="module")
def clone(make_job_clone, tmp_path_factory):
    """Give a clone whose jobs have PyTorch."""
    return make_job_clone(tmp_path_factory.mktemp("doctor_site"))


def test_node_of_a_job_is_asked(clone, slurm):
    words = [sys.executable, clone.root / "doctor.py", "--site", "--job", "--json"]
    command = ["salloc", "--quiet", "--nodes=2", *words, "--machine", "jwb"]
    done = slurm.run(command, env=clone.environment, cwd=clone.root, check=False)
    report = json.loads(done.stdout)
    reported = facts(report, "reported")
    assert reported["network devices"].split(", ")[0] == "ib0"  # of the node
    assert "ib0" not in reported["interfaces"].split(", ")
    assert reported["internet"].startswith("no: ")
    assert facts(report, "confirmed")["export.NCCL_SOCKET_IFNAME"] == "ib0 (interfaces: ib0, lo)"
    assert re.fullmatch(r"\d+ GiB", reported["memory"]) and int(reported["cores"]) > 0


def test_outside_a_job_the_user_is_told_how(clone):
    done = clone.type("doctor.py", "--site", "--job", "--machine", "jwb", check=False)
    assert done.returncode == 1
    assert "error: not in a job" in done.stderr and "doctor.py --site --job" in done.stderr


def test_new_site_runs_jobs(clone, slurm):
    made = clone.type("doctor.py", "--site", "--new", "skald")
    assert made.stdout.startswith("skald/: interactive.salloc, jupyter.sbatch, preprocess_data_")
    report = clone.type("doctor.py", "--site", "--machine", "skald", "--json", check=False)
    assert facts(json.loads(report.stdout), "different") == {}
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


def test_new_site_on_other_partitions(skald, controller):
    for name in ("skald/site.toml", "skald/run_training_skald.sbatch"):
        os.remove(skald.root / name)
    (skald.root / "skald").rmdir()
    skald.type("doctor.py", "--site", "--new", "skald")
    text = (skald.root / "skald/site.toml").read_text()
    values = {line.split(" = ")[0]: line for line in text.splitlines() if " = " in line}
    assert all(line.endswith("    # proposal") for line in values.values())
    assert values.keys() >= {"recognise.host", "arch", "gpu", "partitions.debug", "partitions.cpu"}
    assert 'cpu = { max_time = "12:00:00", cores_per_node = 128, gpus_per_node = 0 }' in text
    assert "admin" not in text and "hidden" not in text
    job = (skald.root / "skald/run_training_skald.sbatch").read_text()
    assert "#SBATCH --partition=gpu    # proposal\n#SBATCH --gpus-per-node=4 " in job
    assert "#SBATCH --cpus-per-task=60 " in job
    data = (skald.root / "skald/preprocess_data_skald.sbatch").read_text()
    assert "#SBATCH --partition=cpu " in data and "gpus" not in data
    assert facts(skald.doctor(), "different") == {}
    assert not list(skald.root.glob(".skald*"))
