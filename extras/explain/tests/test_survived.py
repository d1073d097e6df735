"""What a run has survived is not why it ended."""

import io

import pytest

from extras.explain.explain import load_messages
from extras.explain.log_scan import Scan

MESSAGES = load_messages()
RUN = "longship: run /scratch/runs/7-train\n"
ECC = "3: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
ENDED = "srun: error: node2: task 3: Exited with exit code 1\n"
OUT_OF_MEMORY = "srun: error: node1: task 0: Out Of Memory\n"


def read(text):
    """Return the topic of the first finding, if any."""
    scan = Scan(MESSAGES)
    scan.read(io.BytesIO(text.encode()))
    return scan.findings[0].message.topic if scan.findings else ""


def steps(first, last, label="0: ", minute=None):
    """Give lines of steps; with the minutes at which they were printed, one per step."""
    at = "" if minute is None else "2026-01-02 03:{:02}:00 "
    lines = (at.format((minute or 0) + n - first) + f"step {n}/900" for n in range(first, last))
    return "".join(f"{label}{line}\n" for line in lines)


def test_of_earlier_attempts_nothing_is_read():
    text = f"{RUN}step 9/100\nModuleNotFoundError: No module named 'x'\n{RUN}going on\n"
    assert read(text) == ""


def test_step_of_another_rank_does_not_mean_that_a_finding_is_survived():
    """The lines of ranks are not ordered: a neighbour still prints its step after the error."""
    text = f"{RUN}{steps(1, 5)}{ECC}{steps(5, 7)}{ENDED}slurmstepd: error: *** STEP 7.0 ON node1 "
    assert read(f"{text}CANCELLED AT 2026-01-02T03:04:05 ***\n") == "GPU broken"
    # nor many steps in a moment, or few in minutes
    for later in (steps(5, 90), steps(5, 12, minute=1)):
        assert read(f"{RUN}{steps(1, 5)}{ECC}{later}{ENDED}") == "GPU broken"


@pytest.mark.parametrize(
    "later",
    [
        steps(5, 7, label="3: "),  # the same rank
        steps(5, 20, minute=1),  # several steps and minutes
        steps(5, 120),  # without times
    ],
)
def test_finding_that_the_run_has_survived_is_not_told(later):
    assert read(f"{RUN}{steps(1, 5)}{ECC}{later}{OUT_OF_MEMORY}") == "out of memory"
    assert read(f"{RUN}{steps(1, 5)}{ECC}{later}{ENDED}") == ""  # nothing takes its place


@pytest.mark.parametrize("label", ["", "1: "])
def test_message_survived_at_the_start_is_not_told(label):
    """As after 13 good steps: "package missing"."""
    missing = "ModuleNotFoundError: No module named 'wandb'\n"
    assert read(f"{RUN}{label}{missing}{steps(1, 14)}{ENDED}") == ""
    assert read(f"{RUN}{label}{missing}{ENDED}") == "package missing"


def test_a_message_for_which_the_watcher_ended_a_step_is_its_cause():
    line = "0: Loss is nan, stopping training\n"
    survived = f"{RUN}{steps(1, 5)}{line}{steps(5, 7)}"
    ended = f"longship: the ranks cannot continue: {line[:-1]}: ending 7.0\n"
    assert read(f"{survived}{OUT_OF_MEMORY}") == "out of memory"
    after = "0: stopped by a signal after step 7 of 900\n"
    assert read(f"{survived}{ended}{after}{ENDED}") == "loss is not a number"
