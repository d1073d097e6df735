"""The stack trl: a tiny model, made on the spot, learns to translate, without network.

Its packages are installed once per set of requirements: in a venv for the runtime host, and in a
venv and an overlay for the test's image.
"""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support import cache, processes
from support.inside import Inside
from support.jobs import configuration
from support.repository import Clone, toml

from lib.configuration.sites import own_arch

# The framework is installed whole; tests/test_stack_trl.py reads its command lines.
pytestmark = pytest.mark.slow

LOCAL = "local/run_training_local.sbatch"
FIELDS = ("--train_source_field", "translation.en", "--train_target_field", "translation.no")
FAST = ("--bf16", "false", "--activation_checkpointing", "false", "--optim", "adamw_torch")
LEARN = ("--learning_rate", "1e-2", "--lr_scheduler_type", "constant", "--logging_steps", "1")
SMALL = ("--prompt", "{source} =", "--max_new_tokens", "32", "--save_steps", "1000")
OPTIONS = (*FIELDS, *FAST, *LEARN, *SMALL)
STEPS = ("--max_steps", "50")
ENDLESS = ("--max_steps", "1000000")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PATIENCE = 600  # seconds
INPUTS = ("stacks/trl/requirements.txt", "stacks/trl/stack.toml", "requirements/torch.txt")


def name_of(what, root, *parts):
    return f"{what}-{cache.fingerprint(*(root / each for each in INPUTS), *parts)}"


@pytest.fixture(scope="session")
def trl(root, session_environment, tmp_path_factory):
    """Give what runs a command in the environment of the stack, without a container."""
    name = name_of("inside-trl", root)
    folder = cache.cache_folder() / name
    file = tmp_path_factory.mktemp("trl") / "configuration.toml"
    file.write_text(
        'stack = "trl"\n'
        f"[paths]\nproject_dir = {toml(folder / 'project')}\n"
        f'scratch_dir = {toml(folder / "scratch")}\n[container]\nruntime = "host"\n'
    )
    chosen = {"LONGSHIP_CONFIGURATION": str(file), "LONGSHIP_MACHINE": "local"}
    environment = {**session_environment, **chosen}
    with cache.locked(name):
        install = [sys.executable, root / "set_up.py", "install"]
        processes.run(install, env=environment, timeout=900)
    return Inside(root, environment)


@pytest.fixture(scope="session")
def toy(trl, root, tmp_path_factory):
    """Give a folder with a tiny model and pairs of texts."""
    folder = tmp_path_factory.mktemp("toy")
    trl("python", root / "tests/integration/toy_translation.py", folder)
    return folder


@pytest.fixture(scope="session")
def packed(root, base_image, session_environment, tmp_path_factory):
    """Give a scratch folder with the stack's venv and overlay for the test's image."""
    name = name_of("jobs-trl", root, base_image.name)
    scratch = cache.cache_folder() / name
    clone = Clone(root, tmp_path_factory.mktemp("packing") / "clone", session_environment)
    with cache.locked(name):
        clone.configure(f'stack = "trl"\n{configuration(scratch, base_image)}')
        clone.set_up("install", timeout=900)
        more = '[packages]\noverlay = "myenv"\ncompression = "lz4"\n'
        clone.configure(f'stack = "trl"\n{configuration(scratch, base_image, more)}')
        clone.type("build_overlay.py", timeout=900)
    return scratch


@pytest.fixture
def job_clone(make_job_clone, packed, toy, slurm, tmp_path):
    """Give a function that makes a clone whose jobs train the toy, with a venv or an overlay."""

    def make(more=""):
        venv = Path(os.path.realpath(packed / f"venv_trl_{own_arch()}"))
        clone = make_job_clone(tmp_path, more, packages=venv)
        text = (clone.root / "configuration.toml").read_text()
        data = clone.scratch / "toy"
        shutil.copytree(toy, data)
        settings = f"model = {toml(data / 'model')}\ntrain_dataset = {toml(data / 'pairs.jsonl')}\n"
        clone.configure(f'stack = "trl"\n{text}\n[training]\n{settings}')
        if more:
            (clone.scratch / "overlays").symlink_to(packed / "overlays")
        else:
            (clone.scratch / f"venv_trl_{own_arch()}").symlink_to(venv)
        clone.pairs = data / "pairs.jsonl"
        return clone

    return make


