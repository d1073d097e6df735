"""The checked-in job files of every site, unchanged, on a real Slurm with real images.

Accounts and paths come from the configuration, a smaller size from options of the command line; the
machines' architecture is this one's. Compute nodes have no route out.
"""

import json
import re
from pathlib import Path

import pytest
from support.jobs import TEXT, TRAINING

from lib.configuration.sites import own_arch

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20  # what is compared; no run ends by itself


ENDLESS = ["--steps", "100000"]


# The others at night. test_jobs.py starts a task for each rank, and the fixture `jobs` makes data
# in one process. Containers that Slurm starts are in test_pyxis.py.
REAL = {
    "jsc/run_training_jwb.sbatch",  # torchrun
    "jsc/preprocess_data_parallel_jpb.sbatch",
}

WITHOUT_PRICE = ("local", "arrhenius", "marenostrum")


# MASTER_ADDR is the name with an i, or the IP address.
OTHER_NETWORK = {
    *(f"jsc/run_training_{machine}.sbatch" for machine in ("jpb", "jrc", "jwb")),
    *("olivia/run_training_olivia.sbatch", "frontier/run_training_frontier.sbatch"),
    "frontier/run_training_ranks_frontier.sbatch",
}


def files(pattern):
    found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"*/{pattern}"))
    assert found
    return [
        pytest.param(each, marks=() if each in REAL else pytest.mark.slow, id=each)
        for each in found
    ]


def two_gpus(file):
    """Give the options that ask for two GPUs per node, in the words of the job file."""
    text = (ROOT / file).read_text()
    if "--exclusive" in text:  # all eight, but for this; test_pyxis.py looks at all eight
        return ["--oversubscribe", "--gpus-per-node=2"]
    if "--gres" in text:
        return ["--gres=gpu:2"]
    if "--gpus=" in text:
        return ["--gpus=4", "--gpus-per-node=2"]
    if "ntasks-per-node=8" in text:
        return ["--gpus-per-node=2", "--ntasks-per-node=2"]
    return ["--gpus-per-node=2"]


@pytest.fixture(scope="module")
def reference(jobs_made):
    """Give the losses of a run of one process that nothing interrupts."""
    arguments = [*TRAINING, *ENDLESS, "--run-name", "reference"]
    job = jobs_made.job("local/run_training_local.sbatch", "--", *arguments)
    stop_after(jobs_made, job, "reference", STEPS)
    return jobs_made.losses("reference")[:STEPS]


def stop_after(jobs, job, name, steps):
    """Let a training end by the signal that comes before the time limit."""
    jobs.wait_for_step(job, name, steps)
    jobs.slurm.run(["scancel", "--signal=USR1", job])
    assert jobs.slurm.wait(job) == "COMPLETED", jobs.slurm.log(job)
    assert "stopped by a signal" in jobs.slurm.log(job)


@pytest.mark.parametrize("file", files("run_training_*.sbatch"))
def test_training_is_stopped_by_the_signal_before_the_time_limit_and_goes_on(file, jobs, reference):
    name = Path(file).stem
    arguments = [*TRAINING, *ENDLESS, "--run-name", name]
    # Where ranks do not meet at the name that a node calls itself, that must lead nowhere.
    env = {}
    if file in OTHER_NETWORK:  # Gloo, which trains on CPUs, must be told the network besides
        env = {**jobs.only_second_names(), "GLOO_SOCKET_IFNAME": "ib0"}
    said = jobs.submit(file, *two_gpus(file), "--chain=2", "--", *arguments, env=env)
    first, second = said.stdout.split()
    stop_after(jobs, first, name, 2)
    done = len(jobs.losses(name))
    stop_after(jobs, second, name, max(STEPS, done + 2))
    assert "from the beginning" not in jobs.slurm.log(second)
    assert jobs.losses(name)[:STEPS] == pytest.approx(reference, rel=1e-3)
    check_record(jobs, jobs.run(first), file, arguments)
    ranks = 2 * int(re.findall(r"#SBATCH --nodes=(\d)", (ROOT / file).read_text())[0])
    assert f"on {ranks} x cpu" in jobs.slurm.log(second)
    assert jobs.run(second).record["goes_on_from"] == first


def check_record(jobs, run, file, arguments):
    """Hold that the record has all that the run can be started again from."""
    record = run.record
    assert record["job"] == run.job
    assert record["exit_code"] == "0"
    assert record["image"].endswith(".sif")
    assert Path(record["venv"]).is_dir()
    assert record["site"].startswith(file.split("/")[0])
    assert record["started"] <= record["ended"]
    assert run.written("job.sbatch") == (jobs.root / file).read_text()
    assert run.written("arguments").split("\0")[:-1] == arguments
    assert "torch==" in run.written("packages.txt")
    assert f"JobId={run.job}" in run.written("slurm.txt")
    assert "scratch_dir" in run.written("configuration.json")
    assert ("cost_unit" in record) == (record["machine"] not in WITHOUT_PRICE)


@pytest.mark.parametrize("file", files("preprocess_data_parallel_*.sbatch"))
def test_data_made_in_parallel_are_those_of_one_process(file, jobs):
    name = Path(file).stem
    shards = 3 * int(re.findall(r"#SBATCH --nodes=(\d)", (ROOT / file).read_text())[0])
    run = jobs.finish(file, "--cpus-per-task=3", "--", *TEXT, "--name", name)
    written = re.findall(r"shard of rank (\d) of (\d): ", jobs.slurm.log(run.job))
    assert sorted(written) == [(str(each), str(shards)) for each in range(shards)]
    data = jobs.scratch / "data"
    for ending in ("bin", "idx"):
        made = (data / f"{name}_text_document.{ending}").read_bytes()
        assert made == (data / f"corpus_text_document.{ending}").read_bytes()


@pytest.mark.parametrize("file", files("preprocess_data_[!p]*.sbatch"))
def test_data_made_in_one_process(file, jobs):
    name = Path(file).stem
    jobs.finish(file, "--", *TEXT, "--name", name)
    made = (jobs.scratch / f"data/{name}_text_document.bin").read_bytes()
    assert made == (jobs.scratch / "data/corpus_text_document.bin").read_bytes()


@pytest.mark.slow  # tests/test_stack_torchtitan.py has the arguments
def test_torchtitan_makes_both_splits_in_parallel_and_nemo_is_refused(jobs):
    file = "local/preprocess_data_parallel_local.sbatch"
    data = jobs.scratch / "data"
    for split, lines in (("train", 300), ("validation", 30)):
        text = "".join(f'{{"text": "row {number} of {split}"}}\n' for number in range(lines))
        (data / f"{split}.jsonl").write_text(text)
    venv = jobs.scratch / f"venv_pytorch_{own_arch()}"
    (jobs.scratch / f"venv_torchtitan_{own_arch()}").symlink_to(venv.resolve())
    jobs.finish(file, "--stack", "torchtitan", "--nodes=2", "--", "--vocab-size=400")
    for split, lines in (("train", 300), ("validation", 30)):
        record = json.loads((data / f"torchtitan_{split}_text_document.record.json").read_text())
        assert record["result"]["documents"] == lines
    done = jobs.submit(file, "--stack", "nemo", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    error, _ = done.stderr.splitlines()  # and no word of its cost
    assert error == "error: NeMo prepares its data in a single task"
