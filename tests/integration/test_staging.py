"""Node-local staging on a real Slurm: /dev/shm stands for each node's own disk, see slurm.sh."""

import re
import shutil

import pytest
from support import processes
from support.overlays import OWN, TINY
from support.repository import toml
from support.slurm import Slurm

MORE = """\
[packages]
overlay = "myenv"
requirements = "requirements/tiny.txt"
[jobs]
stage = "always"
"""
NODES = ("--nodes=2", "--ntasks-per-node=2", "--partition=accel")
JOB = """#!/usr/bin/env bash
#SBATCH --job-name=staged
#SBATCH --mem=1G
#SBATCH --time=00:10:00
source "${LONGSHIP_ROOT:-$SLURM_SUBMIT_DIR}/lib/shell/job.bash" || exit
start_job local "$@"
srun "$LAUNCHER" "${JOB_ARGUMENTS[@]}"
"""
# What a rank sees: its node, its packages, how they are mounted, by how many for all, its image.
SHOW = """
import longship_tiny, os, subprocess
with open("/proc/self/mounts") as file:
    (kind,) = (line.split()[2] for line in file if line.split()[1] == "/user-software")
how = "mounted" if kind.startswith("fuse") else "unpacked"
shared = os.environ.get("LONGSHIP_STAGED", "none") + "/packages.sqsh"
processes = []
for each in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{each}/cmdline") as file:
            processes.append(file.read().split(chr(0)))
    except OSError:
        pass
count = sum("squashfuse" in words[0] and words[-3:-1] == [shared, "mounted"] for words in processes)
node, image = os.environ["SLURMD_NODENAME"], os.environ["APPTAINER_CONTAINER"]
print(node, longship_tiny.__file__, how, count, image)
"""


