"""A clone whose jobs run on the test's Slurm cluster, with PyTorch inside a real image."""

import json
import os
import re
import sys
from functools import partialmethod
from pathlib import Path

import pytest

from lib.configuration.sites import own_arch
from support import cache, processes
from support.repository import Clone, toml

TOY = ("--layers", "1", "--heads", "2", "--width", "32", "--sequence-length", "32")
# The same numbers whatever the number of ranks, but for the order in which gradients are added.
TRAINING = (*TOY, "--batch-size", "16", "--warmup-steps", "5", "--learning-rate", "1e-2")
TEXT = ("--max-megabytes", "0.3", "--vocab-size", "500")
# What the modules of Olivia would set. A mock, as no such modules exist elsewhere: like Lmod's own
# `module` it is a function of the submitting shell that reaches the job by the environment.
# As that one it refuses what the site's page does not list.
MODULE = """() {  case "$*" in
 reset | "load NRIS/GPU" | "load NCCL/2.30.4-GCCcore-14.3.0-CUDA-13.0.0") ;;
 "load brics/apptainer-multi-node") ;;
 *) echo "unknown module: $*" >&2; return 1 ;;
 esac
 export EBROOTLIBFABRIC=/usr EBROOTNCCL=/usr EBROOTAWSMINOFIMINNCCL=/usr
}"""

TASK = """\
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["(self", "zebra zebra zebra zebra"]
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def tiny_task(folder):
    """Make a task of lm-eval that every model solves; give the settings that name it."""
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TASK % json.dumps(str(folder / "tiny.jsonl")))
    rows = [{"text": f"def f{number}", "label": 0} for number in range(6)]
    (folder / "tiny.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f'[stacks.evaluate.training]\ntasks = "tiny"\ntasks_dir = {toml(folder)}\n'


class JobClone(Clone):
    """What a test of jobs asks of a clone."""

    def __init__(self, root, folder, slurm, scratch):
        # `python3` of a job is the one that is first on PATH where it was submitted
        path = f"{Path(sys.executable).parent}:{processes.PATH}"
        module = {"BASH_FUNC_module%%": MODULE}
        super().__init__(root, folder, {**slurm.environment, **module, "PATH": path})
        self.slurm = slurm
        self.scratch = scratch
        self.runs = scratch / "runs"

    def only_second_names(self):
        """Give the environment of jobs whose ranks reach nodes by the names with an i alone."""
        hosts = Path(self.slurm.environment["SLURM_CONF"]).with_name("hosts-lonely")
        assert hosts.exists()
        return {"APPTAINER_BIND": f"{hosts}:/etc/hosts:ro"}

    submit = partialmethod(Clone.type, "submit.py")

    def job(self, *words, **options):
        """Submit one job; return its id."""
        __tracebackhide__ = True
        return self.submit(*words, **options).stdout.split()[0]

    def finish(self, *words, state="COMPLETED", timeout=600, **options):
        """Submit one job and wait for its end; return its run."""
        __tracebackhide__ = True
        job = self.job(*words, **options)
        ended = self.slurm.wait(job, timeout=timeout)
        assert ended == state, self.slurm.log(job)
        return self.run(job)

    def run(self, job):
        """Give the run of a job, which may be about to start."""
        return Run(self, job)

    def losses(self, name):
        """Give the losses of a training run by its name, also while it is written."""
        path = self.scratch / "checkpoints" / name / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line)["loss"] for line in lines if line.endswith("\n")]

    def wait_for_step(self, job, name, step, timeout=600):
        """Wait until a training run has done so many steps."""
        self.wait_until(job, lambda: len(self.losses(name)) >= step, timeout)

    def wait_until(self, job, condition, timeout=600):
        """Wait for something that a running job brings about."""
        __tracebackhide__ = True
        self.slurm.wait(job, "as it should be", timeout=timeout, until=condition)


class Run:
    """The record of a run."""

    def __init__(self, clone, job):
        self.clone, self.job = clone, job

    @property
    def folder(self):
        """The run's folder."""
        (found,) = self.clone.runs.glob(f"{self.job}-*/")
        return found

    @property
    def record(self):
        """What record.json says."""
        return json.loads((self.folder / "record.json").read_text())

    @property
    def log(self):
        """The job's log."""
        return Path(self.record["log"]).read_text(errors="surrogateescape")

    def written(self, *parts):
        """Read a file of the record."""
        return os.fsdecode(self.folder.joinpath(*parts).read_bytes())


