"""The start of a job: what Slurm says of it, and the script that its job file sources."""

import os
import stat

import pytest
from support.requests import LINE, facts

from lib.configuration.sites import load_machines
from lib.jobs.size import (
    gpus_per_node,
    processes_per_node,
    run_name,
    size_of_facts,
    slurm_facts,
)
from lib.jobs.start import make_run_directory
from lib.script.errors import LongshipError


def test_real_line_is_read():
    found = facts()
    assert (found["JobId"], found["JobName"]) == ("12", "my job/of mine")
    assert (found["NodeList"], found["NumCPUs"], found["TimeLimit"]) == (
        "node[1-2]",
        "48",
        "00:30:00",
    )
    assert found["TRES"] == "cpu=48,mem=220G,node=2,billing=48"
    assert (found["WorkDir"], found["Power"]) == ("/home/me/a b", "")
    assert found["StdOut"] == "/home/me/a b/12_1.log"
    assert (found["AllocNode:Sid"], found["CPUs/Task"]) == ("login1:16719", "12")
    assert found["TresPerNode"] == "gres:gpu:4"


def test_array_that_slurm_tells_whole_begins_with_the_job_asked_for():
    other = LINE.replace("JobId=12 Array", "JobId=13 Array").replace("TaskId=1", "TaskId=0")
    found = slurm_facts(LINE + other)
    assert (found["JobId"], found["ArrayTaskId"], found["TresPerNode"]) == ("12", "1", "gres:gpu:4")


def test_arguments_of_a_job_are_no_facts():
    arguments = "--comment x StdOut=/elsewhere WorkDir=/none\nJobName=other Partition=none\n"
    found = slurm_facts(LINE.replace(" WorkDir=", f" {arguments} WorkDir="))
    real = facts()
    assert {name: found[name] for name in ("JobName", "Partition", "WorkDir")} == {
        name: real[name] for name in ("JobName", "Partition", "WorkDir")
    }
    assert found.get("StdOut") == real.get("StdOut")


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error: Invalid job id specified\n"])
def test_what_is_no_job_is_told(text):
    with pytest.raises(LongshipError, match="is not a job") as error:
        slurm_facts(text)
    assert "submit.py SITE/JOB.sbatch" in error.value.hint


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "7-train"),
        ({"ArrayJobId": "12", "ArrayTaskId": "3"}, "12_3-train"),
        ({"JobName": "my job/of mine"}, "7-my_job_of_mine"),
        ({"JobName": "../../x"}, "7-.._.._x"),
        ({"JobName": "a.b-c_d+e1"}, "7-a.b-c_d+e1"),
        ({"JobName": "x\n;$(touch y)'\""}, "7-x____touch_y___"),
        ({"JobName": ""}, "7-"),
        ({"JobName": "x" * 250}, f"7-{'x' * 200}"),
        ({"JobName": "ø" * 250}, f"7-{'ø' * 100}"),
    ],
)
def test_name_of_a_run_is_one_folders(changed, name):
    assert run_name({"JobId": "7", "JobName": "train", **changed}) == name


def test_size_is_what_the_job_has():
    found = size_of_facts(facts(), "4")
    assert (found.nodes, found.cores, found.gpus, found.memory) == (2, 48, 8, 220)
    assert (found.partition, found.account, found.constraint) == ("gpu", "acc", "fat")
    assert (found.hours, found.jobs) == (0.5, 1)


@pytest.mark.parametrize(
    ("tres", "gigabytes"), [("mem=512M", 0.5), ("cpu=1,mem=1.5T,node=1", 1536), ("cpu=1", 0)]
)
def test_memory_is_read_in_gigabytes(tres, gigabytes):
    assert size_of_facts(facts(TRES=tres), "").memory == gigabytes


def test_what_slurm_does_not_count_is_nothing():
    changed = {"Features": "(null)", "NumNodes": "1-1", "TimeLimit": "UNLIMITED"}
    found = size_of_facts(facts(**changed, TresPerNode=""), "")
    assert (found.constraint, found.nodes, found.gpus) == ("", 1, 0)
    without = {name: value for name, value in facts().items() if name not in ("TRES", "NumTasks")}
    assert size_of_facts(without, "").memory == 0


@pytest.mark.parametrize(
    ("changed", "on_node", "gpus"),
    [
        ({}, "2", 2),  # what the batch script knows beats all
        ({"TresPerNode": "gres:gpu:a100:4"}, "", 4),
        ({"TresPerNode": "gres/gpu=8"}, "", 8),
        ({"TresPerNode": "gres:gpu:a100:2,gres:gpu:v100:2"}, "", 4),
        ({"TresPerNode": "", "TRES": "gres/gpu=4,gres/gpu:a100=4,gres/gpumem=9"}, "", 2),
        ({"TresPerNode": "", "TresPerJob": "gres:gpu:16"}, "", 8),  # Berzelius: --gpus, salloc
        ({"TresPerNode": "", "TresPerTask": "gres/gpu:1"}, "", 2),
        ({"TresPerNode": "", "TRES": "cpu=48,node=2,gres/gpu=4"}, "", 2),
        ({"TresPerNode": "", "AllocTRES": "cpu=4,gres/gpu=6", "TRES": "x"}, "", 3),
        ({"TresPerNode": ""}, "", 0),
    ],
)
def test_gpus_of_a_node_are_counted_whatever_slurm_says_of_them(changed, on_node, gpus):
    assert gpus_per_node(facts(**changed), on_node) == gpus


