"""The stack nemo: what it is pinned to, what it starts, and the launcher of AWS's guide."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.stacks import refusal, start

from lib.configuration.stacks import load_stack

ROOT = Path(__file__).resolve().parents[1]
STACK = ROOT / "stacks/nemo"
FLAGS = (ROOT / "tests/flags/nemo.txt").read_text(encoding="utf-8").split()
ALL = """
[training]
data = ["0.3", "/data/it's a_text", "0.7", "/data/b"]
validation_interval = 1000
tensor_parallel = 2
pipeline_parallel = 2
micro_batch = 1
global_batch = 64
unique_results = 1
"""


def overrides_of(folder, configuration="", **options):
    """Give the overrides that the configuration is composed with, by key, and what is started."""
    done, calls = start(ROOT, "nemo", "aws", folder, configuration=configuration, **options)
    assert done.returncode == 0, done.stderr
    (_, composed), (_, trained) = calls
    return dict(each.lstrip("+").split("=", 1) for each in composed[2:]), composed, trained


def preset(name):
    lines = (STACK / f"presets/{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_dockerfile_is_pinned_as_recorded():
    text = (STACK / "Dockerfile").read_text(encoding="utf-8")
    pins = (STACK / "pins.toml").read_text(encoding="utf-8")
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    (base,) = re.findall(r"^FROM (\S+)$", text, re.M)
    assert not re.search(r"\b(latest|master|main)\b", text)
    assert f'"docker://{base}"' in pins
    assert f"aws-efa-installer-{arguments['EFA_INSTALLER']}.tar.gz" in pins
    assert f"aws-ofi-nccl.git {arguments['AWS_OFI_NCCL']}" in pins
    (launcher,) = load_stack(ROOT, "nemo").configuration.values["repositories"]
    assert arguments["LAUNCHER"] == launcher["ref"]


@pytest.mark.parametrize("configuration", ["", ALL], ids=["plain", "all settings"])
def test_overrides_are_known_to_the_launcher(configuration, tmp_path):
    assert set(overrides_of(tmp_path, configuration)[0]) <= set(FLAGS)


def test_users_overrides_come_last(tmp_path):
    composed = overrides_of(tmp_path, arguments=["training.model.seed=7", "a=$(b) 'c'"])[1]
    assert composed[-2:] == ["training.model.seed=7", "a=$(b) 'c'"]


def test_without_data_it_is_a_benchmark_on_mock_data(tmp_path):
    overrides = overrides_of(tmp_path)[0]
    assert overrides["training.model.data.data_impl"] == "mock"
    assert overrides["training.exp_manager.create_checkpoint_callback"] == "False"
    assert overrides["training.trainer.num_nodes"] == "2"
    assert overrides["training.trainer.devices"] == "8"
    assert "training.model.micro_batch_size" not in overrides


def test_settings_become_overrides(tmp_path):
    overrides = overrides_of(tmp_path, ALL)[0]
    prefix = overrides["training.model.data.data_prefix"]
    assert prefix == r"['0.3','/data/it\'s a_text','0.7','/data/b']"
    assert "training.model.data.data_impl" not in overrides
    assert overrides["training.model.tensor_model_parallel_size"] == "2"
    assert overrides["training.trainer.val_check_interval"] == "100"  # no more than steps
    assert "training.trainer.limit_val_batches" not in overrides


@pytest.mark.parametrize(
    ("configuration", "folder"), [("", "results"), ("[training]\nunique_results = 1", "results-12")]
)
def test_results_go_below_the_checkpoint_folder(configuration, folder, tmp_path):
    overrides = overrides_of(tmp_path, configuration)[0]
    assert overrides["base_results_dir"].endswith(f"/checkpoints/{folder}'")
    assert "training.run.name" not in overrides  # the model's own


def test_ranks_train_with_what_was_composed(tmp_path):
    trained = overrides_of(tmp_path)[2]
    assert trained[-2:] == ["--config-path=/a run/gpt3_7m", "--config-name=gpt3_7m_hydra.yaml"]


def test_variables_of_the_launchers_jobs_beat_the_images():
    config = (STACK / "templates/config.yaml").read_text(encoding="utf-8")
    cluster = (STACK / "templates/cluster/bcm.yaml").read_text(encoding="utf-8")
    variables = re.search(r"^env_vars:\n((?:  .+\n)+)", config, re.M)[1]
    (named,) = re.findall(r'"--container-env=(.+)"', cluster)
    assert set(re.findall(r"^  (\w+):", variables, re.M)) == set(named.split(","))


# What AWS' guide has: aws-samples/awsome-distributed-training, commit 7217859f, in
# 3.test_cases/megatron/nemo1.0 conf.template/cluster/bcm.yaml, and in its README stderr_to_stdout.
GUIDE = {
    **{"partition": None, "account": None, "exclusive": True, "gpus_per_task": None},
    **{"gpus_per_node": 8, "mem": 0, "job_name_prefix": "nemo-megatron-"},
    **{"stderr_to_stdout": True},
}
GUIDE_SRUN = {"--no-container-mount-home", "--label", "--open-mode=append"}


def test_cluster_of_the_launcher_is_that_of_the_guide():
    text = (STACK / "templates/cluster/bcm.yaml").read_text(encoding="utf-8")
    cluster = yaml.safe_load(text)
    assert {name: cluster.get(name, "-") for name in GUIDE} == GUIDE
    assert cluster["gres"] is None  # a comment in the guide's; here cluster.gres=gpu:8 works
    assert set(cluster["srun_args"]) >= GUIDE_SRUN


def test_preset_is_for_jobs_of_longship_too(tmp_path):
    mine = "training.model.micro_batch_size=1"
    done, calls = start(ROOT, "nemo", "aws", tmp_path, ["gpt3/5b", mine], nodes=4)
    assert done.returncode == 0, done.stderr
    (_, composed), _ = calls
    nodes = [each for each in composed if each.startswith("training.trainer.num_nodes=")]
    assert nodes == ["training.trainer.num_nodes=4"]  # the job's own
    overrides = composed[composed.index("training=gpt3/5b") :]
    own = ["training.trainer.max_steps=30", "training.trainer.val_check_interval=30"]
    assert overrides[-4:] == [*own, "training.model.micro_batch_size=2", mine]
    assert not any(each.startswith("training.run.time_limit") for each in overrides)


@pytest.mark.parametrize("name", ["common", "gpt3/126m", "gpt3/5b"])
def test_presets_are_known_to_the_launcher(name):
    keys = [line.lstrip("+").partition("=")[0] for line in preset(name)]
    assert keys and set(keys) <= set(FLAGS)
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("words", [(), ("gpt3/126b",)])
def test_launcher_names_its_presets(words):
    command = ["bash", STACK / "launcher.sh", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: unknown preset: ")
    assert hint.endswith("gpt3/126m gpt3/5b")


# It stands for container_run.py on a machine with an image: it runs the command in its environment.
CONTAINER_RUN = """\
import os, sys
assert os.environ["NVIDIA_VISIBLE_DEVICES"] == "void"
assert sys.argv[1:4] == ["--stack", "nemo", "bash"]
os.execvp("bash", sys.argv[3:])
"""
# It stands for a Python that makes a venv, installs, and starts the launcher.
PYTHON = """\
#!/usr/bin/env bash
case $2 in
  venv) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  pip) echo install >>"$SEEN" ;;
  *) printf '%s\\n' "$PWD" "$@" ;;
