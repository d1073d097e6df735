"""Jobs of AWS, whose srun starts the containers: unchanged job scripts, see support/pyxis.py."""

import re

import pytest
from support.jobs import JobClone
from support.pyxis import MARK, write_srun
from support.repository import toml

TRAIN = "aws/run_training_aws.sbatch"
# What a stack's training would be: it says where it runs, and as what.
STACK = f"""#!/usr/bin/env bash
printf 'rank %s of %s in %s, PATH %s, stack %s, GPUs %s, image %s, arguments:' "$RANK" \\
    "$WORLD_SIZE" "$(cat {MARK})" "$PATH" "$LONGSHIP_STACK" "$GPUS_PER_NODE" \\
    "$(wc -c </longship-image)"
printf ' <%s>' "$@" "$LINES_OF_TEXT" "$QUOTED"
echo
"""


@pytest.fixture(scope="module")
def clone(root, slurm_cluster, squashfs_image, tmp_path_factory):
    """Give a clone for AWS with a stack that only tells, and no packages."""
    folder = tmp_path_factory.mktemp("pyxis")
    scratch = folder / "scratch"
    scratch.mkdir()
    clone = JobClone(root, folder / "clone", slurm_cluster, scratch)
    clone.configure(
        f"[paths]\nproject_dir = {toml(scratch / 'project')}\nscratch_dir = {toml(scratch)}\n"
        f'[container]\nimage = {toml(squashfs_image)}\n[packages]\nrequirements = ""\n'
    )
    stack = clone.root / "stacks/pytorch"
    (stack / "stack.toml").write_text('description = "only tells"\n')
    (stack / "run_training.sh").write_text(STACK)
    clone.environment["PATH"] = f"{write_srun(folder / 'bin')}:{clone.environment['PATH']}"
    return clone


@pytest.fixture(autouse=True)
def _own_jobs(slurm):
    """End the jobs of each test with it."""
    return slurm


def test_ranks_run_inside_with_their_arguments_and_variables(clone, squashfs_image):
    env = {"LINES_OF_TEXT": "one\ntwo", "QUOTED": '"quoted"'}
    words = ["--nodes=2", "--", "a b", "$HOME", "it's"]
    run = clone.finish(TRAIN, *words, env=env)
    size = squashfs_image.stat().st_size
    told = re.findall(r"\d: rank (\d) of 2 in the image, PATH (\S+), stack pytorch, (.*)", run.log)
    assert sorted(rank for rank, _, _ in told) == ["0", "1"], run.log
    for _, path, rest in told:
        assert path.startswith(("/usr/local/sbin:", "/usr/local/bin:", "/usr/bin"))
        assert rest == f"GPUs 8, image {size}, arguments: <a b> <$HOME> <it's> <one"
    assert run.log.count('two> <"quoted">') == 2
    assert run.record["exit_code"] == "0"
    assert "PyYAML" in run.written("packages.txt")


def test_job_that_starts_no_container_fails(clone):
    text = (clone.root / TRAIN).read_text()
    (clone.root / "aws/bare.sbatch").write_text(text.replace('"${CONTAINER_OPTIONS[@]}"', ""))
    run = clone.finish("aws/bare.sbatch", "--nodes=1", state="FAILED")
    assert (
        "error: this launcher must run inside the container, and srun has started none" in run.log
    )
    assert "rank" not in run.log.replace("ranks", "")


def test_options_that_are_not_complete_start_nothing(clone):
    # An error in an index ends the function, and the job script goes on with its next line.
    broken = "pyxis_add_binds() { local -a broken=(); broken['/a b']=1; }\nset_container_options"
    text = (clone.root / TRAIN).read_text().replace("set_container_options", broken, 1)
    (clone.root / "aws/broken.sbatch").write_text(text)
    run = clone.finish("aws/broken.sbatch", "--nodes=1", state="FAILED")
    assert "unrecognized option --container-options-are-not-complete" in run.log
    assert "rank 0 of" not in run.log


def test_shell_without_a_command_is_inside(clone, terminal):
    shell = terminal(clone, "submit.py", "aws/interactive.salloc")
    shell.expect("(pytorch) ")
    shell.type(f"echo in=$(cat {MARK}) on=$(hostname)\n")
    shell.expect("on=node")
    shell.type("exit 3\n")
    assert shell.end() == 3
    assert "in=the image on=node" in shell.said


def test_folder_that_pyxis_cannot_bind_is_told_before_submission(clone, tmp_path):
    text = (clone.root / "configuration.toml").read_text()
    scratch = tmp_path / "it's a scratch"
    scratch.mkdir()
    try:
        clone.configure(text.replace(toml(clone.scratch), toml(scratch)))
        told = clone.submit(TRAIN, check=False)
    finally:
        clone.configure(text)
    assert told.returncode == 1
    assert f"error: Pyxis cannot bind {scratch}" in told.stderr
