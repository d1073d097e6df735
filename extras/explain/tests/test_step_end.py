"""What a log tells of the end of a step, for programs: what the run survived is not its end."""

import json

import pytest

from extras.explain.explain import explain

NODES = ["node1", "node2", "jwb0456"]
RUN = "longship: run /scratch/runs/7-train\n"
ECC = "3: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
ENDED = "srun: error: node2: task 3: Exited with exit code 1\n"
OUT_OF_MEMORY = "srun: error: node1: task 0: Out Of Memory\n"


@pytest.fixture
def read(tmp_path, capsys):
    """Give a function that reads the end of a step from the text of a log."""

    def end(text):
        (tmp_path / "a log").write_text(text)
        explain(str(tmp_path / "a log"), None, as_json=True, nodes=NODES)
        return json.loads(capsys.readouterr().out)["end"]

    return end


def end_of(topic, restart="", step=None, nodes=()):
    """Without other evidence, the message of this topic is what is known against the nodes."""
    reasons = dict.fromkeys(nodes if restart == "node" else (), topic)
    facts = {"topic": topic, "restart": restart, "step": step}
    return {**facts, "nodes": [*nodes], "reasons": reasons}


def steps(first, last, label="0: ", minute=None):
    """Give lines of steps; with the minutes at which they were printed, one per step."""
    at = "" if minute is None else "2026-01-02 03:{:02}:00 "
    lines = (at.format((minute or 0) + n - first) + f"step {n}/900" for n in range(first, last))
    return "".join(f"{label}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 12/400  loss 2.1", 12),  # train.py
        ("training from /c/step-00000030.pt to step 400 on 4 x cuda", 30),
        ("training from the beginning to step 400 on 4 x cuda", None),
        (" iteration      130/   20000 | consumed samples: 9", 130),  # Megatron-LM
        ("\x1b[31mstep: 10  \x1b[32mloss:  8.0", 10),  # TorchTitan
        ("[step=7/100,epoch=1]", 7),  # OLMo-core
        ("training from /c/checkpoint-50 on 4 x cuda", 50),  # TRL
        ("2: [rank 3] iteration 197/200 | loss", 197),
        ("Train step 3 of 5", 3),
        ("slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED ***", None),
        ("time per step 0.5 s, steps 100", None),
    ],
)
def test_step_is_read_as_the_stacks_print_it(line, step, read):
    assert read(f"{RUN}0: {line}\n")["step"] == step


def test_of_earlier_attempts_nothing_is_read(read):
    text = f"{RUN}step 9/100\nModuleNotFoundError: No module named 'x'\n{RUN}going on\n"
    assert read(text) == end_of("")


def test_node_is_that_of_the_line_or_of_its_task(read):
    assert read(f"{RUN}{ECC}{ENDED}") == end_of("GPU broken", "node", None, ("node2",))
    ended = "srun: error: node1: tasks 0-1: Terminated\nsrun: error: node2: tasks 2,4-7: Killed\n"
    assert read(f"{RUN}5{ECC[1:]}{ended}")["nodes"] == ["node2"]
    assert read(f"{RUN}{ECC}")["nodes"] == []  # of an unknown one
    failed = (
        "srun: error: Task launch for StepId=7.1 failed on node jwb0456: Communication failure\n"
    )
    assert read(RUN + failed) == end_of("node does not answer", "node", None, ("jwb0456",))


def test_node_that_reports_the_failure_of_another_one_is_not_to_blame(read):
    text = f"{RUN}slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT {{}} DUE TO NODE FAILURE ***\n"
    assert read(text.format("2026-01-01T00:00:00")) == end_of("node failed", "node")


def test_evidence_of_a_node_wins_over_what_else_is_known(read):
    text = f"{RUN}0: ModuleNotFoundError: No module named 'x'\nsrun: error: Node failure on node2\n"
    assert read(text) == end_of("node failed", "node", None, ("node2",))


