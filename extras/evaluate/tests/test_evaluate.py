"""The evaluation of a trained model: its submission with the training, and the export."""

import json
import os
import shlex

import pytest
from support.requests import JOB, TRAIN

from extras.evaluate.job import evaluation_file
from lib.configuration.sites import own_arch
from lib.script.command import call
from lib.script.errors import LongshipError


@pytest.fixture
def evaluation(site):
    """Give the stack that evaluates."""
    site.write("site/evaluate.sbatch", f"{JOB.replace('train', 'evaluate')}run_evaluation.sh\n")
    site.write("site/train.sbatch", f"{JOB}run_training.sh\n")
    for each in ("run_training.sh", "export.sh"):
        site.write(f"stacks/pytorch/{each}", "")
    site.write("stacks/score/stack.toml", 'description = "scores"\n')
    site.write("stacks/score/run_evaluation.sh", "")
    return "score"


def test_evaluation_follows_the_last_training_of_a_chain(calls, site, evaluation):
    first, then, *sent = calls("--account=other", chain=2, agreed=True, then=evaluation)
    assert first[2] == then[2] == "--test-only"  # both before one of them is submitted
    trained, resumed, evaluated = sent
    assert TRAIN in trained and TRAIN in resumed
    assert [words[1] for words in sent] == ["", "102", ""]
    assert {"--dependency=afterok:103", "--kill-on-invalid-dep=yes"} < set(evaluated)
    exported = site.scratch / "runs/103-train/exported"
    assert evaluated[-2:] == ["site/evaluate.sbatch", str(exported)]
    assert "--account=other" in evaluated and "--account=other" in trained
    assert calls.done.stdout == "102\n103\n104\n"
    assert f"results: {exported}/evaluation\n" in calls.done.stderr
    kept = site.scratch / "runs/103-train.then"  # pins.bash reads it
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("104", 0o644)
    kept = (site.scratch / "runs").glob("configurations/*.json")
    assert {json.loads(each.read_text())["stack"] for each in kept} == {"pytorch", "score"}


def test_packages_of_both_stacks_are_looked_for(submit, site, evaluation):
    text = (site.root / "configuration.toml").read_text()
    site.write("configuration.toml", text.replace('requirements = ""', 'requirements = "r.txt"'))
    looked = [each for each in submit(then=evaluation) if each.startswith("venv_check ")]
    venvs = [site.scratch / f"venv_{stack}_{own_arch()}" for stack in ("pytorch", "score")]
    assert looked == [call("venv_check", each, "host") for each in venvs]


def test_evaluation_has_the_runtime_of_its_own_stack(submit, site, evaluation):
    image = site.write("image.sif", "")
    text = (site.root / "configuration.toml").read_text()
    text = text.replace('requirements = ""', 'requirements = "r.txt"')
    text += f'[stacks.score.container]\nruntime = "apptainer"\nimage = {json.dumps(str(image))}\n'
    site.write("configuration.toml", text)
    looked = [each for each in submit(then=evaluation) if each.startswith("venv_check ")]
    bases = {"pytorch": "host", "score": image}
    venvs = {stack: site.scratch / f"venv_{stack}_{own_arch()}" for stack in bases}
    assert looked == [call("venv_check", venvs[each], bases[each]) for each in bases]


def test_training_and_evaluation_are_priced_and_confirmed_together(submit, evaluation):
    lines = submit("--nodes=2", then=evaluation)
    (note,) = [line for line in lines if line.startswith("note ")]
    assert "at most 96.0 core-hours; then evaluate: " in note
    assert note.endswith("; together at most 144.0 core-hours'")
    reason = "the cost of at most 144.0 core-hours is above jobs.ask_above"
    assert f"cost_confirm '{reason}'" in lines


def test_each_of_both_has_its_own_row_in_json(calls, evaluation):
    calls(agreed=True, then=evaluation, as_json=True)
    rows = json.loads(calls.done.stdout)
    assert [os.path.basename(each["log"]) for each in rows] == ["102-train.log", "103-evaluate.log"]


def test_evaluation_of_a_rerun_is_refused(submit, evaluation):
    """The configuration of a run is that of its stack alone."""
    with pytest.raises(LongshipError, match="--then cannot be used with a re-run") as error:
        submit(then=evaluation, again="/runs/7-train")
    assert "SITE/JOB.sbatch --after JOB" in error.value.hint


def test_evaluation_of_an_array_is_refused(submit, evaluation):
    with pytest.raises(LongshipError, match="--then cannot be used with job arrays"):
        submit("--array=0-3", then=evaluation)


