"""A recorded run is found by its job, and gives back what it was started with."""

import json
import os
import shlex
import sys

import pytest

from lib.jobs.rerun import check_clone, recorded_job
from lib.jobs.runs import check_own, check_still_there, recorded_run
from lib.script.errors import LongshipError

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
        (folder / "record.json").write_text(json.dumps(record))
        os.utime(folder / "record.json", (written, written))
        (folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\nstart_job local\n")
        each = (f"{argument}\0" for argument in arguments)
        (folder / "arguments").write_bytes("".join(each).encode(errors="surrogateescape"))
        return folder

    make.paths = paths
    return make


@pytest.mark.parametrize("name", ["12", "12-train", "path"])
def test_run_is_named_by_its_job_or_folder(name, runs):
    other, wanted = runs("121-train"), runs("12-train")
    runs("12_3-train")
    assert recorded_run(runs.paths, str(wanted) if name == "path" else name) == wanted
    assert recorded_run(runs.paths, "121") == other


def test_run_is_named_from_the_folder_at_hand(runs, monkeypatch):
    wanted = runs("12_3-train")
    monkeypatch.chdir(runs.paths.runs)
    assert recorded_run(runs.paths, "12_3-train/") == wanted
    monkeypatch.chdir(wanted)
    assert recorded_run(runs.paths, ".") == wanted


def test_array_is_named_by_its_id_if_it_has_one_task(runs):
    first = runs("12_3-train")
    assert recorded_run(runs.paths, "12") == first
    runs("12_4-train")
    with pytest.raises(LongshipError) as error:
        recorded_run(runs.paths, "12")
    assert str(error.value) == '2 runs are named "12": 12_3-train, 12_4-train'
    assert error.value.hint.endswith("rerun 12_4-train")


def test_run_is_named_by_the_name_of_its_job_if_only_one_has_it(runs):
    first = runs("12-train-it")
    assert recorded_run(runs.paths, "train-it") == first
    runs("13-train-it"), runs("12-train-it.2")
    for name, newest in (("train-it", "13-train-it"), ("12", "12-train-it.2")):
        with pytest.raises(LongshipError) as error:
            recorded_run(runs.paths, name)
        assert str(error.value) == f'2 runs are named "{name}": 12-train-it, {newest}'
        assert error.value.hint == f"name one of them: python3 submit.py rerun {newest}"


def test_run_without_its_configuration_is_told(runs, run, root):
    folder = runs("12-train")
    (folder / "launcher").touch()
    done = run([sys.executable, root / "submit.py", "--dry-run", "rerun", folder], check=False)
    error, hint = done.stderr.splitlines()
    missing = f"{folder}/configuration.json"
    assert error == f"error: the configuration of run 12-train no longer exists: {missing}"
    assert hint.startswith("hint: submit the job with the current settings: python3 submit.py")


def test_unknown_run_is_told_with_the_newest(runs):
    with pytest.raises(LongshipError) as error:
        recorded_run(runs.paths, "7")
    assert error.value.hint.startswith("there are no runs yet; submit a job: python3 submit.py")
    for number in range(1, 7):
        runs(f"{number}-train", written=number)
    (runs.paths.runs / "7-no_record").mkdir()
    with pytest.raises(LongshipError) as error:
        recorded_run(runs.paths, "7")
    assert str(error.value) == f'no run "7" in {runs.paths.runs}'
    assert error.value.hint == "newest runs: 6-train, 5-train, 4-train, 3-train, 2-train"


def test_run_that_cannot_be_looked_at_is_none(runs, unseen):
    with pytest.raises(LongshipError, match="no run"):
        recorded_run(runs.paths, unseen)


def test_image_that_cannot_be_looked_at_is_gone(runs, unseen):
    run = runs("12-train", record={**RECORD, "image": unseen})
    with pytest.raises(LongshipError, match="the image of run 12-train no longer exists: /x"):
        check_still_there(run)


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


@pytest.mark.parametrize("name", ["*", "1*", "[1]", "?"])
def test_pattern_is_no_name(name, runs):
    runs("1-train")
    with pytest.raises(LongshipError, match="no run"):
        recorded_run(runs.paths, name)


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
    assert "export LONGSHIP_STACK=pytorch\n" in script


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


@pytest.mark.parametrize(
    "name", ["record.json", "launcher", "repositories", "repositories/a.commit"]
)
def test_file_of_a_run_that_somebody_else_can_change_stops_it(name, runs):
    own = runs("7-a")
    (own / "repositories").mkdir(exist_ok=True)
    file = own / name
    if not file.exists():
        file.write_text("x")
    file.chmod(0o775)
    with pytest.raises(LongshipError, match=f"other users can write to {file}, ") as raised:
        check_own(own)
    assert raised.value.hint.startswith("they may have changed the run: submit the job again: ")


def test_files_that_a_program_wrote_into_a_run_do_not_stop_it(runs):
    """With umask 002: nothing of a re-run reads W&B's directory."""
    own = runs("7-a")
    (own / "wandb").mkdir()
    (own / "wandb").chmod(0o775)
    check_own(own)
