"""Submissions, starts and recorded runs of jobs: their lines, and what a stand-in of Slurm gets."""

import json
import os
import shlex
from pathlib import Path

import pytest

from lib import ROOT
from lib.configuration.sites import load_machines
from lib.jobs.job_files import check_machine, read_job_file
from lib.jobs.options import split_typed
from lib.jobs.request import Asked
from lib.jobs.size import slurm_facts
from lib.jobs.start import start_lines, start_of
from lib.jobs.submit import request_of, submit_lines
from lib.runtimes.environment import Environment
from lib.script.hooks import hooks
from lib.script.render import render
from support.repository import toml


def lines_for(env, job, *words, again="", options=None, **given):
    """Give the lines for a job, the words typed after it, and values of options by their names."""
    typed, arguments = split_typed(words)
    own = {name: given.pop(name) for name in Asked._fields if name in given}
    extras = {
        extra: {each.name: given.pop(each.name) for each in known if each.name in given}
        for extra, known in hooks("OPTIONS").items()
    }
    assert not given
    asked = Asked(options=options or {}, extras=extras, **own)
    return submit_lines(request_of(env, job, typed, arguments, asked, again))


SITE = """
[machines.m]
recognise.host = "login.m"
cores_per_node = 48
gpus_per_node = 4
default_partition = "gpu"
required = ["account"]
price = { node = 48, unit = "core-hours" }
partitions.gpu = { max_time = "24:00:00" }
partitions.devel = { max_time = "2:00:00" }
partitions.free = { price = { gpu = 1 } }

[machines.strict]
required = ["mem"]
"""


JOB = '#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --time=1:00:00\nstart_job m "$@"\n'


CONFIGURATION = """
machine = "m"
project.account = "acc"
container.runtime = "host"
packages.requirements = ""
jobs.ask_above = 100
"""


TRAIN = "site/train.sbatch"


# Here it is the words that count: what the real one does with them is tested in integration/.
SBATCH = """#!/bin/bash
folder=${0%/*}/calls
mkdir -p "$folder"
number=$(find "$folder" -type f | wc -l)
printf '%s\\0' "${0##*/}" "${LONGSHIP_JOB_RESUMES-}" "$@" >"$folder/$number"
echo "a warning" >&2
echo "$((100 + number));cluster"
"""


@pytest.fixture
def site(repository, tmp_path):
    """Give a repository with a site that has partitions, and jobs for it."""
    repository.scratch = tmp_path / "it's scratch"
    repository.write("site/site.toml", SITE)
    repository.write("site/train.sbatch", JOB)
    repository.write("site/shell.salloc", JOB)
    repository.write("submit.py", "")  # that it can be run is looked at
    for each in ("lib", "extras"):
        (repository.root / each).symlink_to(Path(ROOT, each))
    repository.write("site/strict.sbatch", JOB.replace("start_job m", "start_job strict"))
    repository.write("other/site.toml", '[machines.o]\nrecognise.host = "login.o"\n')
    repository.write("other/own.sbatch", JOB.replace("start_job m", "start_job o"))
    scratch = f"paths.scratch_dir = {toml(repository.scratch)}\n"
    scratch += f"paths.project_dir = {toml(tmp_path / 'project')}\n"
    repository.write("configuration.toml", CONFIGURATION + scratch)
    return repository


@pytest.fixture
def submit(site):
    """Give a function that returns the lines for a job and the words that were typed after it."""

    def lines(*words, job=TRAIN, runtime="host", environ=None, **given):
        job = read_job_file(site.root, job)
        check_machine(job, "m", load_machines(site.root))
        settings, paths = site.settings_and_paths(environ, machine=job.machine)
        return lines_for(Environment(settings, paths, runtime, "job"), job, *words, **given)

    lines.site = site
    return lines


@pytest.fixture
def calls(submit, clean_environment, run, tmp_path):
    """Give a function that runs the lines for a job, and returns what sbatch was called with."""

    def start(*words, **options):
        path = tmp_path / "bin"
        path.mkdir()
        for name in ("sbatch", "salloc"):
            (path / name).write_text(SBATCH)
            (path / name).chmod(0o755)
        env = {**clean_environment, "PATH": f"{path}:{clean_environment['PATH']}"}
        start.done = run(["bash", "-c", render("a test", submit(*words, **options))], env=env)
        files = sorted((path / "calls").iterdir(), key=lambda each: int(each.name))
        return [os.fsdecode(each.read_bytes()).split("\0")[:-1] for each in files]

    return start


def options_of(lines):
    """Give the words of the array that sbatch gets."""
    (line,) = [each for each in lines if each.startswith("options=(")]
    return shlex.split(line[len("options=(") : -1])


