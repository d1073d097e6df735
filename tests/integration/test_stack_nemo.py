"""Hydra itself composes our overrides and our templates of the launcher's configuration."""

import shutil
from pathlib import Path

import pytest
from support import cache, processes
from support.repository import toml
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
    """Give a folder with the launcher's own configuration: the excerpt in tests/nemo_launcher."""
    folder = tmp_path / "it's a conf"
    shutil.copytree(ROOT / "tests/nemo_launcher/conf", folder)
    return folder


@pytest.fixture
def filled_conf(conf):
    """Give the launcher's configuration with our templates in place of its own files."""
    environment = {
        **{"PATH": "/usr/bin:/bin", "LONGSHIP_ROOT": str(ROOT)},
        **{"LONGSHIP_SCRATCH_DIR": "/fsx/a: # b", "LONGSHIP_CHECKPOINT_DIR": "/fsx/a: # c"},
        **{"TRAINING_RESULTS": "results", "HF_HOME": "/fsx/a: # b/hub"},
    }
    for name in ("config.yaml", "cluster/bcm.yaml"):
        fill = 'source "$LONGSHIP_ROOT/lib/jobs/inside/template.bash"; fill_template "$1" "$2"'
        files = [STACK / "templates" / name, conf / name]
        processes.run(["bash", "-euc", fill, "fill", *files], env=environment)
    return conf


@pytest.fixture
def compose(python, conf, run):
    """Give a function that composes with overrides and returns the file and the process."""

    def composed(overrides, **options):
        done = run([python, STACK / "compose.py", conf, *overrides], **options)
        return Path(done.stdout.strip()), done

    return composed


@pytest.fixture
def compose_job(compose, tmp_path):
    """Give a function that composes what run_training.sh passes, into a folder of the test's."""

    def composed(arguments=(), configuration=""):
        folder = tmp_path / "start"
        folder.mkdir()
        checkpoints = f"[paths]\ncheckpoint_dir = {toml(tmp_path / 'checkpoints')}\n"
        options = {"configuration": checkpoints + configuration}
        _, calls = start(ROOT, "nemo", "aws", folder, arguments, **options)
        return compose(calls[0][1][2:])[0]

    return composed


def test_what_run_training_passes(compose_job):
    file = compose_job(
        configuration='[training]\ndata = ["0.3", "/data/it\'s, a=b", "0.7", "/data/b"]\n'
        "validation_interval = 5\ntensor_parallel = 2\npipeline_parallel = 2\n"
        "micro_batch = 1\nglobal_batch = 64\n"
    )
    text = file.read_text()
    assert "- /data/it's, a=b\n" in text and "tensor_model_parallel_size: 2\n" in text
    assert "ffn_hidden_size: 3072\n" in text and "$" not in text


@pytest.mark.parametrize(
    ("arguments", "name", "layers"),
    [
        ([], "gpt3_126m", 12),
        (["gpt3/5b"], "gpt3_5b", 24),
        (["training=gpt3/5b"], "gpt3_5b", 24),
        (["stages=[training]", "training=gpt3/5b", "training.run.name=mine"], "mine", 24),
    ],
)
def test_names_follow_from_the_composed_configuration(
    arguments, name, layers, compose_job, tmp_path
):
    file = compose_job(arguments)
    assert file == tmp_path / f"checkpoints/results/{name}/{name}_hydra.yaml"
    text = file.read_text()
    assert f"num_layers: {layers}\n" in text
    assert f"explicit_log_dir: {file.parent}/results\n" in text
    assert [each.name for each in file.parent.parent.iterdir()] == [name]


def test_model_without_files_of_a_vocabulary_is_composed_and_resumed(compose_job):
    arguments = ["training=llama/llama3_1_8b", "training.model.tokenizer.type=lab/llama"]
    options = "validation_interval = 5\nmicro_batch = 1\nglobal_batch = 64\n"
    file = compose_job(arguments, f"[training]\n{options}")
    text = file.read_text()
    assert file.name == "llama3_1_8b_hydra.yaml" and "type: lab/llama\n" in text
    assert "resume_if_exists: true\n" in text


def test_results_go_where_the_launchers_grammar_says(compose_job, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    file = compose_job(["training=gpt3/5b", f"base_results_dir={elsewhere}"])
    assert file == elsewhere / "gpt3_5b/gpt3_5b_hydra.yaml"


@pytest.mark.parametrize("model", ["gpt3/126m", "gpt3/5b"])
def test_presets_of_the_launcher(model, filled_conf, compose, tmp_path):
    lines = [
        line
        for name in ("common", model)
        for line in (STACK / f"presets/{name}.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    own = ["container=/fsx/it.sqsh", "training.run.dependency=null", "cluster.gres=gpu:8"]
    file, _ = compose([*lines, *own, f"training.run.results_dir={tmp_path}"])
    text = file.read_text()
    assert file.name == f"{model.replace('/', '_')}_hydra.yaml"
    assert "num_nodes: 2\n" in text and "data_impl: mock\n" in text


def test_templates_lead_to_the_checkpoint_folder(filled_conf, python, run):
    program = "import sys, compose; print(compose.compose_launcher(sys.argv[1], []))"
    config = run([python, "-c", program, filled_conf], cwd=STACK).stdout
    assert "'results_dir': '/fsx/a: # c/results/gpt3_126m'" in config


def test_record_lies_beside_it(compose, tmp_path):
    job = tmp_path / "12-train"
    job.mkdir()
    (job / "job.sbatch").write_text("#!/bin/bash\n")
    environment = {"SLURM_JOB_ID": "12", "RUN_DIR": str(job), "SLURM_NODEID": "0"}
    overrides = ["training=gpt3/5b", f"launcher_scripts_path={tmp_path}"]
    folder = compose(overrides, env=environment)[0].parent
    assert folder == tmp_path / "results/gpt3_5b"
    names = {"launcher.log", "launcher_cmd.log", "gpt3_5b_hydra.yaml"}
    names |= {"nemo-megatron-gpt3_5b_submission.sh", "log-nemo-megatron-gpt3_5b_12.out"}
    assert {each.name for each in folder.iterdir()} == names
    assert (folder / "log-nemo-megatron-gpt3_5b_12.out").readlink() == Path(f"{job}.log")
    assert "training=gpt3/5b" in (folder / "launcher_cmd.log").read_text()


def test_other_nodes_write_the_configuration_alone(compose, tmp_path):
    environment = {"SLURM_JOB_ID": "12", "SLURM_NODEID": "1"}
    file, _ = compose([f"launcher_scripts_path={tmp_path}"], env=environment)
    assert list(file.parent.iterdir()) == [file]


def test_unknown_key_is_told_in_two_lines(compose, tmp_path):
    overrides = [f"launcher_scripts_path={tmp_path}", "training.model.nope=1"]
    _, done = compose(overrides, check=False)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "") and not (tmp_path / "results").exists()
    assert error.startswith("error: ") and "training.model.nope" in error
    assert hint.startswith("hint: ")