def scores(folder):
    return json.loads((folder / "eval_results.json").read_text())


def losses(folder, step):
    """Give the loss of each step up to a checkpoint."""
    state = json.loads((folder / f"checkpoint-{step}/trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def check_that_it_learned(folder, step):
    found = losses(folder, step)
    assert len(found) == step
    recorded = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in recorded] == list(range(1, step + 1))
    assert [line["loss"] for line in recorded] == found
    known = {"grad_norm", "learning_rate", "tokens_per_s", "seconds"}
    assert all(known <= {*line} and line["tokens_per_s"] > 0 for line in recorded)
    assert found[-1] < found[0] / 10
    assert scores(folder)["eval_bleu"] > 50
    lines = [json.loads(line) for line in (folder / "translations.jsonl").read_text().splitlines()]
    assert sum(line["target"] == line["translation"] for line in lines) > 10


def test_run_goes_on_where_a_signal_stopped_it(trl, toy, root, tmp_path):
    data = ("--model", toy / "model", "--train_dataset", toy / "pairs.jsonl")
    evaluate = ("--eval_dataset", f"{toy}/pairs.jsonl:train", "--output_dir", tmp_path / "run")
    command = ["bash", root / "stacks/trl/run_training.sh", *data, *evaluate, *OPTIONS]
    wandb = {**ONE_THREAD, "WANDB_DIR": str(tmp_path)}
    running = trl.start(*command, *ENDLESS, "--wandb_project", "toy", env=wandb)
    said = ""
    for line in running.stdout:
        said += line
        if "'loss'" in line:
            second = trl(*command, *ENDLESS, env=ONE_THREAD, check=False)
            told = f"another process already trains the run in {tmp_path}/run: process "
            assert second.returncode == 1 and told in second.stderr
            running.send_signal(signal.SIGUSR1)
            break
    output, errors = running.communicate(timeout=PATIENCE)
    said += output
    assert running.returncode == 0, said + errors
    step = int(re.search(r"stopped by a signal after step (\d+)", said)[1])
    assert losses(tmp_path / "run", step)
    synced = re.search(r"container_run.py --online wandb sync (\S+)", said)[1]
    assert list(Path(synced).glob("*.wandb")) and Path(synced).is_relative_to(tmp_path)

    done = trl(*command, "--max_steps", str(step + 60), env=ONE_THREAD).stdout
    assert f"from {tmp_path}/run/checkpoint-{step} on 1 x cpu" in done
    assert "BLEU = " in done and "chrF2 = " in done
    check_that_it_learned(tmp_path / "run", step + 60)


def test_trained_run_is_scored_again_and_not_trained_further(trl, toy, root, tmp_path):
    data = ("--model", toy / "model", "--train_dataset", f"{toy}/pairs.jsonl:train[:5]")
    to = ("--eval_dataset", toy / "pairs.jsonl", "--output_dir", tmp_path)
    command = ["python", root / "stacks/trl/fine_tune.py", *data, *to, *OPTIONS, "--max_steps", "2"]
    trl(*command, env=ONE_THREAD)
    (tmp_path / "eval_results.json").unlink()
    shutil.copytree(tmp_path / "checkpoint-2", tmp_path / "checkpoint-3")
    (tmp_path / "checkpoint-3/trainer_state.json").write_text('{"cut off')
    state = tmp_path / "checkpoint-2/trainer_state.json"  # one of before other methods were known
    state.write_text(state.read_text().replace('"RecordMethod"', '"Other"'))
    again = trl(*command, env=ONE_THREAD)
    assert "finished after step 2" in again.stdout
    assert f"skipping an incomplete checkpoint: {tmp_path}/checkpoint-3" in again.stderr
    assert "eval_bleu" in scores(tmp_path)
    exported = trl("bash", root / "stacks/trl/export.sh", tmp_path, env=ONE_THREAD)
    assert exported.stdout.splitlines()[-1] == str(tmp_path)
    (tmp_path / "training_args.bin").unlink()  # a kill left the final model incomplete
    exported = trl("bash", root / "stacks/trl/export.sh", tmp_path, env=ONE_THREAD)
    assert exported.stdout.splitlines()[-1] == str(tmp_path / "checkpoint-2")


# As Qwen3's: an answer without reasoning begins with an empty block of it.
REASONS = """\
{%- set nothing = '<think>\\n\\n</think>\\n\\n' %}
{%- for message in messages %}
{{- message.role[0] + ':' }}
{%- if message.role == 'assistant' and loop.last %}{{- nothing }}{%- endif %}
{{- message.content + '</s>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- 'a:' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- nothing }}{%- endif %}
{%- endif %}
"""


def test_block_of_reasoning_is_no_part_of_a_translation(trl, toy, root, tmp_path):
    shutil.copytree(toy / "model", tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").write_text(REASONS)
    data = ("--model", tmp_path / "model", "--train_dataset", toy / "pairs.jsonl")
    to = ("--eval_dataset", toy / "pairs.jsonl", "--output_dir", tmp_path / "run")
    command = ["python", root / "stacks/trl/fine_tune.py", *data, *to, *OPTIONS, *STEPS]
    trl(*command, env=ONE_THREAD)
    text = (tmp_path / "run/translations.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert "think" not in text
    assert sum(line["target"] == line["translation"] for line in lines) > 10
    assert scores(tmp_path / "run")["eval_bleu"] > 50


AGREE = """
import threading
from types import SimpleNamespace
import torch.distributed as dist
from callbacks import any_has

dist.init_process_group("gloo")
stop = threading.Event()
if dist.get_rank() == 1:
    stop.set()
print(any_has(stop, SimpleNamespace(world_size=2, device="cpu")))
dist.destroy_process_group()
"""


def test_ranks_agree_on_a_signal_that_one_has(trl, root, tmp_path):
    (tmp_path / "agree.py").write_text(AGREE)
    ranks = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = ("env", f"PYTHONPATH={root}/stacks/trl", *ranks, tmp_path / "agree.py")
    assert trl(*command, env=ONE_THREAD, timeout=PATIENCE).stdout.split() == ["True", "True"]


# What the tutorial's job passes: NbAiLab/NB-Olivia-tutorial, commit 44263f2b, train_single.slurm.
TUTORIAL = (
    "--model Qwen/Qwen3-0.6B --wandb_project olivia_test --run_name test1 "
    "--train_dataset NbAiLab/merged_npk_ndla_parallel_paragraphs:train "
    "--eval_dataset NbAiLab/nynorsk_norm_200eval:validation --train_source_field nb "
    "--train_target_field nn --eval_source_field nb --eval_target_field nn_husnorm "
    "--per_device_train_batch_size 8 --per_device_eval_batch_size 8 --learning_rate 2e-5 "
    "--warmup_steps 10000 --num_train_epochs 6 --eval_steps 5000 --save_steps 50000 "
    "--logging_steps 1000"
)
NEEDED = "--model m --train_dataset t:train --bf16 false"
# Options, and what they set: the strategy of the evaluation, the adapters' rank and modules.
PARSED = {
    f"{TUTORIAL} --bf16 false": ("steps", None, None),
    NEEDED: ("no", None, None),
    f"{NEEDED} --eval_steps 5 --eval_strategy no": ("no", None, None),
    f"{NEEDED} --eval_strategy epoch --eval_delay 2": ("epoch", None, None),
    f"{NEEDED} --eval_delay 2": ("steps", None, None),
    f"{NEEDED} --use_peft --max_steps 2": ("no", 16, "all-linear"),
    f"{NEEDED} --lora_alpha 8": ("no", 16, "all-linear"),
    f"{NEEDED} --lora-r 4 --lora_target_modules q_proj v_proj": ("no", 4, ["q_proj", "v_proj"]),
    f"{NEEDED} --use_peft false --lora_r 4": ("no", None, None),
}
PARSE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from arguments import parse_arguments
found = []
for case in json.loads(sys.argv[2]):
    sys.argv[1:] = case.split()
    options, training, lora = parse_arguments("")
    modules = lora and lora.target_modules
    modules = sorted(modules) if isinstance(modules, set) else modules
    found.append((training.eval_strategy.value, lora and lora.r, modules))
print(json.dumps(found))
"""


def test_given_options_turn_on_what_they_are_for(trl, root):
    done = trl("python", "-c", PARSE, root / "stacks/trl", json.dumps(list(PARSED)))
    found = [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]
    assert dict(zip(PARSED, found)) == PARSED
    shown = " ".join(trl("python", root / "stacks/trl/fine_tune.py", "--help").stdout.split())
    assert "rank of the adapters (default: 16) --" in shown


# How far the adapters change the logits of their model, and the merged model those of the adapters.
COMPARE = """
import sys
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM
with torch.no_grad():
    model = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1])
    merged = AutoModelForCausalLM.from_pretrained(sys.argv[2])
    ids = torch.arange(3, 35)[None]
    adapted = model(ids).logits
    with model.disable_adapter():
        print((adapted - model(ids).logits).abs().max().item())
    print((adapted - merged(ids).logits).abs().max().item())
"""


def test_lora_trains_adapters_and_resumes_them(trl, toy, root, tmp_path):
    data = ("--model", toy / "model", "--train_dataset", toy / "pairs.jsonl")
    to = ("--eval_dataset", toy / "pairs.jsonl", "--output_dir", tmp_path)
    command = ["python", root / "stacks/trl/fine_tune.py", *data, *to, *OPTIONS]
    lora = ("--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")
    done = trl(*command, *lora, "--max_steps", "4", "--eval_steps", "2", env=ONE_THREAD)
    assert done.stdout.count("BLEU = ") == 3  # after steps 2 and 4, and at the end
    assert f"finished after step 4\nadapters  {tmp_path}\n" in done.stdout
    adapters = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (adapters["r"], set(adapters["target_modules"])) == (4, {"q_proj", "v_proj"})
    assert not (tmp_path / "model.safetensors").exists()

    (tmp_path / "eval_results.json").unlink()
    again = trl(*command, *lora, "--max_steps", "4", env=ONE_THREAD).stdout
    assert "finished after step 4" in again and "eval_bleu" in scores(tmp_path)
    on = trl(*command, *lora, "--max_steps", "6", env=ONE_THREAD).stdout
    assert f"from {tmp_path}/checkpoint-4 on 1 x cpu" in on and "finished after step 6" in on

    merged = tmp_path / "merged-model"
    for _ in range(2):
        exported = trl("bash", root / "stacks/trl/export.sh", tmp_path, env=ONE_THREAD)
        assert exported.stdout.splitlines()[-1] == str(merged)
    compared = trl("python", "-c", COMPARE, tmp_path, merged, env=ONE_THREAD).stdout
    changed, difference = map(float, compared.split()[-2:])
    assert changed > 1e-3 and difference < 1e-5  # float32; only the order of additions differs

    other = trl(*command, "--max_steps", "8", env=ONE_THREAD, check=False).stderr
    error, hint = other.splitlines()[-2:]
    was = f"{tmp_path}/checkpoint-6 was written with LoRA of rank 4"
    assert error == f"error: {was}, but this run has no LoRA"
    assert hint == "hint: give the same options, or another --run_name"


# It counts a letter that each row of the data names.
REWARDS = """\
def reward_letter(completions, letter, **kwargs):
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [text.count(each) for text, each in zip(texts, letter)]
"""
METHODS = ["dpo", "grpo"]


@pytest.fixture
def method(trl, toy, root, tmp_path):
    """Give a function that makes the command of a method other than fine-tuning."""

    def make(name, script="fine_tune.py", data=toy / "preferences.jsonl"):
        options = ["--method", name, "--train_dataset", data]
        if name == "grpo":
            (tmp_path / "rewards.py").write_text(REWARDS)
            options += ["--rewards", tmp_path / "rewards.py", "--max_completion_length", "8"]
        more = (*FAST, *LEARN, "--save_steps", "4", "--output_dir", tmp_path / "run")
        return ["python", root / "stacks/trl" / script, "--model", toy / "model", *options, *more]

    return make


def recorded(folder, name):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines]


def test_dpo_learns_to_prefer_and_is_scored_against_the_model_that_it_began_with(
    method, trl, toy, tmp_path
):
    command = method("dpo")
    evaluate = ("--eval_dataset", toy / "preferences.jsonl", "--max_steps", "20")
    trl(*command, *evaluate, env=ONE_THREAD)
    run = tmp_path / "run"
    margins = recorded(run, "reward_margin")
    assert (len(margins), margins[0]) == (20, 0) and margins[-1] > 1
    assert recorded(run, "reward_accuracy")[-1] == 1
    margin = scores(run)["eval_rewards/margins"]
    assert margin > 1

    (run / "eval_results.json").unlink()
    assert "finished after step 20" in trl(*command, *evaluate, env=ONE_THREAD).stdout
    assert scores(run)["eval_rewards/margins"] == pytest.approx(margin, rel=1e-4)

    other = trl(*method("grpo"), "--max_steps", "30", env=ONE_THREAD, check=False)
    error, hint = other.stderr.splitlines()[-2:]
    was = f"{run}/checkpoint-20 was written by the method dpo"
    assert error == f"error: {was}, but this run has grpo" and "another --run_name" in hint


def test_grpo_raises_a_reward_that_counts_a_letter(method, trl, toy, root, tmp_path):
    command = method("grpo", "run_training.sh")
    command[0] = "bash"
    evaluate = ("--eval_dataset", toy / "preferences.jsonl")
    done = trl(*command, *evaluate, "--max_steps", "40", env=ONE_THREAD)
    assert "25 examples to train with" in done.stdout
    rewards = recorded(tmp_path / "run", "reward")
    assert len(rewards) == 40
    assert sum(rewards[-5:]) > 4 * sum(rewards[:5])
    assert scores(tmp_path / "run")["eval_reward"] > 2 * rewards[0]
    exported = trl("bash", root / "stacks/trl/export.sh", tmp_path / "run", env=ONE_THREAD)
    assert exported.stdout.splitlines()[-1] == str(tmp_path / "run")


@pytest.mark.parametrize("name", METHODS)
def test_killed_and_resumed_run_equals_one_that_was_not(name, method, trl, tmp_path):
    command = [*method(name), "--max_steps", "30"]
    running = trl.start(*command, env=ONE_THREAD)
    steps = 0
    for line in running.stdout:
        steps += "'loss'" in line
        if steps == 6:
            os.killpg(running.pid, signal.SIGKILL)
            break
    running.communicate(timeout=PATIENCE)
    assert running.returncode == -signal.SIGKILL
    resumed = trl(*command, env=ONE_THREAD).stdout
    assert re.search(r"training from \S*/checkpoint-\d+ on 1 x cpu", resumed)
    whole = tmp_path / "whole"
    trl(*command, "--output_dir", whole, env=ONE_THREAD)
    assert losses(tmp_path / "run", 30) == losses(whole, 30)
    for file in ("model.safetensors", "checkpoint-30/model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()
    column = "reward" if name == "grpo" else "reward_margin"
    assert recorded(tmp_path / "run", column) == recorded(whole, column)


# The prompt as one message; the answer of the model is the next one.
TEMPLATE = """\
{%- for message in messages %}{{- message.content }}
{%- if message.role == 'assistant' %}{{- '</s>' }}{%- endif %}{%- endfor %}
"""


@pytest.mark.parametrize("name", METHODS)
def test_lora_trains_adapters_with_each_method_on_messages(name, method, trl, toy, root, tmp_path):
    shutil.copytree(toy / "model", tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").write_text(TEMPLATE)
    rows = [json.loads(line) for line in (toy / "preferences.jsonl").read_text().splitlines()]
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    for row in rows:
        row.update({key: [{"role": role, "content": row[key]}] for key, role in roles.items()})
    data = tmp_path / "messages.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lora = ("--lora_r", "4", "--model", tmp_path / "model", "--eval_dataset", data)
    command = [*method(name, data=data), *lora, "--max_steps", "8"]
    done = trl(*command, env=ONE_THREAD).stdout
    assert f"finished after step 8\nadapters  {tmp_path}/run\n" in done
    if name == "dpo":  # the reference is the model without adapters
        key = "eval_rewards/margins"
        before = scores(tmp_path / "run")[key]
        trl(*command, env=ONE_THREAD)
        assert 0 < before == pytest.approx(scores(tmp_path / "run")[key], rel=1e-4)
    exported = trl("bash", root / "stacks/trl/export.sh", tmp_path / "run", env=ONE_THREAD)
    merged = tmp_path / "run/merged-model"
    assert exported.stdout.splitlines()[-1] == str(merged)
    compared = trl("python", "-c", COMPARE, tmp_path / "run", merged, env=ONE_THREAD).stdout
    changed, difference = map(float, compared.split()[-2:])
    assert changed > 1e-4 and difference < 1e-5


RAISES = """\
import os

def reward_of_one(completions, **kwargs):
    return [1 / (os.environ["RANK"] != "1") for _ in completions]
"""


def test_reward_that_raises_on_one_rank_ends_all_with_one_error(method, trl, toy, root, tmp_path):
    python, *rest = method("grpo")
    (tmp_path / "rewards.py").write_text(RAISES)
    ranks = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--tee=3")
    done = trl(*ranks, *rest, "--max_steps", "4", env=ONE_THREAD, check=False)
    lines = [line for line in done.stderr.splitlines() if re.match(r"\[default\d\]:", line)]
    told = [line for line in lines if "error: " in line or "hint: " in line]
    place = f"{tmp_path}/rewards.py:4"
    assert done.returncode == 1
    assert told == [
        f"[default0]:error: {place}: ZeroDivisionError: division by zero",
        "[default0]:hint: correct the reward file, then run the same command again",
    ]
    assert not any("Traceback" in line for line in lines)


REFUSE = """
import json, sys, threading
sys.path.insert(0, sys.argv[1])
import fine_tune
folder, cases, said = sys.argv[3], json.loads(sys.argv[2]), []
for number, case in enumerate(cases):
    sys.argv[1:] = [*case, "--output_dir", f"{folder}/{number}"]
    try:
        fine_tune.fine_tune(threading.Event())
    except fine_tune.InputError as error:
        said.append((str(error), error.hint))
print(json.dumps(said))
"""
# Options besides those of a GRPO run that would train, the error, and a part of the hint.
REFUSED = {
    "--method ppo": ("unknown method: ppo", "sft, dpo, grpo"),
    "--use_vllm": ("--use_vllm requires the package vllm", "with transformers"),
    "--num_generations_eval 3": ("8, is not a multiple of 3 generations", "--per_device_eval"),
    "--num_generations 3": ("must be divisible by num_generations (3)", "--help"),
    "--rewards none.py": ("no Python file: none.py", "def reward_length"),
    "--rewards {tmp}/short.py": (
        "{tmp}/short.py:1: ValueError: reward_short returned 1 rewards for 8 completions",
        "correct the reward file",
    ),
    "--per_device_train_batch_size 64 --num_generations 2": (
        "a step needs 32 prompts, but the training data have 25",
        "more prompts",
    ),
    "--train_dataset {tmp}/messages.jsonl": ("model has no chat template", "answers as texts"),
}


def test_grpo_that_cannot_train_is_told_in_two_lines(method, trl, toy, root, tmp_path):
    (tmp_path / "short.py").write_text("def reward_short(**columns):\n    return [1]\n")
    message = {"prompt": [{"role": "user", "content": "one"}]}
    (tmp_path / "messages.jsonl").write_text(json.dumps(message) + "\n")
    options = [*map(str, method("grpo")[2:]), "--eval_dataset", f"{toy}/preferences.jsonl"]
    given = [each.replace("{tmp}", str(tmp_path)).split() for each in REFUSED]
    cases = json.dumps([[*options, "--max_steps", "1", *each] for each in given])
    done = trl("python", "-c", REFUSE, root / "stacks/trl", cases, tmp_path, env=ONE_THREAD)
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == len(REFUSED)
    for (error, hint), (message, advice) in zip(said, REFUSED.values()):
        assert message in error.replace(str(tmp_path), "{tmp}") and advice in hint
        assert "\n" not in error + hint


SEVERAL = """\
---
configs:
- {config_name: en-no, data_files: pairs.jsonl}
- {config_name: nn-no, data_files: pairs.jsonl}
---
"""
WRONG = {
    "no method": (["--method", "ppo"], "unknown method: ppo", "use one of: sft, dpo, grpo"),
    "no answer": (
        ["--method", "dpo", "--train_dataset", "{toy}/wanting.jsonl"],
        '{toy}/wanting.jsonl, line 3: no "rejected"',
        "dpo needs prompt, chosen, rejected",
    ),
    "no answer in a part": (
        ["--method", "dpo", "--train_dataset", "{toy}/wanting.jsonl:train[1:]"],
        'wanting.jsonl:train[1:], row 1: no "rejected"',
        "dpo needs prompt, chosen, rejected",
    ),
    "no prompts": (
        ["--method", "grpo", "--rewards", "{toy}/rewards.py"],
        '{toy}/pairs.jsonl, line 1: no "prompt"',
        "grpo needs prompt",
    ),
    "no text as prompt": (
        [
            "--method",
            "grpo",
            "--rewards",
            "{toy}/rewards.py",
            "--train_dataset",
            "{toy}/numbers.jsonl",
        ],
        "{toy}/numbers.jsonl: prompt must each be text, or each be messages",
        "a list of",
    ),
    "no rewards": (["--method", "grpo"], "grpo needs a Python file", "--rewards FILE.py"),
    "no file of rewards": (
        ["--method", "grpo", "--rewards", "{toy}/none.py"],
        "no Python file: {toy}/none.py",
        "def reward_length",
    ),
    "no reward in the file": (
        ["--method", "grpo", "--rewards", "{toy}/score.py"],
        "{toy}/score.py has no function whose name begins with reward",
        "def reward_length",
    ),
    "no Python in the file": (
        ["--method", "grpo", "--rewards", "{toy}/syntax.py"],
        "{toy}/syntax.py:2: SyntaxError: ",
        "correct the reward file",
    ),
    "no import": (
        ["--method", "grpo", "--rewards", "{toy}/ends.py"],
        "{toy}/ends.py:3: SystemExit: 0",
        "correct the reward file",
    ),
    "no file": (["--train_dataset", "none.jsonl"], "file not found: none.jsonl", "JSON Lines"),
    "no split": (
        ["--train_dataset", "{toy}/pairs.jsonl:test"],
        "{toy}/pairs.jsonl has no split test",
        "use one of: train",
    ),
    "no field": (
        ["--train_target_field", "translation.de"],
        "{toy}/pairs.jsonl has no field translation.de",
        "its fields are: translation.en, translation.no",
    ),
    "no text": (["--train_target_field", "number"], "field number of", "a field with text"),
    "no pairs": (["--train_target_field", "nothing"], "has no pairs of texts", "other fields"),
    "no JSON": (["--train_dataset", "{toy}/wrong.jsonl"], "cannot read", "one JSON object"),
    "no model": (["--model", "/none/model"], "no model in the directory /none", "config.json"),
    "no model here": (
        ["--model", "lab/model"],
        "the model lab/model is not in the cache",
        'add an [[assets]] entry with repo = "lab/model"',
    ),
    "no such configuration": (
        ["--eval-dataset", "{toy}/several:de:train"],
        "cannot read {toy}/several",
        "one of the configurations en-no, nn-no",
    ),
    "no dataset here": (
        ["--eval_dataset", "lab/pairs:en-no:test"],
        "the dataset lab/pairs is not in the cache",
        'repo = "lab/pairs" and kind = "dataset"',
    ),
}


def test_input_that_is_wrong_is_told_in_two_lines_before_anything_starts(trl, toy, root, tmp_path):
    """In one process, for importing the libraries takes longer than all the rest."""
    pairs = [json.loads(line) for line in (toy / "pairs.jsonl").read_text().splitlines()]
    more = [{**pair, "number": 1, "nothing": ""} for pair in pairs]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in more))
    (tmp_path / "wrong.jsonl").write_text("{oops\n")
    answers = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n\n{"prompt": "a", "chosen": "b"}\n'
    (tmp_path / "wanting.jsonl").write_text(answers)
    (tmp_path / "numbers.jsonl").write_text('{"prompt": 1}\n')
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "score.py").write_text("def score(): pass\nreward = 1\n")
    (tmp_path / "syntax.py").write_text("\ndef reward(:\n")
    (tmp_path / "ends.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "several").mkdir()
    (tmp_path / "several/README.md").write_text(SEVERAL)
    shutil.copy(toy / "pairs.jsonl", tmp_path / "several")
    cases = [
        [each.replace("{toy}", str(tmp_path)) for each in given] for given, _, _ in WRONG.values()
    ]
    program = (
        "import json, sys\nsys.path.insert(0, sys.argv[1])\nimport prepare_data\nsaid = []\n"
        "for case in json.loads(sys.argv[2]):\n"
        "    sys.argv[1:] = case\n"
        "    try:\n        prepare_data.main()\n"
        "    except SystemExit as end:\n        said.append(end.code)\n"
        "print(json.dumps(said))\n"
    )
    data = ["--model", str(toy / "model"), "--train_dataset", f"{tmp_path}/pairs.jsonl"]
    given = [[*data, *FIELDS, *case] for case in cases]
    folder = root / "stacks/trl"
    done = trl("python", "-c", program, folder, json.dumps(given))
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == len(WRONG)
    for text, (_, error, hint) in zip(said, WRONG.values()):
        first, second = text.replace(str(tmp_path), "{toy}").split("\n")
        assert first.startswith("error: ") and error in first
        assert second.startswith("hint: ") and hint in second
    command = ["bash", folder / "run_training.sh", "--model", "lab/model"]
    told = trl(*command, check=False)
    assert told.returncode == 1 and "Traceback" not in told.stderr
    assert told.stderr.splitlines()[-2].startswith("error: the model lab/model")


@pytest.mark.needs("apptainer")
def test_two_nodes_train_from_a_venv_and_a_chain_goes_on(job_clone):
    clone = job_clone()
    arguments = [*OPTIONS, "--eval_dataset", clone.pairs, "--wandb_project", "toy"]
    submitted = clone.submit(LOCAL, "--nodes=2", "--chain=2", "--", *arguments, *ENDLESS)
    first, second = submitted.stdout.split()
    clone.wait_until(first, lambda: "'loss'" in clone.slurm.log(first))
    # the second goes on to a step that the first one may not know
    clone.slurm.run(["scancel", "--signal=USR1", first])
    assert clone.slurm.wait(first, timeout=PATIENCE) == "COMPLETED", clone.slurm.log(first)
    log = clone.slurm.log(first)
    assert "from the beginning on 2 x cpu" in log and "stopped by a signal after step" in log
    assert log.count("container_run.py --online wandb sync") == 1
    assert list(clone.scratch.glob("runs/*/wandb/offline-run-*/*.wandb"))
    clone.wait_until(second, lambda: "'loss'" in clone.slurm.log(second))
    clone.slurm.run(["scancel", "--signal=USR1", second])
    assert clone.slurm.wait(second, timeout=PATIENCE) == "COMPLETED", clone.slurm.log(second)
    assert re.search(r"from \S.*/checkpoint-\d+ on 2 x cpu", clone.slurm.log(second))


@pytest.mark.needs("apptainer")
def test_two_nodes_train_from_an_overlay(job_clone):
    clone = job_clone('[packages]\noverlay = "myenv"\ncompression = "lz4"\n')
    arguments = [*OPTIONS, *STEPS, "--eval_dataset", clone.pairs, "--run_name", "overlay"]
    run = clone.finish(LOCAL, "--nodes=2", "--", *arguments)
    assert "on 2 x cpu" in run.log and "BLEU = " in run.log
    assert run.record["overlay"].endswith(".sqsh")
    check_that_it_learned(clone.scratch / "checkpoints/overlay", 50)
