"""A recorded run is found by its job, and gives back what it was started with."""

import json
import os
import shlex
import sys

import pytest
from support.requests import JOB, RECORD

from extras.rerun.rerun import check_clone, recorded_job
from lib.jobs.runs import check_own, recorded_run
from lib.script.command import assign, call
from lib.script.errors import LongshipError
from lib.script.render import render


def test_run_without_its_configuration_is_told(runs, run, root):
    folder = runs("12-train")
    (folder / "launcher").touch()
    done = run([sys.executable, root / "submit.py", "--dry-run", "rerun", folder], check=False)
    error, hint = done.stderr.splitlines()
    missing = f"{folder}/configuration.json"
    assert error == f"error: the configuration of run 12-train no longer exists: {missing}"
    assert hint.startswith("hint: submit the job with the current settings: python3 submit.py")


def test_run_of_another_clone_is_told(runs, tmp_path):
    here, there = tmp_path / "here", tmp_path / "it's there"
    for clone in (here, there):
        clone.mkdir()
    run = runs("12-train", record={**RECORD, "repository": str(there)})
    with pytest.raises(LongshipError) as error:
        check_clone(run, here)
    assert str(error.value) == f"run 12-train belongs to the clone {there}, not to {here}"
    quoted = shlex.quote(str(there))
    assert error.value.hint == f"cd {quoted} && python3 submit.py rerun 12-train"
    there.rmdir()
    with pytest.raises(LongshipError) as error:
        check_clone(run, here)
    assert error.value.hint.endswith(f"if you moved it, run: ln -s {here} {quoted}")
    there.symlink_to(here)
    check_clone(run, here)


def test_job_is_what_it_was(runs, hostile_arguments):
    job, options, arguments = recorded_job(runs("12-train", hostile_arguments))
    assert arguments == tuple(hostile_arguments)
    assert (job.path.name, job.machine) == ("job.sbatch", "local")
    assert [each.word for each in job.header] == ["--nodes=2"]
    # nobody had asked for the QOS, which every job of the site has
    words = ["--job-name=train", "--partition=gpu", "--account=acc", "--nodes=4"]
    assert [each.word for each in options] == [*words, "--time=1-00:00:00"]


@pytest.mark.parametrize("nothing", ["", "(null)", "N/A"])
def test_what_slurm_does_not_say_is_no_option(nothing, runs):
    record = {"name": "train", "account": nothing, "partition": nothing}
    _, options, arguments = recorded_job(runs("12-train", record=record))
    assert [each.word for each in options] == ["--job-name=train"]
    assert arguments == ()


def test_job_and_partition_may_be_called_normal(runs):
    record = {"name": "normal", "partition": "normal", "qos": "normal"}
    _, options, _ = recorded_job(runs("12-normal", record=record))
    assert [each.word for each in options] == ["--job-name=normal", "--partition=normal"]


def test_record_that_is_not_complete_is_told(runs):
    run = runs("12-train")
    (run / "arguments").unlink()
    with pytest.raises(LongshipError) as error:
        recorded_job(run)
    assert "the record of 12-train is incomplete: No such file" in str(error.value)
    assert "submit.py" in error.value.hint


@pytest.mark.parametrize(("option", "machine"), [([], "local"), (["--machine=jwb"], "jwb")])
def test_machine_and_stack_are_those_of_the_run(option, machine, runs, run, root, tmp_path):
    folder = runs("12-train", record={"machine": "local", "stack": "pytorch"})
    text = 'project.account = "a"\ncontainer.runtime = "host"\n'
    (folder / "launcher").touch()
    values = {"project": {"account": "a"}, "container": {"runtime": "host"}}
    (folder / "configuration.json").write_text(json.dumps(values))
    (tmp_path / "now.toml").write_text(text)
    environ = {**os.environ, "LONGSHIP_MACHINE": "lumi", "LONGSHIP_STACK": "olmo"}
    environ["LONGSHIP_CONFIGURATION"] = str(tmp_path / "now.toml")
    command = [sys.executable, root / "submit.py", *option, "--dry-run", "rerun", folder]
    script = run(command, env=environ).stdout
    assert f"# Longship: submit.py rerun, machine {machine} (" in script
    assert "export LONGSHIP_STACK=pytorch " in script


def test_options_that_are_damaged_are_told(runs):
    run = runs("12-train")
    (run / "options").write_text("--comment='two\n")
    with pytest.raises(LongshipError, match="record of 12-train is damaged: No closing quotation"):
        recorded_job(run)


def test_job_file_is_the_recorded_one_and_none_of_the_folder_at_hand(runs, tmp_path, monkeypatch):
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=9\n")
    monkeypatch.chdir(tmp_path)
    run = runs("7-train")
    job, _, _ = recorded_job(run)
    assert job.path == run / "job.sbatch"
    assert [each.word for each in job.header] == ["--nodes=2"]


def test_run_that_somebody_else_can_change_is_not_started_again(runs, root, run):
    """What lies in its folder is run: the launcher, the job file, the configuration."""
    theirs, own = runs("7-a"), runs("7-b")
    theirs.chmod(0o775)
    own.chmod(0o755)
    assert recorded_run(runs.paths, "7") == own
    check_own(own)
    message = f"other users can write to {theirs}, "
    with pytest.raises(LongshipError, match=message):
        check_own(theirs)
    command = [sys.executable, root / "submit.py", "--dry-run", "rerun", theirs]
    told = run(command, check=False)
    assert told.returncode == 1 and f"error: {message}" in told.stderr


@pytest.mark.parametrize(("cluster", "owner"), [("juwels", "9 juwels"), ("", "9")])
def test_pin_of_a_rerun_names_its_cluster(cluster, owner, run, tmp_path):
    """Or --prune on another cluster, whose Slurm does not know the job, deletes the image."""
    image, folder = tmp_path / "containers/versions/it's one.sif", tmp_path / "7-train"
    folder.mkdir()
    (tmp_path / "containers/pins").mkdir(parents=True)
    record = {"job": "7", "cluster": cluster, "image": str(image), "overlay": ""}
    (folder / "record.json").write_text(json.dumps(record, indent=2))
    lines = ["submitted_ids=(9)", call("rerun_pin", folder)]
    run(["bash", "-c", render("a test", lines)])
    (pin,) = (tmp_path / "containers/pins").iterdir()
    assert pin.read_text() == f"{image}\n{owner}\n{folder}/launcher\n"


def test_options_are_recorded_as_they_were_typed(submit, run, tmp_path, hostile_arguments):
    words = [f"--comment={each}" for each in hostile_arguments]
    (exported,) = [each for each in submit(*words) if "LONGSHIP_JOB_OPTIONS=" in each]
    record = [
        "JOB_ARGUMENTS=()",
        "SLURM_JOB_NODELIST=node1",
        "run_begin ''",
    ]
    lines = [exported, assign("RUN_DIR", tmp_path), *record]
    run(["bash", "-c", render("a test", lines)])
    (tmp_path / "job.sbatch").write_text(JOB)
    _, options, _ = recorded_job(tmp_path)
    assert [each.word for each in options] == ["--account=acc", *words]