def test_processes_are_those_of_the_gpus(repository):
    text = "gpus_per_node = 4\npartitions.cpu = { gpus_per_node = 0 }\n"
    repository.write("site/site.toml", f"[machines.m]\n{text}[machines.bare]\n")
    machines = load_machines(repository.root)
    without = facts(TresPerNode="")
    assert processes_per_node(facts(), "", machines["m"]) == 4
    assert processes_per_node(without, "", machines["m"]) == 4  # the whole node
    assert processes_per_node({**without, "Partition": "cpu"}, "", machines["m"]) == 1
    assert processes_per_node(without, "", machines["bare"]) == 1


def test_name_with_facts_in_it_is_a_name():
    name = "a Command=b NumNodes=9 c"
    line = LINE.replace("JobName=my job/of mine ", f"JobName={name} ")
    found = slurm_facts(line, name)
    assert (found["JobName"], found["NumNodes"]) == (name, "2")
    assert found["StdOut"] == facts()["StdOut"]


def test_start_says_what_the_job_is(start, repository):
    found = start(facts())
    assert (found["run"], found["launcher"]) == ("/runs/7-train", "/runs/7-train/launcher")
    assert found["root"] == str(repository.root)
    assert found["folder"] == f"{repository.root}/stacks/pytorch"
    assert found["file"] == found["log"] == "/home/me/a b/12_1.log"
    assert (found["job"], found["name"], found["machine"]) == ("12_1", "my job/of mine", "local")
    assert (found["image"], found["image_sha256"]) == ("/i.sif", "abc")
    assert found["venv"] == "/it's a venv"
    assert (found["partition"], found["account"], found["nodes"]) == ("gpu", "acc", "2")
    assert (found["submitted"], found["restarts"]) == ("2026-01-02T03:04:05", "2")
    assert (found["rendezvous"], found["shape"], found["apart"]) == ("{node}", "4", "yes")
    assert found["code longship"] == str(repository.root)


def test_what_is_not_known_is_not_said(start):
    found = start(facts())
    unknown = {"overlay", "qos", "goes_on_from", "run_again", "cost_per_hour", "cost_unit"}
    assert not unknown & found.keys()
    assert not {"chain", "module"} & found.keys()


def test_site_says_how_nodes_meet_and_what_they_cost(start, repository):
    repository.write(
        "local/site.toml",
        '[machines.local]\ngpus_per_node = 4\nrendezvous = "{node}i"\nmodules = ["load it\'s"]\n'
        'price = { gpu = 1.5, unit = "GPU-hours" }\n',
    )
    repository.write("configuration.toml", '[[repositories]]\nurl = "https://x.org/one.git"\n')
    found = start(facts(), env={"SLURM_GPUS_ON_NODE": "4", "LONGSHIP_JOB_RESUMES": "11"})
    assert (found["rendezvous"], found["shape"]) == ("{node}i", "4")
    assert (found["gpus"], found["cost_per_hour"], found["cost_unit"]) == ("8", "12", "GPU-hours")
    assert (found["chain"], found["goes_on_from"]) == ("11  ", "11")
    assert found["module"] == "load it's"
    assert found["code one"] == "/home/me/longship-data/project/repos/one"


STEPS = "0: training from the beginning to step 90\n0: step 1/90\n1: step 2/90\n"


@pytest.mark.parametrize(
    ("logs", "steps"),
    [
        ({"11": STEPS}, "2 "),
        ({"11": STEPS, "10": "step 30/90\nlongship: run /r\nstep 3/90\n"}, "2 30"),  # requeued
        ({"11": f"{STEPS}longship: run /r\nTraceback\n", "10": STEPS}, "2 2"),
        ({"11": "step 900/9999\nEvaluating: step 3/50\n"}, "900 "),
        ({"11": "{\"loss\": 1.2, 'step': 400}\nglobal_step=401"}, "401 "),
        ({"11": "slurmstepd: error: *** STEP 11.0 ON n1 CANCELLED\ntime per step 0.5 s\n"}, " "),
        ({"11": "training from /c/step-00000030.pt to step 90"}, "30 "),  # train.py
        ({"11": " iteration      130/   20000 | consumed samples: 9"}, "130 "),  # Megatron-LM
        ({"11": "\x1b[31mstep: 10  \x1b[32mloss:  8.0"}, "10 "),  # TorchTitan
        ({"11": "[step=7/100,epoch=1]\r\n"}, "7 "),  # OLMo-core
        ({"11": "training from /c/checkpoint-50 on 4 x cuda"}, "50 "),  # TRL
        ({"11": "2: [rank 3] iteration 197/200 | loss\rTrain step 198 of 200"}, "198 "),
        ({"11": STEPS + "9" * 99 + "x" * (1 << 25)}, " "),  # only its end is read
        ({}, " "),
    ],
)
def test_chain_knows_how_far_its_jobs_came(logs, steps, start, runs, tmp_path):
    for job, text in logs.items():
        (tmp_path / job).write_text(text)
        record = {"log": str(tmp_path / job), "goes_on_from": str(int(job) - 1)}
        runs(f"{job}-train", record=record)
    (tmp_path / "other").write_text("step 99\n")  # of the same number, on another cluster
    runs("11-other", record={"log": str(tmp_path / "other"), "cluster": "another"})
    assert start(facts(), env={"LONGSHIP_JOB_RESUMES": "11"})["chain"] == f"11 {steps}"


