"""What --dry-run prints: all that will run, here and later; on a terminal, the plans alone."""

import subprocess

import pytest
from support.repository import Clone
from support.terminal import Terminal

from lib import ROOT

JOB = "local/run_training_local.sbatch"


@pytest.fixture
def clone(tmp_path, clean_environment):
    made = Clone(ROOT, tmp_path / "it's a clone", clean_environment)
    made.configure(f'container.runtime = "host"\npaths.scratch_dir = "{tmp_path}/s"\n')
    return made


@pytest.mark.extras("usage")
def test_printed_job_can_be_piped_into_bash(clone):
    """What a job runs later is printed below, and bash does not come to it."""
    printed = clone.dry_run("submit.py", JOB, "--", "--steps", "1 0")
    submission, start, sampler, launcher = printed.split("\nexit\n\n# ====================")
    assert "submission_send" in submission and "submission_send" not in start + sampler + launcher
    assert start.startswith(f" on the first node, where start_job in {JOB} sources it\n#!/usr/bin")
    assert launcher.startswith(' for each rank, outside the container: srun "$LAUNCHER" COMMAND\n')
    assert "  command_exec /bin/sh -c " in launcher
    ended = subprocess.run(
        ["bash"],
        input=printed.replace('longship_main "$@"', "echo submitted; false", 1),
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.returncode) == ("submitted\n", 1)


def test_price_is_told_next_to_the_script(clone):
    job = clone.type("submit.py", JOB, "--nodes=2", "--dry-run")
    assert job.stderr.endswith("note: train: 2 nodes for at most 01:00:00\n")


@pytest.mark.extras("scale")
def test_price_of_a_study_is_told_next_to_the_script(clone):
    words = ["scale", JOB, "--nodes=1,2", "--batch=8", "--dry-run"]
    assert ": 2 jobs on 1, 2 nodes, 50 steps each\n" in clone.type("submit.py", *words).stderr


def test_job_that_starts_no_run_is_one_script(clone):
    job = clone.root / "local/own.sbatch"
    job.write_text("#!/bin/bash\n#SBATCH --job-name=own\ntrue\n")
    assert "\nexit\n" not in clone.dry_run("submit.py", "local/own.sbatch")


def test_job_in_which_it_is_typed_is_not_the_one_that_is_shown(clone):
    typed = [*clone.command("submit.py", "--dry-run", JOB)]
    theirs = {
        **{"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURM_CLUSTER_NAME": "c"},
        **{"LONGSHIP_JOB_RERUN": "/gone", "LONGSHIP_JOB_VALUES": "/gone"},
    }
    words = {"cwd": clone.root, "capture_output": True, "text": True, "check": True}
    alone, inside = (
        subprocess.run(typed, env={**clone.environment, **more}, **words).stdout
        for more in ({}, theirs)
    )
    assert alone == inside


@pytest.mark.extras("usage")
@pytest.mark.parametrize(
    ("script", "words", "plans"), [("container_run.py", ["true"], 1), ("submit.py", [JOB], 4)]
)
def test_terminal_shows_the_plans(script, words, plans, clone):
    command = clone.command(script, "--dry-run", *words)
    with Terminal(command, env=clone.environment, cwd=clone.root) as terminal:
        assert terminal.end() == 0
    said = terminal.said.replace("\r\n", "\n")
    assert said.endswith("\n# to see the functions too, append to the command: | less\n")
    scripts = clone.dry_run(script, *words).split("\nexit\n\n")
    assert len(scripts) == plans == said.count("longship_main() {")
    for each in scripts:
        plan, rest = each.split("\n}\n", 1)
        lines = rest.count("\n")
        assert f"{plan}\n}}\n# {lines} lines follow: the functions that it calls\n" in said