esac
"""


@pytest.fixture
def head_node(tmp_path):
    """Give a function that runs launcher.sh in a clone on a head node, and the scratch folder."""
    clone, image, scratch = tmp_path / "it's a clone", tmp_path / "image", tmp_path / "scratch"
    for part in ("stacks/nemo", "lib/script", "lib/jobs"):
        shutil.copytree(ROOT / part, clone / part)
    script = clone / "stacks/nemo/copy_launcher.sh"
    text = script.read_text(encoding="utf-8")
    assert text.count("in_image=/opt/NeMo-Framework-Launcher ") == 1
    script.write_text(text.replace("/opt/NeMo-Framework-Launcher", str(image)))
    (clone / "container_run.py").write_text(CONTAINER_RUN)
    (tmp_path / "python3.10").write_text(PYTHON)
    (tmp_path / "python3.10").chmod(0o755)
    (image / ".git").mkdir(parents=True)
    (image / ".git/HEAD").write_text("a commit\n")
    (image / "launcher_scripts/conf/cluster").mkdir(parents=True)
    (image / "launcher_scripts/main.py").touch()
    (scratch / "containers/versions").mkdir(parents=True)
    (scratch / "containers/versions/nemo_amd64_1.sqsh").touch()
    (scratch / "containers/nemo_amd64.sqsh").symlink_to("versions/nemo_amd64_1.sqsh")

    def launch(*words, unique=0):
        environment = {
            **{"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")},
            **{"LONGSHIP_ROOT": str(clone), "LONGSHIP_SCRATCH_DIR": str(scratch)},
            **{"LONGSHIP_CHECKPOINT_DIR": str(scratch / "it's checkpoints")},
            **{
                "HF_HOME": str(tmp_path / "hub"),
                "TRAINING_RESULTS": "results",
                "TRAINING_UNIQUE_RESULTS": str(unique),
            },
        }
        command = ["bash", clone / "stacks/nemo/launcher.sh", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    launch.scratch, launch.image = scratch, image
    return launch


def test_launcher_is_copied_configured_and_started(head_node):
    done = head_node("gpt3/5b", "training.model.seed=$(x) 'y'")
    assert done.returncode == 0, done.stderr
    folder, main, *overrides = done.stdout.splitlines()
    assert (folder, main) == (str(head_node.scratch / "nemo_launcher"), "launcher_scripts/main.py")
    image = head_node.scratch / "containers/versions/nemo_amd64_1.sqsh"
    own = [f"container='{image}'", *preset("common"), *preset("gpt3/5b")]
    assert overrides == [*own, "training.model.seed=$(x) 'y'"]
    conf = Path(folder, "launcher_scripts/conf")
    text = (conf / "config.yaml").read_text()
    assert f'base_results_dir: "{head_node.scratch}/it\'s checkpoints/results"\n' in text
    assert f'HF_HOME: "{head_node.scratch.with_name("hub")}"\n' in text
    assert not re.search("@[A-Z_]+@", text + (conf / "cluster/bcm.yaml").read_text())


def test_launcher_writes_to_a_folder_of_its_own(head_node):
    overrides = head_node("gpt3/126m", unique=1).stdout.splitlines()[2:]
    (folder,) = (each for each in overrides if each.startswith("base_results_dir="))
    there = list((head_node.scratch / "it's checkpoints").iterdir())
    assert [f"base_results_dir='{each}'".replace("t's", "t\\'s") for each in there] == [folder]
    assert re.fullmatch(r"results-[\d-]+", there[0].name)
    assert "training.run.dependency=null" in overrides
    assert {each.lstrip("+").partition("=")[0] for each in overrides} <= set(FLAGS)


def test_launcher_is_kept_until_the_image_has_another(head_node):
    edited = head_node.scratch / "nemo_launcher/launcher_scripts/main.py"
    head_node("gpt3/126m")
    edited.write_text("mine\n")
    head_node("gpt3/126m")
    assert edited.read_text() == "mine\n"
    assert head_node.scratch.with_name("seen").read_text() == "install\n"
    (head_node.image / ".git/HEAD").write_text("another\n")
    head_node("gpt3/126m")
    assert edited.read_text() == ""


def test_image_without_a_launcher_is_told(head_node):
    (head_node.image / "launcher_scripts/main.py").unlink()
    done = head_node("gpt3/126m")
    assert done.returncode == 1
    assert done.stderr.startswith("error: launcher not found in the image: ")
    assert "hint: " in done.stderr and not (head_node.scratch / "nemo_launcher").exists()


# It stands for NeMo's script: it prints its arguments, and writes what it is told to, where.
MAKE_DATA = """\
#!/usr/bin/env bash
printf '%s\\n' "$@"
prefix=$(printf '%s\\n' "$@" | sed -n 's/^--output-prefix=//p' | tail -n 1)
for each in $MADE; do echo new >"${prefix}_$each"; done
exit "${CODE:-0}"
"""


def preprocess(folder, *words, **more):
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python").write_text(MAKE_DATA)
    (programs / "python").chmod(0o755)
    environment = {
        **{"PATH": f"{programs}:{os.environ['PATH']}", "LONGSHIP_ROOT": str(ROOT)},
        **{"LONGSHIP_SCRATCH_DIR": str(folder / "it's"), "TRAINING_TOKENIZER": "lab/tokens"},
        **{"MADE": "", **more},
    }
    command = ["bash", STACK / "preprocess_data.sh", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_data_are_made_by_nemo(tmp_path):
    done = preprocess(tmp_path, "all", "--input=a b.jsonl", "--workers=2")
    script, *options = done.stdout.splitlines()
    assert script.endswith("/preprocess_data_for_megatron.py")
    assert options[-2:] == ["--input=a b.jsonl", "--workers=2"]
    (prefix,) = [each for each in options if each.startswith("--output-prefix=")]
    assert prefix.startswith(f"--output-prefix={tmp_path}/it's/data/nemo.partial-")
    assert {each.partition("=")[0] for each in options[:-2]} <= set(FLAGS)
    assert (tmp_path / "it's/data").is_dir()


MADE = "text_document.bin text_document.idx"


def test_data_have_their_names_when_they_are_whole(tmp_path):
    data = tmp_path / "it's/data"
    data.mkdir(parents=True)
    (data / "nemo_text_document.idx").write_text("old\n")
    done = preprocess(tmp_path, MADE=MADE)
    assert done.returncode == 0, done.stderr
    made = {each.name: each.read_text() for each in data.iterdir()}
    assert made == {f"nemo_{each}": "new\n" for each in MADE.split()}


def test_data_that_were_not_finished_replace_nothing(tmp_path):
    data = tmp_path / "it's/data"
    data.mkdir(parents=True)
    for name in MADE.split():
        (data / f"nemo_{name}").write_text("old\n")
    done = preprocess(tmp_path, MADE="text_document.bin", CODE="3")
    assert done.returncode == 3
    assert {each.read_text() for each in data.glob("nemo_text*")} == {"old\n"}
    assert len(list(data.iterdir())) == 2


def test_data_of_another_job_are_left_to_it(tmp_path):
    """Both wrote to one directory: an index got its name with the tokens of the other text."""
    other = tmp_path / "it's/data/nemo.partial-node9-x/nemo_text_document.idx"
    other.parent.mkdir(parents=True)
    other.write_text("other\n")
    done = preprocess(tmp_path, MADE=MADE)
    assert done.returncode == 0, done.stderr
    assert other.read_text() == "other\n"
    assert (tmp_path / "it's/data/nemo_text_document.idx").read_text() == "new\n"


def test_data_stay_where_the_user_wants_them(tmp_path):
    done = preprocess(tmp_path, "all", f"--output-prefix={tmp_path}/mine", MADE=MADE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine_text_document.bin").exists()
    assert list((tmp_path / "it's/data").iterdir()) == []


def test_data_are_not_made_in_shares(tmp_path):
    done = preprocess(tmp_path, "shard")
    assert (done.returncode, done.stdout) == (1, "")
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["error:", "hint:"]


def test_data_job_that_nemo_cannot_run_is_refused_before_submission(tmp_path):
    done = refusal(ROOT, "nemo", "jsc/preprocess_data_parallel_jwc.sbatch", tmp_path)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error == "error: NeMo prepares its data in a single task"
    assert hint.startswith('hint: use the job script without "parallel" in its name')
