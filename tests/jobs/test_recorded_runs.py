"""A recorded run is found by its job, and nobody else has changed it."""

import os
import subprocess

import pytest
from support.requests import RECORD

from lib.jobs.runs import check_own, check_still_there, image_state, recorded_run
from lib.script.errors import LongshipError


@pytest.mark.parametrize("name", ["12", "12-train", "path"])
def test_run_is_named_by_its_job_or_folder(name, runs):
    other, wanted = runs("121-train"), runs("12-train")
    runs("12_3-train")
    assert recorded_run(runs.paths, str(wanted) if name == "path" else name) == wanted
    assert recorded_run(runs.paths, "121") == other


def test_path_of_a_run_has_a_slash(runs, monkeypatch, tmp_path):
    """A directory that somebody has made where a command is typed is not the run of that name."""
    wanted, other = runs("12_3-train"), tmp_path / "here/12_3-train"
    other.mkdir(parents=True)
    (other / "record.json").write_text("{}")
    monkeypatch.chdir(other.parent)
    for name, run in (("12_3-train", wanted), ("./12_3-train", other), ("12_3-train/", other)):
        assert recorded_run(runs.paths, name) == run
    monkeypatch.chdir(wanted)
    assert recorded_run(runs.paths, "./") == wanted
    for name in (".", "./12_3-train"):
        with pytest.raises(LongshipError, match=f'no run "{name}"'):
            recorded_run(runs.paths, name)


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


def test_unknown_run_is_told(runs):
    (runs.paths.runs / "7-no_record").mkdir(parents=True)
    with pytest.raises(LongshipError) as error:
        recorded_run(runs.paths, "7")
    assert str(error.value) == f'no run "7" in {runs.paths.runs}'
    assert error.value.hint.startswith("list them: python3 submit.py status; or give the path")


def test_run_that_cannot_be_looked_at_is_none(runs, unseen):
    with pytest.raises(LongshipError, match="no run"):
        recorded_run(runs.paths, unseen)


def test_image_that_cannot_be_looked_at_is_gone(runs, unseen):
    run = runs("12-train", record={**RECORD, "image": unseen})
    with pytest.raises(LongshipError, match="the image of run 12-train no longer exists: /x"):
        check_still_there(run)


def test_image_that_was_replaced_is_another(runs, tmp_path):
    """One without a record, which a site or a colleague has made."""
    image = tmp_path / "pytorch.sif"
    image.write_text("one")
    record = {**RECORD, "image": str(image), "image_state": image_state(str(image))}
    run = runs("12-train", record=record)
    for each in ("launcher", "configuration.json"):
        (run / each).touch()
    assert check_still_there(run)["image"] == str(image)
    os.utime(image, (1, 1))  # as what is written against a purge of old files
    message = "the image of run 12-train has another size or time than at its start: /"
    with pytest.raises(LongshipError, match=message) as refused:
        check_still_there(run)
    subprocess.run(refused.value.hint.split("file: ")[1].split(";")[0], shell=True, check=True)
    assert check_still_there(run)["image"] == str(image)
    image.write_text("two, of another size")
    with pytest.raises(LongshipError, match=message) as refused:
        check_still_there(run)
    assert refused.value.hint.startswith("submit the job with the current settings")


@pytest.mark.parametrize("name", ["*", "1*", "[1]", "?"])
def test_pattern_is_no_name(name, runs):
    runs("1-train")
    with pytest.raises(LongshipError, match="no run"):
        recorded_run(runs.paths, name)


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
