"""The runtime enroot, where there is one: no command installs it."""

import os
import sys

import pytest
from support import processes
from support.repository import Clone, toml

pytestmark = [pytest.mark.enroot, pytest.mark.needs("fuse")]


@pytest.fixture(scope="module")
def clone(root, base_tar, session_environment, tmp_path_factory):
    """Give a clone with the small Debian as an image of enroot's."""
    folder = tmp_path_factory.mktemp("enroot")
    unpacked, image = folder / "unpacked", folder / "base.sqsh"
    unpacked.mkdir()
    unpack = ["tar", "--extract", "--exclude=./dev/*", "--file", base_tar, "-C", unpacked]
    processes.run(unpack, env=session_environment)
    pack = ["mksquashfs", unpacked, image, "-comp", "lz4", "-no-progress", "-quiet"]
    processes.run(pack, env=session_environment)
    own = {name: value for name, value in os.environ.items() if name.startswith("ENROOT_")}
    environment = {**session_environment, **own, "PATH": os.environ["PATH"]}
    clone = Clone(root, folder / "it's a clone", environment)
    (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
    clone.configure(
        f'machine = "local"\n[paths]\nproject_dir = {toml(folder / "project")}\n'
        f"scratch_dir = {toml(folder / 'a scratch')}\n"
        f'[container]\nruntime = "enroot"\nimage = {toml(image)}\n[packages]\nrequirements = ""\n'
    )
    return clone


def test_command_runs_inside_with_its_arguments_and_exit_code(clone, hostile_arguments):
    show = "import sys, os; print(sys.argv[1:], os.environ['LONGSHIP_MACHINE']); sys.exit(7)"
    words = ["python3", "-c", show, *hostile_arguments]
    done = clone.container_run(*words, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{hostile_arguments!r} local\n"


def test_launcher_is_one_rank(clone, tmp_path):
    launcher = tmp_path / "launcher"
    clone.container_run("--launcher", launcher)
    step = {"STEP_NUM_TASKS": "4", "PROCID": "3", "LOCALID": "1", "NODEID": "1"}
    rank = {f"SLURM_{name}": value for name, value in step.items()}
    rank["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)"
    command = [launcher, "sh", "-c", "echo $RANK of $WORLD_SIZE"]
    done = processes.run(command, env={**clone.environment, **rank})
    assert done.stdout == "3 of 4\n"
    assert sys.executable not in launcher.read_text()