@pytest.fixture(scope="module")
def built(make_job_clone, slurm_cluster, fetcher, wheels, tmp_path_factory):
    """Give a clone with a small overlay."""
    clone = make_job_clone(tmp_path_factory.mktemp("staging"), MORE)
    (clone.root / "requirements/tiny.txt").write_text(f"{TINY}\n")
    (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
    (clone.root / "local/staged.sbatch").write_text(JOB)
    tools = clone.scratch / f"tools_{OWN}"
    tools.mkdir()
    (tools / "fetcher").symlink_to(fetcher)
    shutil.copy(fetcher / "bin/uv", tools / "uv")
    clone.environment.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    clone._run("build_overlay.py", (), None, {})
    return clone


@pytest.fixture
def staging(built, slurm):
    """Give that clone, with its first configuration, to a test whose jobs end with it."""
    text = (built.root / "configuration.toml").read_text()
    yield built
    built.configure(text)


def left(clone):
    """Name what there is of any job on the nodes' own storage."""
    slurm: Slurm = clone.slurm
    script = "ls -d /dev/shm/longship-* 2>/dev/null; true"
    return [slurm.on_node(f"node{each}", ["sh", "-c", script]).stdout for each in (1, 2, 3)]


def shim(folder, program, body):
    """Put a program before the real one, whose path it has as $real."""
    file = folder / program
    real = shutil.which(program)
    file.write_text(f"#!/usr/bin/env bash\nreal={real}\n{body}\n")
    file.chmod(0o755)


def before(clone, folder):
    """Give the environment of a job that finds a folder's programs first."""
    return {**clone.environment, "PATH": f"{folder}:{clone.environment['PATH']}"}


def start(clone):
    """Submit a job; return its number and where it stages, once its ranks have begun."""
    job = clone.job("local/staged.sbatch", *NODES, "--", "sh", "-c", "echo begun; sleep 300")
    clone.wait_until(job, lambda: "begun" in clone.slurm.log(job))
    assert any(left(clone))
    return job


def test_ranks_read_what_is_on_their_node(staging):
    run = staging.finish("local/staged.sbatch", *NODES, "--", "python3", "-c", SHOW)
    staged = run.record["staged"]
    assert staged == f"/dev/shm/longship-{staging.slurm.environment['USER']}-{run.job}.0"
    assert re.search(rf"longship: [\d.]+ [MG]B copied to each node in \d+ s: {staged}\n", run.log)
    seen = re.findall(r"\d: (node\d) /user-software/\S+ mounted 2 (\S+)\n", run.log)
    assert sorted(node for node, _ in seen) == ["node1", "node1", "node2", "node2"], run.log
    assert {image for _, image in seen} == {f"{staged}/image"}
    assert left(staging) == ["", "", ""]


@pytest.mark.parametrize(
    "ending",
    [
        ["scancel"],
        ["scancel", "--full", "--signal=KILL"],  # the batch script, the ranks and the holders
        ["scancel", "--batch", "--signal=KILL"],  # as where memory ran out
        ["scancel", "--signal=TERM"],
    ],
    ids=" ".join,
)
def test_nothing_is_left_whatever_ends_the_job(staging, ending):
    job = start(staging)
    staging.slurm.run([*ending, job])
    staging.slurm.wait(job)
    assert left(staging) == ["", "", ""]


def test_nothing_is_left_where_the_program_fails(staging):
    run = staging.finish("local/staged.sbatch", *NODES, "--", "false", state="FAILED")
    assert "staged" in run.record and run.record["exit_code"] != "0"
    assert left(staging) == ["", "", ""]


def test_job_killed_while_it_copies_leaves_nothing(staging, tmp_path):
    shim(tmp_path, "sbcast", 'echo copying >&2; "$real" "$@"; sleep 300')
    job = staging.job("local/staged.sbatch", *NODES, env=before(staging, tmp_path))
    staging.wait_until(job, lambda: any(left(staging)))
    staging.slurm.run(["scancel", "--full", "--signal=KILL", job])
    staging.slurm.wait(job)
    assert left(staging) == ["", "", ""]


def test_what_is_written_while_the_job_ends_is_removed_too(staging):
    """Slurm goes on for a moment with a broadcast that was ended: here another job writes there."""
    job = start(staging)
    (folder,) = {line for each in left(staging) for line in each.splitlines()}
    loop = 'cd "$1" && for ((i = 0; i < 400; i++)); do : >"more$i" || exit 0; sleep 0.005; done'
    command = ["srun", "--nodelist=node1,node2", "--nodes=2", "bash", "-c", loop, "bash", folder]
    writer = processes.start(command, env=staging.slurm.environment)
    try:
        on_node = ["sh", "-c", f"until [ -e '{folder}/more9' ]; do sleep 0.05; done"]
        staging.slurm.on_node("node1", on_node)
        staging.slurm.run(["scancel", job])
        staging.slurm.wait(job)
        writer.communicate(timeout=60)
    finally:
        processes.end_group(writer)
    assert left(staging) == ["", "", ""]


def falls_back(staging, reason, *options, env=None):
    """Check that a job says why, and does its work from the shared file system."""
    run = staging.finish(
        "local/staged.sbatch", *NODES, *options, "--", "python3", "-c", SHOW, env=env
    )
    assert "staged" not in run.record
    assert re.search(
        f"warning: staging failed, .* the shared file system: {reason}\nhint: .*never",
        run.log,
    ), run.log
    assert len(re.findall(r"\d: node\d /user-software/", run.log)) == 4
    assert "/dev/shm/longship" not in run.log
    assert left(staging) == ["", "", ""]


def test_memory_is_left_to_the_ranks(staging):
    needed = r"node\d: /dev/shm has 16 MB free, but \d+ MB are needed"
    falls_back(staging, needed, "--mem=64M")


def test_copy_that_is_not_the_same_is_not_used(staging, tmp_path):
    body = """if [[ ${*: -1} == */image ]]; then
  head -c 1000000 "${@: -2:1}" >"$SLURM_SUBMIT_DIR/damaged"
  set -- --force "$SLURM_SUBMIT_DIR/damaged" "${@: -1}"
fi
"$real" "$@\""""
    shim(tmp_path, "sbcast", body)
    falls_back(staging, "node\\d: image: FAILED", env=before(staging, tmp_path))


def test_broadcast_that_fails_is_told(staging, tmp_path):
    shim(tmp_path, "sbcast", 'echo "sbcast: error: REQUEST_FILE_BCAST(node2): Broken" >&2; exit 1')
    reason = r"sbcast: REQUEST_FILE_BCAST\(node2\): Broken"
    falls_back(staging, reason, env=before(staging, tmp_path))


def test_node_without_the_folder_is_named(staging):
    text = (staging.root / "configuration.toml").read_text()
    staging.configure(f"{text}stage_dirs = [{toml(str(staging.scratch / 'nowhere'))}]\n")
    falls_back(staging, "there is none of jobs.stage_dirs here: .*/nowhere")


def test_each_rank_mounts_the_copy_where_none_is_shared(staging):
    job = ["local/staged.sbatch", *NODES[:1], "--ntasks-per-node=1", *NODES[2:]]
    run = staging.finish(*job, "--", "python3", "-c", SHOW)
    assert len(re.findall(r"node\d /user-software/\S+ mounted 0 /dev/shm", run.log)) == 2
    assert left(staging) == ["", "", ""]


@pytest.mark.parametrize("how", ["auto", "never"])
def test_small_jobs_copy_nothing(staging, how):
    text = (staging.root / "configuration.toml").read_text()
    staging.configure(text.replace('stage = "always"', f'stage = "{how}"'))
    run = staging.finish("local/staged.sbatch", *NODES, "--", "python3", "-c", SHOW)
    assert "staged" not in run.record and "copied" not in run.log
    assert "/dev/shm" not in run.log