def cost_of(lines):
    """Give what is told of the job, and what is asked about."""
    return [shlex.split(each)[1] for each in lines if each.startswith(("note ", "cost_confirm"))]


# As Slurm 22.05 prints it, in one line; the last job of an array bears the array's number.
LINE = (
    "JobId=12 ArrayJobId=12 ArrayTaskId=1 JobName=my job/of mine UserId=me(1000) GroupId=me(1000) "
    "MCS_label=N/A Priority=4294901748 Nice=0 Account=acc QOS=(null) JobState=RUNNING Reason=None "
    "Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:00 "
    "TimeLimit=00:30:00 TimeMin=N/A SubmitTime=2026-01-02T03:04:05 AccrueTime=Unknown "
    "Deadline=N/A SuspendTime=None Scheduler=Backfill Partition=gpu AllocNode:Sid=login1:16719 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=2 "
    "NumCPUs=48 NumTasks=4 CPUs/Task=12 ReqB:S:C:T=0:0:*:* TRES=cpu=48,mem=220G,node=2,billing=48 "
    "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=110G "
    "Features=fat DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) "
    "Command=(null) WorkDir=/home/me/a b Comment=A=1 JobId=9 B  "
    "StdErr=/home/me/a b/12_1.log StdIn=/dev/null StdOut=/home/me/a b/12_1.log Power= "
    "TresPerNode=gres:gpu:4 \n"
)


NAMED = {"image": "/i.sif", "image_sha256": "abc", "overlay": "", "venv": "/it's a venv"}


# The functions that start.bash calls show what they are given; they themselves need a job.
SHOW = """
temporary_choose() { :; }
job_set() { printf -v "$1" %s "$2"; }
set_rendezvous() { printf 'rendezvous\\0%s\\0' "$1"; }
job_set_shape() { printf 'shape\\0%s\\0' "$1"; }
job_check_previous() { printf 'chain\\0%s\\0' "$*"; }
watch_keep_spares() { printf 'trained_on\\0%s\\0' "$1"; }
watch_run() { printf 'watched\\0yes\\0'; }
run_has_begun() { [[ -n ${LONGSHIP_WATCHED:-} ]]; }
modules_load() { printf 'module\\0%s\\0' "$2"; }
job_label_output() { printf 'apart\\0yes\\0'; }
code_record_begin() { printf 'code %s\\0%s\\0' "${@:3}"; }
run_begin() {
  printf '%s\\0' run "$RUN_DIR" launcher "$LAUNCHER" folder "$STACK_DIR" file "$1"
  printf '%s\\0' root "$LONGSHIP_ROOT" "${@:2}"
}
"""


def facts(**changed):
    return {**slurm_facts(LINE), **changed}


@pytest.fixture
def start(repository, run):
    """Give a function that sources start.bash, with functions that show what they were given."""

    def source(found, folder="/runs/7-train", env=None, arguments=(), watched="", **changed):
        settings, paths = repository.settings_and_paths(env)
        named = {**NAMED, **changed}
        env = Environment(settings, paths, "host", "job", named)
        lines = start_lines(start_of(env, paths.runs / folder, found, arguments), named)
        assert run(["bash", "-n"], input=render("a test", lines)).stderr == ""
        before = f"set -euo pipefail\nLONGSHIP_WATCHED={watched}\n{SHOW}start() {{"
        done = run(["bash", "-c", "\n".join([before, *lines, "}; start"])])
        words = done.stdout.split("\0")[:-1]
        return dict(zip(words[::2], words[1::2]))

    return source


@pytest.fixture
def bash(run, clean_environment, tmp_path):
    """Give a function that runs lines with the functions they use."""

    def run_lines(*lines, env=None, check=True):
        script = tmp_path / "script.sh"
        script.write_text(render("a test", lines))
        environment = {**clean_environment, **(env or {})}
        return run(["bash", script], env=environment, check=check)

    return run_lines


RECORD = {
    "name": "train",
    "partition": "gpu",
    "account": "acc",
    "qos": "normal",
    "nodes": "4",
    "time_limit": "1-00:00:00",
    "machine": "local",
    "log": "/a/log",
}


@pytest.fixture
def runs(repository, tmp_path):
    """Give a function that records a run; `runs.paths` are the repository's."""
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()

    def make(name, arguments=(), record=RECORD, written=0):
        folder = paths.runs / name
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(record, indent=2))
        os.utime(folder / "record.json", (written, written))
        (folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\nstart_job local\n")
        each = (f"{argument}\0" for argument in arguments)
        (folder / "arguments").write_bytes("".join(each).encode(errors="surrogateescape"))
        return folder

    make.paths = paths
    return make
