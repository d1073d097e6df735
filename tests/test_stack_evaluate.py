"""The stack evaluate: what its scripts start; tests/integration/test_stack_evaluate.py runs it."""

import sys
from pathlib import Path

import pytest
from support.stacks import start

from lib.jobs.job_files import job_files

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = """
[training]
model = "lab/model"
tasks = "first,second"
limit = 3
few_shot = "0"
"""


def evaluation(tmp_path, arguments=(), configuration=SETTINGS, **options):
    """Give how run_evaluation.sh ended, and the words of what it started."""
    script = {"nodes": 1, "script": "run_evaluation.sh", "configuration": configuration, **options}
    done, calls = start(ROOT, "evaluate", "jwb", tmp_path, arguments, **script)
    return done, calls[-1][1] if calls else []


def test_settings_come_before_what_the_user_gives(tmp_path):
    done, words = evaluation(tmp_path, ["--limit", "5"])
    assert done.returncode == 0, done.stderr
    own = words[words.index("lm_eval") :]
    assert own[:6] == [
        *("lm_eval", "run", "--model", "hf"),
        *("--model_args", "pretrained=lab/model,dtype=auto"),
    ]
    assert own[own.index("--tasks") :] == [
        *("--tasks", "first,second", "--limit", "3", "--num_fewshot", "0", "--limit", "5")
    ]
    assert own[own.index("--output_path") + 1].endswith("/evaluation/lab__model/results.json")


def test_each_gpu_of_the_node_has_a_copy_of_the_model(tmp_path):
    _, words = evaluation(tmp_path)
    assert "--nproc-per-node=4" in words


def test_first_argument_is_the_model(tmp_path):
    model = tmp_path / "a model=1"
    model.mkdir()
    (model / "config.json").write_text("{}")
    _, words = evaluation(tmp_path, [str(model), "--tasks", "other"])
    assert words[words.index("--model_args") + 1] == f"pretrained={model},dtype=auto"
    assert words[words.index("--output_path") + 1] == f"{model}/evaluation/results.json"
    assert words[-2:] == ["--tasks", "other"]
    assert words.count("--tasks") == 1  # lm-eval would evaluate those of both


@pytest.mark.parametrize(
    ("arguments", "configuration", "message"),
    [
        ([], "", "no model to evaluate"),
        (["/no/such"], "", "/no/such has no config.json"),
        (["/a,b"], "", "cannot read a path with a comma: /a,b"),
        ([], f'{SETTINGS}\nengine = "vlm"', "expected hf or vllm, got vlm"),
    ],
)
def test_model_that_cannot_be_evaluated_is_refused(arguments, configuration, message, tmp_path):
    done, words = evaluation(tmp_path, arguments, configuration)
    assert done.returncode == 1 and not words
    assert message in done.stderr and "hint: " in done.stderr


def test_vllm_spreads_the_model_over_the_node(tmp_path):
    _, words = evaluation(tmp_path, configuration=f'{SETTINGS}\nengine = "vllm"')
    assert "pretrained=lab/model,dtype=auto,tensor_parallel_size=4" in words
    assert "torch.distributed.run" not in words


def test_data_step_takes_one_example_of_each_task_without_a_model(tmp_path):
    done, calls = start(
        *(ROOT, "evaluate", "jwb", tmp_path, ["all"]),
        script="preprocess_data.sh",
        configuration=SETTINGS,
    )
    assert done.returncode == 0, done.stderr
    words = calls[-1][1]
    assert words[words.index("--model") + 1] == "dummy"
    assert words[-2:] == ["--limit", "1"]


def test_each_machine_that_trains_has_a_job_script_that_evaluates():
    names = {path.name for path in job_files(ROOT)}
    trains = {each for each in names if each.startswith("run_training_") and "ranks" not in each}
    assert {each.replace("training", "evaluation") for each in trains} <= names


@pytest.mark.extras("evaluate")
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["--stack", "olmo", "local/run_training_local.sbatch"],
            "--then starts export.sh, which the stack olmo does not have",
            "--stack megatron-bridge or megatron-lm or olmo-core or pytorch or torchtitan or trl",
        ),
        (["local/preprocess_data_local.sbatch"], "does not start run_training.sh", "--after JOB"),
        (["local/interactive.salloc"], "--then requires the job script of a training", "--help"),
    ],
)
def test_what_cannot_be_evaluated_is_told(words, message, hint, root, clean_environment, run):
    command = [sys.executable, root / "submit.py", "--dry-run", *words, "--then", "evaluate"]
    done = run(command, env=clean_environment, check=False)
    assert done.returncode in (1, 2) and message in done.stderr and hint in done.stderr


def test_job_script_of_another_stack_is_refused(root, clean_environment, run):
    job = [sys.executable, root / "submit.py", "--dry-run", "local/run_evaluation_local.sbatch"]
    done = run(job, env=clean_environment, check=False)
    assert done.returncode == 1
    assert "run_evaluation.sh, which the stack pytorch does not have" in done.stderr
    assert "--stack evaluate" in done.stderr
