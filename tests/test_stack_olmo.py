"""The stack olmo: what its scripts give OLMo, and what they say before a job is lost."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.stacks import start

ROOT = Path(__file__).resolve().parents[1]
FLAGS = (ROOT / "tests/flags/olmo.txt").read_text().split()
EVERYTHING = """
[training]
model = "/models/my own.yaml"
data = ["/data/a b/*.npy", "/data/it's.bin"]
steps = 100
global_batch = 64
micro_batch = 2
save_every = 50
sharding = "HYBRID_SHARD"
replicas = 2
activation_checkpointing = "whole_layer"
wandb_entity = "lab"
"""


def started(folder, arguments=(), *, machine="lumi", environment=(), **options):
    """Give the one call of Python: variables, words behind train.py and the configuration's."""
    more = {"RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}
    done, calls = start(
        ROOT, "olmo", machine, folder, arguments, more={**more, **dict(environment)}, **options
    )
    assert done.returncode == 0, done.stderr
    ((variables, words),) = calls
    assert words[0] == str(ROOT / "stacks/olmo/record_metrics.py")
    assert words[1].endswith("/OLMo/scripts/train.py")
    return dict(each.split("=", 1) for each in variables), words[2:]


def values(words):
    pairs = (each[2:].partition("=") for each in words[1:])
    return {name: value for name, _, value in pairs}


def test_each_flag_that_is_passed_is_one_of_the_list(tmp_path):
    passed = set()
    ends = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    for name, more in (("all", ""), ("disabled", 'wandb = "disabled"\n')):
        folder = tmp_path / name
        folder.mkdir()
        words = started(folder, configuration=EVERYTHING + more, environment=ends)[1]
        passed |= values(words).keys()
    assert sorted(passed) == sorted(FLAGS)  # the real parser: tests/integration/test_stack_olmo.py


def test_settings_reach_olmo_and_the_user_has_the_last_word(tmp_path):
    _, words = started(tmp_path, ["--max_duration=7", "--seed=1"], configuration=EVERYTHING)
    assert words[0] == "/models/my own.yaml"
    assert words[-2:] == ["--max_duration=7", "--seed=1"]
    found = values(words[:-2])
    assert found["data.paths"] == """'${path.glob:"/data/a b/*.npy","/data/it''s.bin"}'"""
    assert found["save_folder"] == "'/flash/my-account/me/longship/checkpoints/olmo'"
    assert (found["global_train_batch_size"], found["save_interval"]) == ("64", "50")
    assert found["remote_save_folder"] == "null"


def test_what_is_not_set_is_left_to_the_configuration(tmp_path):
    words = started(tmp_path, configuration="[training]\ndata = []\nevaluators = ''\n")[1]
    left = {"data.paths", "evaluators", "max_duration", "save_interval", "fsdp.sharding_strategy"}
    assert not left & values(words).keys()


def test_run_ends_before_slurm_ends_the_job(tmp_path):
    ends = {"SLURM_JOB_END_TIME": str(int(time.time()) + 7200)}
    words = started(tmp_path, environment=ends, configuration="[training]\ntime_margin = 1200\n")[1]
    limit = int(values(words)["time_limit"])
    assert 5000 < limit <= 6000


def test_job_that_is_too_short_is_refused(tmp_path):
    ends = {"SLURM_JOB_END_TIME": str(int(time.time()) + 300)}
    done, calls = start(ROOT, "olmo", "lumi", tmp_path, more=ends)
    assert (done.returncode, calls) == (1, [])
    error, hint = done.stderr.splitlines()
    assert re.fullmatch(
        r"error: the job ends in \d+ seconds, but time_margin is 600 seconds", error
    )
    assert hint.startswith("hint: request more time")


def test_batch_that_cannot_be_shared_is_refused(tmp_path):
    configuration = "[training]\nglobal_batch = 40\n"
    done, calls = start(ROOT, "olmo", "lumi", tmp_path, configuration=configuration)
    assert (done.returncode, calls) == (1, [])
    assert "error: global_batch 40 is not a multiple of the number of ranks, 16" in done.stderr


@pytest.mark.parametrize(("given", "used"), [("true", "true"), ("false", "false")])
def test_flash_attention_is_asked_for_or_not_whatever_the_configuration_says(given, used, tmp_path):
    words = started(tmp_path, configuration=f'[training]\nflash_attention = "{given}"\n')[1]
    found = values(words)
    assert (found["model.flash_attention"], found["fused_loss"]) == (used, used)


@pytest.mark.parametrize(
    ("folder", "arguments", "trains"),
    [
        ("step99", [], True),
        ("step100-tmp", [], True),
        ("step100", [], False),
        ("step120-unsharded", [], False),
        ("step100", ["--seed=3"], False),
        ("step100", ["--stop_at=200", "--max_duration=200"], True),
        ("step100", ["--save_folder=/elsewhere"], True),
    ],
)
def test_run_with_all_its_steps_takes_no_more(folder, arguments, trains, tmp_path):
    (tmp_path / "checkpoints/a run" / folder).mkdir(parents=True)
    configuration = (
        f'[paths]\ncheckpoint_dir = "{tmp_path}/checkpoints"\n'
        '[training]\nrun_name = "a run"\nsteps = 100\n'
    )
    done, calls = start(ROOT, "olmo", "berzelius", tmp_path, arguments, configuration=configuration)
    assert done.returncode == 0, done.stderr
    assert bool(calls) == trains
    assert ("note: the run a run has completed its 100 steps" in done.stderr) == (not trains)


@pytest.mark.parametrize(("mode", "key"), [("offline", None), ("online", "k")])
def test_key_of_wandb_is_there_where_wandb_is_asked(mode, key, tmp_path):
    key_there = {"WANDB_API_KEY": "k"}
    configuration = f'[training]\nwandb = "{mode}"\n'
    variables = started(tmp_path, environment=key_there, configuration=configuration)[0]
    assert variables["WANDB_MODE"] == mode
    assert environment_key(tmp_path) == key


def environment_key(folder):
    """Give the key that Python was started with, which was there before the script."""
    items = (folder / "started/0.variables").read_text().split("\0")
    return dict(each.partition("=")[::2] for each in items).get("WANDB_API_KEY")


def test_one_rank_of_all_writes_what_nodes_share(tmp_path):
    variables = started(tmp_path)[0]
    assert variables["OLMO_SHARED_FS"] == "1"
    assert variables["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"


def test_warnings_of_omegaconf_are_not_printed(tmp_path):
    variables = started(tmp_path, environment={"PYTHONWARNINGS": "error::ResourceWarning"})[0]
    own = "ignore:register_new_resolver() is deprecated:UserWarning"
    assert variables["PYTHONWARNINGS"] == f"{own},error::ResourceWarning"  # later ones win


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["all"]),
        (["shard"], ["shard"]),
        (["merge", "--name", "mine"], ["merge", "--name", "mine"]),
        (["--input", "a b.jsonl"], ["all", "--input", "a b.jsonl"]),
    ],
)
@pytest.mark.parametrize(
    ("tokenizer", "found"),
    [("olmo_data/t.json", "/project/repos/OLMo/olmo_data/t.json"), ("/my/t.json", "/my/t.json")],
)
def test_data_step_takes_mode_and_tokenizer(arguments, expected, tokenizer, found, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LONGSHIP_ROOT": "/longship",
        "LONGSHIP_REPOSITORIES": "/project/repos",
        "TRAINING_TOKENIZER": tokenizer,
    }
    command = ["bash", ROOT / "stacks/olmo/preprocess_data.sh", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = ["--name", "olmo", "--tokenizer", found]
    assert done.stdout.splitlines() == [
        "/longship/preprocess_data.py",
        expected[0],
        *words,
        *expected[1:],
    ]


def test_readme_names_the_successor_first():
    first, _, *lines = (ROOT / "stacks/olmo/README.md").read_text().splitlines()
    assert first.startswith("# olmo: ") and "to repeat a run" in first
    assert lines[0].startswith("**Legacy:** ") and "olmo-core/README.md" in lines[1]


def test_only_the_first_rank_records_the_metrics(tmp_path, run, clean_environment):
    script = tmp_path / "train it.py"
    script.write_text("import sys; print(*sys.argv[1:], __name__, 'olmo' in sys.modules)")
    record = [sys.executable, ROOT / "stacks/olmo/record_metrics.py", script, "a b", "--c"]
    done = run(record, env={**clean_environment, "RANK": "3"})
    assert done.stdout == "a b --c __main__ False\n"
    done = run(record, env={**clean_environment, "RANK": "0"}, check=False)
    assert "No module named" in done.stderr  # PyTorch, which is not needed here
