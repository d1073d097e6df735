"""Hydra itself composes our overrides and our templates of the launcher's configuration."""

import json
import shutil
from pathlib import Path

import pytest
from support import cache, processes
from support.stacks import start

ROOT = Path(__file__).resolve().parents[2]
STACK = ROOT / "stacks/nemo"
HYDRA = ["hydra-core==1.3.2", "omegaconf==2.3.0"]  # NeMo 2.1.0, of the image, wants this one


@pytest.fixture(scope="module")
def python(session_environment):
    """Give a Python with Hydra."""

    def build(partial):
        processes.run(["python3", "-m", "venv", partial], env=session_environment)
        install = [partial / "bin/python", "-m", "pip", "install", "--quiet", *HYDRA]
        processes.run(install, env=session_environment)

    return cache.cached(f"hydra-{cache.fingerprint(HYDRA)}", build) / "bin/python"


@pytest.fixture
def conf(tmp_path):
    """Give a folder like the launcher's: our templates, and models that have the listed keys."""
    folder = tmp_path / "it's a conf"
    environment = {
        **{"PATH": "/usr/bin:/bin", "LONGSHIP_ROOT": str(ROOT)},
        **{"LONGSHIP_SCRATCH_DIR": "/fsx/a: # b", "LONGSHIP_CHECKPOINT_DIR": "/fsx/a: # c"},
        **{"TRAINING_RESULTS": "results", "HF_HOME": "/fsx/a: # b/hub"},
    }
    for name in ("config.yaml", "cluster/bcm.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        fill = 'source "$LONGSHIP_ROOT/lib/inside/template.bash"; fill_template "$1" "$2"'
        files = [STACK / "templates" / name, folder / name]
        processes.run(["bash", "-euc", fill, "fill", *files], env=environment)
    keys = {}
    for flag in (ROOT / "tests/flags/nemo.txt").read_text(encoding="utf-8").split():
        where = keys
        first, *names = flag.split(".")
        if first == "training" and names:
            for each in names[:-1]:
                where = where.setdefault(each, {})
            where[names[-1]] = None
    keys["run"]["results_dir"] = "${base_results_dir}/${.name}"
    keys["model"]["ffn_hidden_size"] = "${multiply:4, 3}"
    for model in ("126m", "5b"):
        file = folder / f"training/gpt3/{model}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(keys))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def compose(python, conf, tmp_path, run):
    """Give a function that composes with overrides and returns file and text of what is written."""

    def composed(overrides, **options):
        folder = tmp_path / "results"
        command = [python, STACK / "compose.py", conf, folder, "model", *overrides]
        done = run(command, **options)
        return done, folder

    return composed


def test_what_run_training_passes(compose, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    settings = (
        '[training]\ndata = ["0.3", "/data/it\'s, a=b", "0.7", "/data/b"]\nmicro_batch = 1\n'
        "validation_interval = 5\ntensor_parallel = 2\npipeline_parallel = 2\nglobal_batch = 64\n"
    )
    _, calls = start(ROOT, "nemo", "aws", other, configuration=settings)
    _, folder = compose(calls[0][1][4:])
    text = (folder / "model_hydra.yaml").read_text()
    assert "- /data/it's, a=b\n" in text and "tensor_model_parallel_size: 2\n" in text
    assert "ffn_hidden_size: 12\n" in text and "$" not in text


@pytest.mark.parametrize("model", ["gpt3/126m", "gpt3/5b"])
def test_presets_of_the_launcher(model, compose):
    lines = [
        line
        for name in ("common", model)
        for line in (STACK / f"presets/{name}.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    own = ["container=/fsx/it.sqsh", "training.run.dependency=null", "training.run.name=x"]
    _, folder = compose([*lines, *own])
    text = (folder / "model_hydra.yaml").read_text()
    assert "num_nodes: 2\n" in text and "data_impl: mock\n" in text
    assert "results_dir: '/fsx/a: # c/results/x'\n" in text


def test_record_lies_beside_it(compose, tmp_path):
    job = tmp_path / "12-train"
    job.mkdir()
    (job / "job.sbatch").write_text("#!/bin/bash\n")
    environment = {"SLURM_JOB_ID": "12", "RUN_DIR": str(job), "SLURM_NODEID": "0"}
    _, folder = compose(["training=gpt3/5b"], env=environment)
    names = {"launcher.log", "launcher_cmd.log", "log-model_12.out", "model_hydra.yaml"}
    assert {each.name for each in folder.iterdir()} == {*names, "model_submission.sh"}
    assert (folder / "log-model_12.out").readlink() == Path(f"{job}.log")
    assert "training=gpt3/5b" in (folder / "launcher_cmd.log").read_text()


def test_other_nodes_write_the_configuration_alone(compose):
    _, folder = compose([], env={"SLURM_JOB_ID": "12", "SLURM_NODEID": "1"})
    assert [each.name for each in folder.iterdir()] == ["model_hydra.yaml"]


def test_unknown_key_is_told_in_two_lines(compose):
    done, folder = compose(["training.model.nope=1"], check=False)
    error, hint = done.stderr.splitlines()
    assert done.returncode == 1 and not folder.exists()
    assert error.startswith("error: ") and "training.model.nope" in error
    assert hint.startswith("hint: ")