def test_interactive_job_has_no_log_and_its_ranks_are_not_told_apart(start):
    found = start(facts(BatchFlag="0"))
    assert found["file"] == "" and "apart" not in found


def test_log_with_the_name_of_the_node_is_found(start):
    found = start(facts(StdOut="/l/%N-12.log", StdErr="/l/%N-12.log", BatchHost="node1"))
    assert found["file"] == found["log"] == "/l/node1-12.log"


def test_errors_in_another_file_tell_why_the_job_ended(start):
    found = start(facts(StdErr="/home/me/a b/12_1.err"))
    assert (found["file"], found["log"]) == ("/home/me/a b/12_1.err", "/home/me/a b/12_1.log")


@pytest.mark.parametrize("is_batch", ["0", "1"])
def test_run_does_not_begin_again_when_a_model_is_exported_from_it(is_batch, start):
    found = start(facts(BatchFlag=is_batch), watched="/runs/7-train")
    assert found["shape"] == "4" and "run" not in found


@pytest.mark.extras("rerun")
def test_hostile_texts_are_read_back(start, hostile_arguments):
    for text in filter(None, hostile_arguments):
        found = start(facts(JobName=text), venv=text, env={"LONGSHIP_JOB_RERUN": text})
        assert (found["name"], found["venv"], found["run_again"]) == (text, text, text)


def test_run_has_a_folder_of_its_own_and_keeps_it_when_requeued(repository, tmp_path):
    """JUWELS and JURECA share a scratch folder, and have jobs of the same id and name."""
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()
    made = []
    for cluster in ("juwels", "jureca", "juwels"):  # the last one after Slurm counted anew
        folder = make_run_directory(paths, facts(), cluster, restarted=False)
        (folder / "record.json").write_text(f'{{\n  "cluster": "{cluster}"\n}}\n')
        made.append(folder)
    assert [each.name.partition(".")[2] for each in made] == ["", "2", "3"]
    assert make_run_directory(paths, facts(), "jureca", restarted=True) == made[1]
    assert make_run_directory(paths, facts(), "juwels", restarted=True) == made[2]
    assert make_run_directory(paths, facts(), "other", restarted=True).name.endswith(".4")


@pytest.mark.parametrize("planted", ["writable", "link"])
def test_folder_that_somebody_else_can_write_to_is_no_runs(planted, repository, tmp_path):
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()
    folder = paths.runs / run_name(facts())
    (tmp_path / "theirs").mkdir()
    paths.runs.mkdir(parents=True)
    if planted == "link":
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir()
        (folder / "record.json").write_text('{\n  "cluster": "c"\n}\n')
        folder.chmod(0o777)
    before = os.umask(0)
    try:
        made = make_run_directory(paths, facts(), "c", restarted=True)
    finally:
        os.umask(before)
    assert made == folder.with_name(f"{folder.name}.2")
    assert stat.S_IMODE(made.stat().st_mode) == 0o755


def test_runs_that_others_can_write_to_are_refused(repository, tmp_path):
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()
    paths.runs.mkdir(parents=True)
    paths.runs.chmod(0o770)
    with pytest.raises(LongshipError, match=f"other users can write to {paths.runs}, "):
        make_run_directory(paths, facts(), "c", restarted=False)
    paths.runs.chmod(0o700)
    run = make_run_directory(paths, facts(), "c", restarted=False)
    assert stat.S_IMODE(run.stat().st_mode) == 0o755


def test_run_directory_that_cannot_be_made_is_named(repository, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()
    paths.runs.mkdir(parents=True, mode=0o500)
    with pytest.raises(LongshipError) as caught:
        make_run_directory(paths, facts(), "c", restarted=False)
    directory = paths.runs / run_name(facts())
    assert str(caught.value) == f"cannot create the directory {directory}: Permission denied"
    assert caught.value.hint == "make it writable, or set paths.scratch_dir in configuration.toml"
