"""What docs/how-to/configure.md says of each stack: where it writes, records, stops, resumes."""

import re
from pathlib import Path

import pytest
from support.stacks import start

import training_run.metrics

ROOT = Path(__file__).resolve().parents[1]
STACKS = sorted(path.parent.name for path in ROOT.glob("stacks/*/run_training.sh"))
# A machine that has an image of the stack, and what run_training.sh starts there that lets the
# trainer write a checkpoint and end before the time limit; the others have a handler in Python.
STARTED = {
    "megatron-lm": ("berzelius", "--exit-signal-handler"),
    "megatron-bridge": ("jwb", "train.exit_signal_handler=true"),
    "nemo": ("aws", "training.exp_manager.resume_if_exists=True"),
    "olmo": ("lumi", "--time_limit="),
    "olmo-core": ("lumi", "--trainer.callbacks.longship="),
    "torchtitan": ("jwb", "--module=longship_titan"),
}
HANDLED = {
    "pytorch": "training_run/process.py",
    "trl": "stacks/trl/fine_tune.py",
    "olmo-core": "stacks/olmo-core/longship_olmo.py",
    "torchtitan": "stacks/torchtitan/longship_titan.py",
}


def section():
    page = (ROOT / "docs/how-to/configure.md").read_text(encoding="utf-8")
    return page.partition("### What a stack reports\n")[2].partition("\n## ")[0]


def rows():
    """Give the cells of each stack's row, after its name."""
    lines = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", section(), re.M)
    return {stack: cells.split(" | ") for stack, cells in lines if stack in STACKS}


def words_of(stack, folder):
    """Give all words that run_training.sh starts, with a time limit and validation."""
    machine, _ = STARTED[stack]
    more = {"SLURM_JOB_END_TIME": "9999999999"}
    settings = "[training]\nvalidation_interval = 10\n" if stack == "nemo" else ""
    done, calls = start(ROOT, stack, machine, folder, configuration=settings, more=more)
    assert calls, done.stderr
    return [word for _, words in calls for word in words]


def test_every_stack_has_a_row():
    assert sorted(rows()) == STACKS


@pytest.mark.parametrize("stack", STACKS)
def test_stack_that_is_said_to_write_metrics_does(stack):
    trainer = ["train.py"] if stack == "pytorch" else []
    files = [*ROOT.glob(f"stacks/{stack}/*.py"), *(ROOT / name for name in trainer)]
    writes = any("from training_run.metrics import" in file.read_text("utf-8") for file in files)
    said = rows()[stack][2]
    assert said.startswith("a line per " if writes else "no: see ")


@pytest.mark.parametrize("stack", STACKS)
def test_stack_that_is_said_to_export_does(stack):
    assert (rows()[stack][5] != "no") == (ROOT / f"stacks/{stack}/export.sh").is_file()


@pytest.mark.parametrize("stack", STARTED)
def test_directory_of_a_run_is_where_it_is_said(stack, tmp_path):
    # run_name is that of the stack by default
    ends = rows()[stack][0].strip("`").replace("<run_name>", stack).replace("/<model>", "")
    assert any(f"/checkpoints/{ends}" in word for word in words_of(stack, tmp_path))


@pytest.mark.parametrize("stack", STACKS)
def test_trainer_is_asked_to_write_a_checkpoint_before_the_time_limit(stack, tmp_path):
    assert "writes a checkpoint" in rows()[stack][3] or stack == "nemo"
    if stack in HANDLED:
        assert "SIGUSR1" in (ROOT / HANDLED[stack]).read_text(encoding="utf-8")
    if stack in STARTED:
        assert any(STARTED[stack][1] in word for word in words_of(stack, tmp_path))
    term = "checkpoint_signal=TERM" in (ROOT / f"stacks/{stack}/run_training.sh").read_text("utf-8")
    assert term or stack in HANDLED or stack == "olmo"  # USR1 would end a trainer without a handler


def test_fields_are_those_of_the_code():
    listed = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", section(), re.M)))
    fields = [each for each in listed if each not in STACKS and not each.startswith("run_")]
    assert sorted(fields) == sorted(re.findall(r"`(\w+)`", training_run.metrics.__doc__))
