"""Every kind of script that is emitted, from a configuration, for a machine and a runtime."""

import runpy
from functools import partial
from pathlib import Path

from lib import ROOT
from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.runtimes import find_runtimes
from lib.configuration.sites import load_machines
from lib.images import build, versions
from lib.jobs.job_files import read_job_file
from lib.jobs.runs import NAMED
from lib.jobs.size import slurm_facts
from lib.jobs.start import start_lines, start_of
from lib.packages import overlay, set_up
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.render import render
from support.requests import lines_for

ENVIRON = {"HOME": "/home/me", "USER": "me", "PATH": "/usr/bin:/bin"}
ENVIRON["SINGULARITY_ALLOWED_DIR"] = "/allowed"  # Jean Zay's
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


def _submit(env, *options, arguments=(), **wanted):
    job = read_job_file(Path(ROOT), training_file(env.settings))
    return lines_for(env, job, *options, "--", *arguments, **wanted)


def _start(env):
    return start_of(env, env.paths.runs / "12-train", slurm_facts(FACTS))


def _job_start(env, restarts=0):
    """Give the lines that a job file sources."""
    settings = env.settings._replace(environ={**env.settings.environ, "SLURM_JOB_ID": "12"})
    if restarts:
        jobs = settings.configuration.jobs._replace(restarts=restarts)
        settings = settings._replace(configuration=settings.configuration._replace(jobs=jobs))
    named = {**dict.fromkeys(NAMED, ""), "image": "/i.sif", "venv": env.venv}
    return start_lines(_start(env._replace(settings=settings)), named)


JOBS = {
    "launcher": lambda env: run_lines(_start(env).env),  # of each rank
    "submit": lambda env: _submit(
        *(env, "--nodes=4", "--comment=it's mine"), arguments=("--steps", "1 0"), chain=3
    ),
    # an array, after another job, for a run that is started again
    "submit_array": lambda env: _submit(
        *(env, "--array=0-7", "--output=/logs/%A_%a.log"), after="7", again="/home/me/it's/11-train"
    ),
    "job_start": _job_start,
    "job_start_watched": partial(_job_start, restarts=3),
}
IMAGES = {
    "build_container_online": partial(build.image_build_lines, force=False, command_line="x y"),
    "build_container_offline": partial(
        build.image_build_lines, force=True, command_line="x y", offline=True
    ),
    "build_container_download": partial(
        build.image_download_lines, force=False, command_line="x y"
    ),
    "move_built_container_to_active": partial(
        versions.move_lines, command_line="x y", following=["x y"]
    ),
    "move_rollback": partial(versions.use_lines, following=[], version=None),
    "move_use": partial(versions.use_lines, following=["x y"], version="1"),
    "move_prune": versions.image_prune_lines,
}
SET_UPS = {
    "set_up": partial(set_up.install_lines, command_line="x y"),
    "set_up_offline": partial(set_up.install_lines, command_line="x y", offline=True),
    "set_up_download": partial(set_up.download_lines, command_line="x y"),
    "set_up_update": partial(set_up.update_lines, command_line="x y"),
    "set_up_update_continue": lambda env: set_up.repositories_alone_lines(
        env.settings, env.paths, "continue", "x y"
    ),
}
# Their configuration has an overlay.
OVERLAYS = {
    "build_overlay": partial(overlay.overlay_build_lines, command_line="x y"),
    "build_overlay_offline": partial(overlay.overlay_build_lines, offline=True, command_line="x y"),
    "build_overlay_download": partial(overlay.overlay_download_lines, command_line="x y"),
    "build_overlay_prune": lambda env: overlay.overlay_prune_lines(
        env.settings, env.paths, asked=False
    ),
    "container_run_overlay": run_lines,
    "set_up_overlay": partial(set_up.install_lines, command_line="x y"),
}
# An extra has a table of its own. Each kind has a golden plan: here are the folders of these plans.
GOLDEN_OF, EXTRAS = {}, {}
for file in sorted(Path(ROOT).glob("extras/*/tests/emitted.py")):
    kinds = runpy.run_path(str(file))["KINDS"]
    GOLDEN_OF.update(dict.fromkeys(kinds, file.with_name("golden")))
    EXTRAS.update(kinds)
KINDS = {
    "container_run": run_lines,
    "container_run_online": partial(run_lines, online=True),
    **{**JOBS, **IMAGES, **SET_UPS, **OVERLAYS, **EXTRAS},
}


def can_start(machine, runtime):
    """Say whether a machine has a runtime: its extra, or that of srun, can have been removed."""
    needed = {runtime} if load_machines(Path(ROOT))[machine].pyxis == "no" else {runtime, "pyxis"}
    return needed <= dict(find_runtimes()).keys()


RUNTIME_OF = {
    name: machine.runtime.replace("auto", "apptainer")
    for name, machine in load_machines(Path(ROOT)).items()
    if can_start(name, machine.runtime.replace("auto", "apptainer"))
}


def environment_of(machine, runtime, configuration, stack=""):
    """Give the environment of a clone next to the project directory, on a machine."""
    environ = {**ENVIRON, "LONGSHIP_CONFIGURATION": str(configuration)}
    settings = load_settings(Path(ROOT), {"machine": machine, "stack": stack}, environ)
    paths = derive_paths(settings)
    # it shows what is quoted; Pyxis binds no space
    paths = paths._replace(root=paths.project_dir.parent / "long&ship")
    if machine == "local":
        paths = paths._replace(arch="amd64")  # wherever the tests run
    return Environment(settings, paths, runtime)


def emit(kind, env):
    """Give the script of a kind."""
    if kind in JOBS:
        env = env._replace(purpose="job")
    machine = env.settings.machine
    title = f"Longship: {kind}, machine {machine.name} ({machine.site_file})"
    return render(title, KINDS[kind](env), sourced=kind.startswith("job_start"))