def test_step_of_another_rank_does_not_mean_that_a_finding_is_survived(read):
    """The lines of ranks are not ordered: a neighbour still prints its step after the error."""
    text = f"{RUN}{steps(1, 5)}{ECC}{steps(5, 7)}{ENDED}slurmstepd: error: *** STEP 7.0 ON node1 "
    text += "CANCELLED AT 2026-01-02T03:04:05 ***\n"
    assert read(text) == end_of("GPU broken", "node", 6, ("node2",))
    # nor many steps in a moment, or few in minutes
    for later in (steps(5, 90), steps(5, 12, minute=1)):
        assert read(f"{RUN}{steps(1, 5)}{ECC}{later}{ENDED}")["topic"] == "GPU broken"


@pytest.mark.parametrize(
    "later",
    [
        steps(5, 7, label="3: "),  # the same rank
        steps(5, 20, minute=1),  # several steps and minutes
        steps(5, 120),  # without times
    ],
)
def test_finding_that_the_run_has_survived_decides_nothing(later, read):
    found = read(f"{RUN}{steps(1, 5)}{ECC}{later}{OUT_OF_MEMORY}")
    assert (found["topic"], found["restart"], found["nodes"]) == ("out of memory", "", [])
    # and nothing takes its place
    found = read(f"{RUN}{steps(1, 5)}{ECC}{later}{ENDED}")
    assert (found["topic"], found["restart"], found["nodes"]) == ("", "", [])


def test_message_survived_at_the_start_decides_nothing(read):
    """As after 13 good steps: "package missing ... would fail again"."""
    missing = "ModuleNotFoundError: No module named 'wandb'\n"
    for label in ("", "1: "):
        found = read(f"{RUN}{label}{missing}{steps(1, 14)}{ENDED}")
        assert (found["topic"], found["restart"]) == ("", "")
        assert read(f"{RUN}{label}{missing}{ENDED}")["restart"] == "never"


def test_what_merely_follows_never_decides_alone(read):
    timeout = "0: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
    assert read(RUN + timeout + ENDED) == end_of("NCCL timeout")


def test_a_message_for_which_the_watcher_ended_a_step_is_its_cause(read):
    line = "0: Loss is nan, stopping training\n"
    survived = f"{RUN}{steps(1, 5)}{line}{steps(5, 7)}"
    ended = f"longship: the ranks cannot continue: {line[:-1]}: ending 7.0\n"
    assert read(f"{survived}{OUT_OF_MEMORY}")["topic"] == "out of memory"
    after = "0: stopped by a signal after step 7 of 900\n"
    assert read(f"{survived}{ended}{after}{ENDED}") == end_of("loss is not a number", "never", 7)


def test_node_that_is_behind_or_does_not_answer_is_not_to_blame(read):
    silent = f"{RUN}longship: no output for 1800 seconds: ending 7.0\n"
    process = "longship: NCCL:   Process 7 on node node2 managing GPU 5\n"
    rank = "longship: NCCL:   Rank 3 -- GPU 3 managed by process 9 on node node2\n"
    assert read(silent + process + rank) == end_of("no output")


def test_what_several_nodes_print_is_evidence_against_none(read):
    broken = "{}: Failed to initialize NVML: Driver/library version mismatch\n"
    ends = "".join(
        f"srun: error: {node}: task {task}: Exited with exit code 1\n"
        for task, node in enumerate(NODES)
    )
    one = RUN + 2 * broken.format(1) + ends
    assert read(one) == end_of("GPU broken", "node", nodes=("node2",))
    several = RUN + broken.format(1) + broken.format(2) + ends
    assert read(several) == end_of("GPU broken", "node")


def test_rank_without_its_task_names_no_node(read):
    rank = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    ends = "srun: error: node1: task 0: Exited with exit code 1\n"
    ends += "srun: error: node2: task 1: Terminated\n"
    assert read(RUN + rank + ends) == end_of("GPU broken", "node")