@pytest.fixture(scope="session")
def job_environment(root, install_once):
    """Give the venv with PyTorch, made on the base image once and kept in the cache."""
    inputs = [root / f"requirements/{name}.txt" for name in ("environment", "torch")]
    return install_once("jobs", inputs)


@pytest.fixture(scope="session")
def jupyter_environment(install_once):
    """Give a venv with JupyterLab and TensorBoard, without PyTorch, made in the same way."""
    return install_once(
        "jupyter", [], "jupyterlab>=4.4,<5\njupyter-server-proxy>=4.4,<5\ntensorboard\n"
    )


@pytest.fixture(scope="session")
def harness(root, install_once):
    """Give the venv with the packages of the stack evaluate, made in the same way."""
    inputs = [root / "stacks/evaluate/requirements.txt", root / "requirements/torch.txt"]
    return install_once("evaluate", inputs, "".join(each.read_text() for each in inputs))


@pytest.fixture(scope="session")
def install_once(root, base_image, session_environment, tmp_path_factory):
    """Give a function that returns the venv with what a file requires, or instead a text."""

    def install(name, inputs, requirements=None):
        name = f"{name}-{cache.fingerprint(base_image.name, *inputs, requirements)}"
        scratch = cache.cache_folder() / name
        clone = Clone(root, tmp_path_factory.mktemp("installing") / "clone", session_environment)
        clone.configure(configuration(scratch, base_image))
        if requirements:
            (clone.root / "requirements/environment.txt").write_text(requirements)
            (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
        with cache.locked(name):
            clone.set_up("install", timeout=900)
        return Path(os.path.realpath(scratch / f"venv_pytorch_{own_arch()}"))

    return install


def configuration(scratch, image, more="", binds=()):
    """Give a configuration.toml for all machines."""
    return (
        '[project]\nname = "proj"\naccount = "acc"\n'
        f"[paths]\nproject_dir = {toml(scratch / 'project')}\nscratch_dir = {toml(scratch)}\n"
        'checkpoint_dir = ""\n'  # LUMI's is elsewhere
        f'[container]\nruntime = "apptainer"\nimage = {toml(image)}\nbinds = {toml(list(binds))}\n'
        f'[environment]\nsecrets = ["HF_TOKEN"]\n{more}'
    )


@pytest.fixture(scope="session")
def make_job_clone(root, slurm_cluster, base_image, job_environment):
    """Give a function that makes a clone whose jobs have PyTorch, with a scratch of its own."""

    def make(folder, more="", packages=job_environment):
        scratch = folder / "a scratch"
        scratch.mkdir()
        (scratch / f"venv_pytorch_{own_arch()}").symlink_to(packages)
        clone = JobClone(root, folder / "it's a clone", slurm_cluster, scratch)
        # Jean Zay starts images of one directory
        clone.environment["SINGULARITY_ALLOWED_DIR"] = str(base_image.parent)
        image = toml(f"$SINGULARITY_ALLOWED_DIR/{base_image.name}")
        more += f"\n[machines.jeanzay]\ncontainer.image = {image}\n"
        clone.configure(configuration(scratch, base_image, more, [packages.parent]))
        for site in clone.root.glob("*/site.toml"):  # this machine stands for the arm64 ones too
            text = re.sub(r'arch = "(amd|arm)64"', f'arch = "{own_arch()}"', site.read_text())
            # and its folders for those that JUPITER's compute nodes see
            seen = sorted({f"/{path.parts[1]}" for path in (folder, base_image)})
            site.write_text(
                text.replace('compute_directories = ["/e"]', f"compute_directories = {seen}")
            )
        return clone

    return make


@pytest.fixture(scope="session")
def jobs_made(make_job_clone, tmp_path_factory):
    """Give a clone with training data, for all tests of a session."""
    clone = make_job_clone(tmp_path_factory.mktemp("jobs"))
    clone.finish("local/preprocess_data_local.sbatch", "--", *TEXT)
    return clone


@pytest.fixture
def jobs(jobs_made, slurm):
    """Give that clone to a test, whose jobs end with it; names of training runs are its own."""
    return jobs_made