def test_site_without_an_evaluation_is_told(site):
    with pytest.raises(LongshipError) as error:
        evaluation_file(site.root, site.settings(machine="m").machine)
    assert str(error.value) == "no job script in site starts run_evaluation.sh on m"
    assert "copy local/run_evaluation_local.sbatch to site/" in error.value.hint


START = """\
[[ $LONGSHIP_WATCHED == %s ]]
export RUN_DIR=%s
LAUNCHER=%s STACK_DIR='/a stack' CONTAINER_OPTIONS=(%s)
"""


LAUNCHER = """\
#!/bin/bash
echo "launched in ${RUN_DIR##*/} by ${STARTED_BY:-the job}"
printf '%s\\n' "$@"
"""


@pytest.fixture
def trained(tmp_path):
    """Give a function that makes the directory of a training run with results and a launcher."""

    def make(container_options=""):
        run = tmp_path / "it's runs/7-train"
        run.mkdir(parents=True)
        (tmp_path / "gpt").mkdir()
        (run / "outputs").symlink_to(tmp_path / "gpt")
        (run / "launcher").write_text(LAUNCHER)
        (run / "launcher").chmod(0o755)
        paths = [shlex.quote(str(each)) for each in (run, run, run / "launcher")]
        (run / "start.bash").write_text(START % (*paths, container_options))
        return run

    return make


def export(bash, run, **options):
    own = shlex.quote(str(run.with_name("8-evaluate")))
    return bash(
        f"RUN_DIR={own}",
        "CONTAINER_OPTIONS=()",
        call("evaluation_export", run / "exported"),
        **options,
    )


def test_checkpoint_is_exported_with_launcher_and_stack_of_its_run(bash, trained, tmp_path):
    run = trained()
    done = export(bash, run)
    assert (run / "exported").readlink() == tmp_path / "gpt"  # the last line of the export
    assert f"exporting the newest checkpoint of {run}" in done.stderr and not done.stdout
    assert not export(bash, run).stderr  # once


def test_export_in_a_container_of_srun_has_the_options_of_its_run(
    bash, trained, tmp_path, clean_environment
):
    run, programs = trained("--container-image=/training.sqsh"), tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(
        '#!/bin/bash\n[[ $3 == --container-image=/training.sqsh ]] && shift 3 && "$@"\n'
    )
    (programs / "srun").chmod(0o755)
    export(bash, run, env={"PATH": f"{programs}:{clean_environment['PATH']}"})
    assert (run / "exported").exists()


def test_export_of_then_is_of_the_run_of_its_cluster(bash, trained, tmp_path):
    """JUWELS and JURECA share their file systems, and can have jobs of one ID."""
    run = trained()
    own = run.rename(f"{run}.2")
    (own / "start.bash").write_text(
        (own / "start.bash").read_text().replace("7-train", "7-train.2")
    )
    for each, cluster in ((run, "jureca"), (own, "juwels")):
        each.mkdir(exist_ok=True)
        (each / "record.json").write_text(json.dumps({"cluster": cluster, "job": "7"}, indent=2))
    lines = [
        "SLURM_CLUSTER_NAME=juwels",
        "JOB_ARGUMENTS=(MODEL 'a b')",
        f"RUN_DIR={shlex.quote(str(run.with_name('8-evaluate')))}",
    ]
    show = "printf '%s\\n' \"${JOB_ARGUMENTS[@]}\""
    done = bash(*lines, "CONTAINER_OPTIONS=()", call("evaluation_export", run / "exported"), show)
    assert done.stdout == f"{own}/exported\na b\n"
    assert (own / "exported").readlink() == tmp_path / "gpt" and not (run / "exported").exists()


@pytest.mark.parametrize("what", ["results", "owner", "launcher"])
def test_run_without_a_model_is_told(what, bash, trained):
    run = trained()
    if what == "results":
        (run / "outputs").unlink()
    elif what == "owner":
        run.chmod(0o777)
    else:
        (run / "launcher").write_text("#!/bin/sh\necho 'error: no checkpoint' >&2\nexit 1\n")
    done = export(bash, run, check=False)
    message = "no checkpoint of 7-train was" if what == "launcher" else "7-train has no results"
    assert done.returncode == 1 and f"error: {message}" in done.stderr
    assert not (run / "exported").exists()


def test_model_of_another_place_is_left_alone(bash, tmp_path):
    assert not bash(f"RUN_DIR={tmp_path}/8-a", call("evaluation_export", "lab/model")).stderr
