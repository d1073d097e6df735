"""What would make other tests empty: a way out of the network, a large disk, a kind Slurm."""

import os
from pathlib import Path

import pytest

CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"


def test_airgapped_has_loopback_and_nothing_else(airgapped, run):
    command = airgapped(["/usr/bin/python3", "-c", CONNECT])
    assert "Network is unreachable" in run(command, check=False).stderr
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    listen += "socket.create_connection(s.getsockname())"
    run(airgapped(["/usr/bin/python3", "-c", listen]))
    assert run(airgapped(["id", "-u"])).stdout == f"{os.getuid()}\n"


def test_small_disk_is_full_for_apptainer_too(small_disk, base_image, run):
    folder = small_disk(16)
    assert list(folder.iterdir()) == []
    with pytest.raises(OSError, match="No space left"):
        (folder / "large").write_bytes(b"0" * (20 << 20))
    (folder / "large").unlink()
    fill = ["apptainer", "--quiet", "exec", "--bind", f"{folder}:/mnt", base_image]
    fill += ["sh", "-c", "head -c 20M /dev/zero >/mnt/large"]
    assert "No space left" in run(fill, check=False).stderr


def test_slurm_nodes_have_no_way_out(slurm):
    step = ["srun", "--nodes=3", "--ntasks-per-node=1", "/usr/bin/python3", "-c", CONNECT]
    assert slurm.run(step, check=False).stderr.count("Network is unreachable") == 3


def test_slurm_nodes_know_each_other_by_two_names(slurm):
    known = [slurm.on_node("node1", ["getent", "hosts", name]) for name in ("node2", "node2i")]
    (address, plain), (same, second) = (each.stdout.split() for each in known)
    assert (same, plain, second) == (address, "node2", "node2i")
    shown = slurm.on_node("node2", ["ip", "-brief", "address", "show", "dev", "ib0"]).stdout
    assert f" {address}/24 " in shown


def test_slurm_nodes_have_a_name_that_leads_nowhere(slurm):
    """See hosts-lonely in servers/slurm.sh."""
    hosts = Path(slurm.environment["SLURM_CONF"]).with_name("hosts-lonely").read_text()
    (address,) = (line.split()[0] for line in hosts.splitlines() if line.endswith(" node2"))
    route = ["ip", "route", "get", address]
    assert "local" in slurm.on_node("node2", route).stdout
    assert slurm.on_node("node1", route, check=False).returncode != 0


def test_slurm_nodes_have_a_disk_in_memory_each(slurm):
    step = ["srun", "--nodes=3", "--ntasks-per-node=1", "stat", "--format=%d", "/dev/shm"]
    assert len(set(slurm.run(step).stdout.split())) == 3


@pytest.mark.parametrize(
    "options",
    [
        "--partition=booster --nodes=2 --gres=gpu:4 --cpus-per-task=48 --threads-per-core=1",
        "--partition=booster --nodes=2 --gres=gpu:4 --cpus-per-task=288",
        "--partition=accel --qos=devel --nodes=1 --gpus=1 --cpus-per-task=70 --mem=110G",
        "--partition=standard-g --nodes=2 --gpus-per-node=8 --mem=480G --exclusive --time=2-00",
        "--nodes=2 --gpus=16 --constraint=thin --cpus-per-task=128 --signal=USR1@120",
    ],
)
def test_slurm_accepts_what_sites_ask_for(options, slurm):
    job = slurm.submit("--test-only", *options.split(), "--account=nobody", "--wrap=true")
    assert job == ""


def test_slurm_holds_to_the_longest_time(slurm):
    ask = ["sbatch", "--partition=develbooster", "--time=03:00:00", "--wrap=true"]
    assert "time limit is invalid" in slurm.run(ask, check=False).stderr
