"""The integration tests' fixtures do what they say, with the real programs."""

import os

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
