"""The scripts of jobs, as they are emitted: what submits one, what starts its run, its launcher."""

from pathlib import Path

from lib import ROOT
from lib.doctor import job as job_diagnosis
from lib.jobs.job_files import read_job_file
from lib.jobs.options import read_options
from lib.jobs.request import slurm_facts
from lib.jobs.rerun import NAMED
from lib.jobs.start import start_lines
from lib.jobs.submit import Submission, submit_lines
from lib.jobs.watcher import with_restarts
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines

# As Slurm prints it in one line.
FACTS = (
    "JobId=12 JobName=train UserId=me(1000) GroupId=me(1000) Account=my-account QOS=(null) "
    "JobState=RUNNING Restarts=0 BatchFlag=1 TimeLimit=01:00:00 SubmitTime=2026-01-02T03:04:05 "
    "Partition=booster NodeList=node[1-2] BatchHost=node1 NumNodes=2 NumCPUs=96 NumTasks=2 "
    "TRES=cpu=96,mem=880G,node=2 Features=(null) Command=/home/me/job.sbatch WorkDir=/home/me "
    "StdErr=/home/me/12-train.log StdIn=/dev/null StdOut=/home/me/12-train.log Power="
)
TRAINING = {"jwc": "jsc/preprocess_data_parallel_jwc.sbatch"}


def training_file(settings):
    """Name the job that trains or evaluates on a machine, or makes data on one without GPUs."""
    name, site = settings.machine.name, Path(settings.machine.site_file).parent
    step = "evaluation" if settings.stack.name == "evaluate" else "training"
    return TRAINING.get(name) or f"{site}/run_{step}_{name}.sbatch"


def submit(settings, paths, runtime):
    """Give the lines of submit.py for that job."""
    job = read_job_file(Path(ROOT), training_file(settings))
    typed = read_options(["--nodes=4", "--comment=it's mine"])
    return submit_lines(
        Environment(settings, paths, runtime, "job"), Submission(job, typed, ("--steps", "1 0"), 3)
    )


def submit_array(settings, paths, runtime):
    """The same of an array, after another job, for a run that is started again."""
    job = read_job_file(Path(ROOT), training_file(settings))
    typed = read_options(["--array=0-7", "--output=/logs/%A_%a.log"])
    wanted = Submission(job, typed, (), after="7", again="/home/me/it's/11-train")
    return submit_lines(Environment(settings, paths, runtime, "job"), wanted)


def job_start(settings, paths, runtime):
    """Give the lines that a job file sources."""
    environ = {**settings.environ, "SLURM_JOB_ID": "12"}
    settings = settings._replace(environ=environ)
    env = Environment(settings, paths, runtime, "job")
    named = {**dict.fromkeys(NAMED, ""), "image": "/i.sif", "venv": env.venv}
    env = env._replace(held=named)
    return start_lines(env, paths.runs / "12-train", slurm_facts(FACTS), named, "GPU is lost|it's")


def job_start_watched(settings, paths, runtime):
    """The same of a job that is restarted."""
    return job_start(with_restarts(settings, 3), paths, runtime)


def launcher(settings, paths, runtime):
    """Give the lines of a launcher."""
    return run_lines(Environment(settings, paths, runtime, "job"))


def doctor_job(settings, paths, runtime):
    """Give the lines of doctor.py --job."""
    return job_diagnosis.lines(Environment(settings, paths, runtime, "job"))


JOBS = {
    "submit": submit,
    "submit_array": submit_array,
    "job_start": job_start,
    "job_start_watched": job_start_watched,
    "launcher": launcher,
    "doctor_job": doctor_job,
}
