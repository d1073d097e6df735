"""The integration tests' fixtures do what they say, with the real programs."""

import os
import shlex
from pathlib import Path

import pytest

CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"


def test_image_runs_and_passes_exit_codes(run, base_image, tmp_path):
    execute = ["apptainer", "--quiet", "exec"]
    assert run([*execute, base_image, "python3", "--version"]).stdout.startswith("Python 3")
    assert run([*execute, base_image, "sh", "-c", "exit 7"], check=False).returncode == 7
    (tmp_path / "seen").touch()
    bind = ["--bind", f"{tmp_path}:/mnt"]
    assert "seen" in run([*execute, *bind, base_image, "ls", "/mnt"]).stdout.split()
    assert run([*execute, base_image, "id", "-u"]).stdout == f"{os.getuid()}\n"


def test_docker_runs_the_image(docker_image, docker_environment, run):
    tag = docker_image("longship-tests/fixture:1")
    command = ["docker", "run", "--rm", "--network", "none", tag, "sh", "-c", "exit 7"]
    assert run(command, env=docker_environment, check=False).returncode == 7


def test_podman_runs_the_image(podman_image, podman_environment, run):
    tag = podman_image("longship-tests/fixture:1")
    command = ["podman", "run", "--rm", "--network", "none", tag, "sh", "-c", "exit 7"]
    assert run(command, env=podman_environment, check=False).returncode == 7


def test_airgapped_has_loopback_and_nothing_else(airgapped, run):
    command = airgapped(["/usr/bin/python3", "-c", CONNECT])
    assert "Network is unreachable" in run(command, check=False).stderr
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    listen += "socket.create_connection(s.getsockname())"
    run(airgapped(["/usr/bin/python3", "-c", listen]))
    assert run(airgapped(["id", "-u"])).stdout == f"{os.getuid()}\n"


def test_airgapped_runs_apptainer(airgapped, base_image, run):
    command = ["apptainer", "--quiet", "exec", base_image, "python3", "-c", CONNECT]
    assert "Network is unreachable" in run(airgapped(command), check=False).stderr


def test_small_disk_is_full_for_apptainer_too(small_disk, base_image, run):
    folder = small_disk(16)
    assert list(folder.iterdir()) == []
    with pytest.raises(OSError, match="No space left"):
        (folder / "large").write_bytes(b"0" * (20 << 20))
    (folder / "large").unlink()
    fill = ["apptainer", "--quiet", "exec", "--bind", f"{folder}:/mnt", base_image]
    fill += ["sh", "-c", "head -c 20M /dev/zero >/mnt/large"]
    assert "No space left" in run(fill, check=False).stderr


def test_inside_runs_in_the_projects_environment(inside):
    assert inside("python", "-c", "import torch; print('torch')").stdout == "torch\n"
    assert inside("sh", "-c", "exit 7", check=False).returncode == 7


@pytest.mark.needs("docker")
def test_docker_socket_is_the_one_named(docker_environment, run):
    assert "Server" in run(["docker", "version"], env=docker_environment).stdout


def test_slurm_runs_a_step_on_two_nodes(slurm):
    done = slurm.run(["srun", "--nodes=2", "--ntasks-per-node=1", "hostname"])
    assert sorted(done.stdout.split()) == ["node1", "node2"]
    assert slurm.on_node("node3", ["hostname"]).stdout == "node3\n"
    assert slurm.on_node("node3", ["id", "-u"]).stdout == f"{os.getuid()}\n"


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


def test_slurm_gives_a_job_its_gpus(slurm):
    step = ["srun", "--gres=gpu:4", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert slurm.run(step).stdout == "0,1,2,3\n"


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


def test_slurm_job_runs_apptainer_on_two_nodes(slurm, base_image, tmp_path):
    log = tmp_path / "the log"
    script = f"srun apptainer --quiet exec {shlex.quote(str(base_image))} hostname"
    job = slurm.submit("--nodes=2", "--ntasks-per-node=1", f"--output={log}", "--wrap", script)
    assert slurm.wait(job) == "COMPLETED", slurm.log(job)
    assert sorted(slurm.log(job).split()) == ["node1", "node2"]
    assert slurm.facts(job)["StdOut"] == str(log)


def test_slurm_works_interactively(slurm):
    done = slurm.run(["salloc", "--nodes=2", "srun", "hostname"])
    assert sorted(done.stdout.split()) == ["node1", "node2"]
    at_a_terminal = ["script", "--quiet", "--return", "/dev/null", "--command"]
    assert "/dev/pts/" in slurm.run([*at_a_terminal, "salloc --nodes=1 srun --pty tty"]).stdout


def test_slurm_restarts_a_job_that_is_requeued(slurm, tmp_path):
    script = 'echo "start ${SLURM_RESTART_COUNT-0}"; test -n "$SLURM_RESTART_COUNT" || sleep 900'
    output = [f"--output={tmp_path}/log", "--open-mode=append"]
    job = slurm.submit("--requeue", *output, "--wrap", script)
    slurm.wait(job, "RUNNING")
    slurm.run(["scontrol", "requeue", job])
    assert slurm.wait(job) == "COMPLETED"
    assert slurm.facts(job)["Restarts"] == "1"
    assert [line for line in slurm.log(job).splitlines() if "start" in line][-1] == "start 1"


def test_slurm_jobs_end_with_the_test(slurm, tmp_path):
    job = slurm.submit(f"--output={tmp_path}/log", "--wrap", "sleep 900")
    slurm.wait(job, "RUNNING")
    slurm.cancel_all()
    assert slurm.facts(job)["JobState"] == "CANCELLED"
