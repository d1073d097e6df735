"""The stack trl: what its scripts start, and where W&B may write."""

from pathlib import Path

import pytest
from support.stacks import refusal, start

ROOT = Path(__file__).resolve().parents[1]
TRAINING = """
[training]
method = "grpo"
model = "lab/model"
train_dataset = "lab/pairs:train"
eval_dataset = "lab/pairs:test"
rewards = "/lab/rewards.py"
"""
FLAGS = (ROOT / "tests/flags/trl.txt").read_text().split()


def words_after(words, script):
    return words[next(i for i, word in enumerate(words) if word.endswith(script)) + 1 :]


def test_settings_come_before_what_the_user_gives(tmp_path):
    done, calls = start(ROOT, "trl", "olivia", tmp_path, ["--model", "a b"], configuration=TRAINING)
    assert done.returncode == 0, done.stderr
    (_, prepared), (_, trained) = calls
    own = words_after(trained, "/fine_tune.py")
    assert own == words_after(prepared, "/prepare_data.py")
    # Each is one of the real parser: tests/integration/test_stack_trl.py
    assert own[:10:2] == FLAGS
    values = ["grpo", "lab/model", "lab/pairs:train", "lab/pairs:test", "/lab/rewards.py"]
    assert own[1:10:2] == values
    assert own[10:] == ["--model", "a b"]


def test_settings_that_are_empty_are_left_out(tmp_path):
    _, calls = start(ROOT, "trl", "olivia", tmp_path, ["--model", "m"])
    assert words_after(calls[-1][1], "/fine_tune.py") == ["--method", "sft", "--model", "m"]


JOB = "jsc/run_training_jwb.sbatch"
DATA_JOB = "jsc/preprocess_data_jwc.sbatch"
GRPO = 'method = "grpo"\n'
FILE = 'rewards = "/lab/rewards.py"\n'
METHOD = "unknown training.method: "
NO_REWARDS = "grpo needs a Python file with reward functions"
RELATIVE = "training.rewards is not an absolute path: lab/rewards.py"


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        ('method = "dop"\n', [], f"{METHOD}dop"),
        ('method = ""\n', [], METHOD),
        ("", ["--method", "ppo"], f"{METHOD}ppo"),
        (GRPO, [], NO_REWARDS),
        ("", ["--method=grpo", "--model", "m"], NO_REWARDS),
        (FILE, ["--method", "grpo", "--rewards="], NO_REWARDS),
        (GRPO + 'rewards = "lab/rewards.py"\n', [], RELATIVE),
        ("", [], None),
        ("", ["--method=dpo"], None),
        (GRPO + FILE, [], None),
        (GRPO, ["--rewards", "mine.py"], None),
        (GRPO, ["--method", "sft"], None),
    ],
)
@pytest.mark.parametrize("job", [JOB, DATA_JOB])
def test_method_that_cannot_train_is_refused_before_submission(
    job, settings, words, message, tmp_path
):
    configuration = f"[training]\n{settings}"
    done = refusal(ROOT, "trl", job, tmp_path, "--", *words, configuration=configuration)
    assert (done.returncode, done.stdout) == (bool(message), "")
    if message is None:
        assert done.stderr == ""
    else:
        error, hint = done.stderr.split("\n", 1)
        assert error == f"error: {message}" and hint.startswith("hint: ") and hint.count("\n") == 1


@pytest.mark.parametrize(("rank", "expected"), [("0", 2), ("1", 1)])
def test_one_rank_of_a_node_looks_at_the_data(rank, expected, tmp_path):
    more = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": rank}
    _, calls = start(ROOT, "trl", "jwb", tmp_path, more=more)
    assert len(calls) == expected


def variables(folder, more):
    _, calls = start(ROOT, "trl", "jwb", folder, more=more)
    found = dict(each.split("=", 1) for each in calls[-1][0])
    return {name: value for name, value in found.items() if name.startswith("WANDB_")}


def test_wandb_is_offline_unless_the_user_says_otherwise(tmp_path):
    found = variables(tmp_path, {})
    assert found.pop("WANDB_MODE") == "offline"
    assert found.pop("WANDB_ERROR_REPORTING") == "false"
    assert found.pop("WANDB_QUIET") == "true"
    assert found.pop("WANDB_DIR") == "/scratch/runs/12-train"
    assert all("/longship/cache/wandb/" in each for each in found.values()), found


def test_wandb_that_is_online_stays_so(tmp_path):
    found = variables(tmp_path, {"WANDB_MODE": "online", "WANDB_DIR": "/elsewhere"})
    assert not {"WANDB_MODE", "WANDB_DIR", "WANDB_ERROR_REPORTING"} & found.keys()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["all", "--model", "m"], ["--model", "m"]),
        (["prepare", "--model", "m"], ["--model", "m"]),
        (["--model", "m"], ["--model", "m"]),
        ([], []),
        (["shard", "--model", "m"], None),
        (["merge"], None),
    ],
)
def test_data_are_prepared_once(given, expected, tmp_path):
    _, calls = start(ROOT, "trl", "jwb", tmp_path, given, script="preprocess_data.sh")
    found = [words_after(words, "/prepare_data.py") for _, words in calls]
    assert found == ([] if expected is None else [["--method", "sft", *expected]])
