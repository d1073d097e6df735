"""What a log tells of the end of a step, for programs."""

import json
import socket

import pytest

from extras.explain.explain import TABLE, explain, load_messages
from lib.configuration.tables import read_toml

NODES = ["node1", "node2", "jwb0456"]
RUN = "longship: run /scratch/runs/7-train\n"


@pytest.fixture
def read(tmp_path, capsys):
    """Give a function that reads the end of a step from the text of a log."""

    def end(text):
        (tmp_path / "a log").write_text(text)
        explain(str(tmp_path / "a log"), None, as_json=True, nodes=NODES)
        return json.loads(capsys.readouterr().out)["end"]

    return end


def end_of(topic, restart="", step=None, nodes=()):
    return {"topic": topic, "restart": restart, "step": step, "nodes": [*nodes]}


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
    broken = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    ended = "srun: error: node2: task 3: Exited with exit code 1\n"
    assert read(f"{RUN}step 5/9\n3: {broken}{ended}") == end_of("GPU broken", "node", 5, ("node2",))
    ended = "srun: error: node1: tasks 0-1: Terminated\nsrun: error: node2: tasks 2,4-7: Killed\n"
    assert read(f"{RUN}step 5/9\n5: {broken}{ended}")["nodes"] == ["node2"]
    assert read(f"{RUN}3: {broken}")["nodes"] == []  # of an unknown one
    failed = (
        "srun: error: Task launch for StepId=7.1 failed on node jwb0456: Communication failure\n"
    )
    assert read(RUN + failed) == end_of("step not started", "node", None, ("jwb0456",))


def test_evidence_of_a_node_wins_over_what_else_is_known(read):
    text = (
        f"{RUN}step 5/9\n0: torch.distributed: ModuleNotFoundError: No module named 'x'\n"
        "srun: error: Node failure on node2\n"
    )
    assert read(text) == end_of("node failed", "node", 5, ("node2",))


def test_what_a_run_has_survived_is_not_why_it_ended(read):
    early = "0: OSError: [Errno 28] No space left on device\n"
    late = "srun: error: node1: task 0: Out Of Memory\n"
    assert read(f"{RUN}{early}{late}")["topic"] == "disk full"
    assert read(f"{RUN}{early}0: step 5/9\n{late}")["topic"] == "out of host memory"


def test_a_message_for_which_the_watcher_ended_a_step_is_its_cause(read):
    early = f"{RUN}0: OVERFLOW! Attempted loss scale: 0, reducing to 0.0\n0: step 5/9\n"
    ended = (
        "longship: the ranks cannot continue: 0: OVERFLOW! Attempted loss scale: 0, reducing to 0.0"
    )
    late = "srun: error: node1: task 0: Out Of Memory\n"
    assert read(f"{early}{late}")["topic"] == "out of host memory"
    assert read(f"{early}{ended}: ending 7.0\n{late}") == end_of("loss is not a number", "never", 5)


def test_nccl_names_a_node_unless_it_names_several(read, monkeypatch):
    names = {"10.0.0.2": "node2.cluster", "10.0.1.9": "jwb0456i.juwels", "10.0.0.1": "node1"}
    monkeypatch.setattr(socket, "getfqdn", lambda address: names.get(address, address))
    silent = f"{RUN}longship: no output for 1800 seconds: ending 7.0\n"
    process = "longship: NCCL:   Process 7 on node {} managing GPU 5\n"
    rank = "longship: NCCL:   Rank 3 -- GPU 3 managed by process 9 on node {}\n"
    assert read(silent + process.format("10.0.0.2")) == end_of("no output", nodes=("node2",))
    assert read(silent + 2 * rank.format("10.0.1.9"))["nodes"] == ["jwb0456"]
    assert read(silent + rank.format("10.0.1.9") + process.format("10.0.0.1"))["nodes"] == []
    assert read(silent + process.format("10.9.9.9"))["nodes"] == []


def test_table_of_restarts_names_topics_that_exist():
    words = {each.topic: each.restart for each in load_messages()}
    tables, _ = read_toml(TABLE, "the table")
    listed = {word: set(topics) for word, topics in tables["restart"].items()}
    for word in ("never", "node"):
        assert {topic for topic, own in words.items() if own == word} == listed.pop(word)
    assert not listed
    never = ("module missing", "disk full", "configuration of a program", "ImportError", "data")
    assert all(words[each] == "never" for each in never)
    for each in ("out of host memory", "out of GPU memory", "NCCL timeout", "no output"):
        assert words[each] == ""  # a leak, or a link that failed for seconds
