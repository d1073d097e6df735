"""Jobs of AWS and Alps, whose srun starts the containers: see stand_ins/pyxis/srun."""

import os
import re
import shutil
from functools import partial

import pytest
from support import cache, processes
from support.jobs import JobClone
from support.repository import toml

from lib.configuration.sites import own_arch

# What only the image has.
MARK = "/etc/longship-tests-image"
TRAIN = "aws/run_training_aws.sbatch"
# What a stack's training would be: it says where it runs, and as what.
STACK = f"""#!/usr/bin/env bash
printf 'rank %s of %s in %s, PATH %s, stack %s, GPUs %s, image %s, arguments:' "$RANK" \\
    "$WORLD_SIZE" "$(cat {MARK})" "$PATH" "$LONGSHIP_STACK" "$GPUS_PER_NODE" \\
    "$(wc -c </longship-image)"
printf ' <%s>' "$@" "$LINES_OF_TEXT" "$QUOTED"
echo
echo "caches $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"
"""


@pytest.fixture(scope="session")
def squashfs_image(base_tar, require, session_environment):
    """Give the small Debian as an image of enroot's, with a file that nothing else has."""
    require("fuse")

    def build(partial):
        folder = partial.with_name("partial-unpacked-squashfs")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        unpack = ["tar", "--extract", "--exclude=./dev/*", "--file", base_tar, "-C", folder]
        processes.run(unpack, env=session_environment)
        (folder / MARK[1:]).write_text("the image\n")
        pack = ["mksquashfs", folder, partial, "-comp", "gzip", "-no-progress", "-quiet"]
        processes.run(pack, env=session_environment)
        processes.run(["chmod", "-R", "u+w", folder], env=session_environment)
        shutil.rmtree(folder)

    return cache.cached(f"{base_tar.stem}-marked.sqsh", build)


@pytest.fixture(scope="module")
def make_clone(root, slurm_cluster, squashfs_image):
    """Give a function that makes a clone with a stack that only tells, and no packages."""
    return partial(_make_clone, root, slurm_cluster, squashfs_image)


def _make_clone(root, slurm_cluster, squashfs_image, folder, engine=False):
    scratch = folder / "scratch"
    scratch.mkdir()
    clone = JobClone(root, folder / "clone", slurm_cluster, scratch)
    clone.configure(
        f"[paths]\nproject_dir = {toml(scratch / 'project')}\nscratch_dir = {toml(scratch)}\n"
        'checkpoint_dir = ""\n'  # Alps' is elsewhere
        f'[container]\nimage = {toml(squashfs_image)}\n[packages]\nrequirements = ""\n'
        '[project]\naccount = "acc"\n'
    )
    stack = clone.root / "stacks/pytorch"
    (stack / "stack.toml").write_text('description = "only tells"\n')
    (stack / "run_training.sh").write_text(STACK)
    shutil.copytree(root / "tests/stand_ins/pyxis", folder / "bin")
    text = (folder / "bin/srun").read_text().replace("ENGINE = False", f"ENGINE = {engine}")
    (folder / "bin/srun").write_text(text.replace('"srun"', repr(shutil.which("srun")), 1))
    clone.environment["PATH"] = f"{folder / 'bin'}:{clone.environment['PATH']}"
    return clone


@pytest.fixture(scope="module")
def clone(make_clone, tmp_path_factory):
    """Give a clone for AWS."""
    return make_clone(tmp_path_factory.mktemp("pyxis"))


@pytest.fixture(scope="module")
def alps(make_clone, tmp_path_factory):
    """Give a clone for Alps, whose nodes have this machine's architecture here."""
    clone = make_clone(tmp_path_factory.mktemp("engine"), engine=True)
    site = clone.root / "alps/site.toml"
    site.write_text(site.read_text().replace('arch = "arm64"', f'arch = "{own_arch()}"'))
    return clone


@pytest.fixture(autouse=True)
def _own_jobs(slurm):
    """End the jobs of each test with it."""
    return slurm


def test_ranks_run_inside_with_their_arguments_and_variables(clone, squashfs_image):
    env = {"LINES_OF_TEXT": "one\ntwo", "QUOTED": '"quoted"', "HF_HUB_OFFLINE": "0"}
    env["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/mine"
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
    caches = rf"\d: caches /tmp/longship-{os.getuid()}-{run.job}-(\S+)/triton /tmp/mine\n"
    assert len({*re.findall(caches, run.log)}) == 2, run.log
    assert run.log.count("note: replaced inside the environment") == 1


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


SMALL = ["--nodes=2", "--gpus-per-node=2", "--cpus-per-task=1"]


def test_ranks_run_inside_by_an_environment_file(alps, squashfs_image):
    env = {"LINES_OF_TEXT": "one", "QUOTED": "two", "WANDB_API_KEY": "a secret"}
    run = alps.finish("alps/run_training_alps.sbatch", *SMALL, "--", "a b", "$HOME", env=env)
    size = squashfs_image.stat().st_size
    told = re.findall(r"\d: rank (\d) of 2 in the image, PATH (\S+), stack pytorch, (.*)", run.log)
    assert sorted(rank for rank, _, _ in told) == ["0", "1"], run.log
    assert {rest for _, _, rest in told} == {
        f"GPUs 2, image {size}, arguments: <a b> <$HOME> <one> <two>"
    }
    assert "PyYAML" in run.written("packages.txt")
    written = run.written("environment.toml")
    assert f'image = "{squashfs_image}"\n' in written
    assert 'com.hooks.aws_ofi_nccl.enabled = "true"\n' in written
    assert "secret" not in written


def test_overlay_is_mounted_by_the_engine(alps, tmp_path, run):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/mark").write_text("of the overlay\n")
    overlay = alps.scratch / "x.sqsh"
    run(["mksquashfs", tmp_path / "packages", overlay, "-quiet", "-no-progress"])
    mounts = f"{alps.root}:{alps.root} {alps.scratch}:{alps.scratch} {overlay}:/packages:sqsh"
    mount = f"pyxis_add_binds() {{ options+=({mounts}); }}"
    text = (alps.root / "alps/preprocess_data_alps.sbatch").read_text()
    text = text.replace("set_container_options", f"{mount}\nset_container_options", 1)
    step = text.index('"$LAUNCHER"')
    (alps.root / "alps/overlay.sbatch").write_text(text[:step] + "cat /packages/mark\n")
    run = alps.finish("alps/overlay.sbatch", "--cpus-per-task=1")
    assert "0: of the overlay\n" in run.log
    assert f'  "{overlay}:/packages:sqsh",\n' in run.written("environment.toml")


def test_environment_file_that_cannot_be_written_starts_nothing(alps):
    full = "longship_edf=/proc/x/environment.toml"
    text = (alps.root / "alps/run_training_alps.sbatch").read_text()
    text = text.replace("set_container_options", f"{full}\nset_container_options", 1)
    (alps.root / "alps/full.sbatch").write_text(text)
    run = alps.finish("alps/full.sbatch", *SMALL, state="FAILED")
    assert "error: cannot use the directory /proc/x: " in run.log
    assert "rank 0 of" not in run.log


def test_srun_without_the_engine_knows_no_environment_file(clone):
    text = (clone.root / "alps/run_training_alps.sbatch").read_text()
    (clone.root / "alps/other.sbatch").write_text(text)
    site = (clone.root / "alps/site.toml").read_text()
    local = site.replace('arch = "arm64"', f'arch = "{own_arch()}"')
    (clone.root / "alps/site.toml").write_text(local)
    run = clone.finish("alps/other.sbatch", *SMALL, state="FAILED")
    assert "unrecognized option --environment" in run.log
