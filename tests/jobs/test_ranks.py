"""How ranks are started on a node: the options of torchrun, signals, exit codes."""

import os
import signal
import time

import pytest
from support import processes

# It stands for torchrun: one rank, which notes each signal that it gets and ends at the first.
TORCHRUN = """\
#!/usr/bin/env bash
printf '%s\\n' "$@" >"$FOLDER/arguments"
env >"$FOLDER/environment"
if [[ $2 != torch.distributed.run ]]; then
    trap -p USR1 >"$FOLDER/traps"
    exit 5
fi
trap -p USR1 >"$FOLDER/traps"
trap 'echo torchrun was told >>"$FOLDER/told"' TERM
/usr/bin/env python3 "$FOLDER/rank.py" & # bash could not trap what it was started to ignore
wait $!
exit 7
"""
RANK = """\
import os, signal, sys, time

def tell(number, _):
    with open(os.environ["FOLDER"] + "/told", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    sys.exit()

for each in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(each, tell)
os.mkdir(os.environ["FOLDER"] + "/ready")  # open() imports, amid which none can open
while True:
    time.sleep(0.05)
"""
SCRIPT = """\
source "$LONGSHIP_ROOT/lib/jobs/inside/ranks.bash"
{before}
printf '%s' "$world_size" >"$FOLDER/world_size"
start_ranks train.py --steps "1 0" "$@"
"""


@pytest.fixture
def start(root, tmp_path):
    """Give a function that starts a stack's script with a torchrun that only tells."""
    program = tmp_path / "programs/python"
    program.parent.mkdir()
    program.write_text(TORCHRUN)
    program.chmod(0o755)
    (tmp_path / "rank.py").write_text(RANK)
    running = []

    def run(*arguments, before="", **variables):
        environment = {
            **{"PATH": f"{program.parent}:/usr/bin:/bin", "LONGSHIP_ROOT": str(root)},
            **{"FOLDER": str(tmp_path), **variables},
        }
        script = ["bash", "-euo", "pipefail", "-c", SCRIPT.format(before=before), "x", *arguments]
        running.append(processes.start(script, env=environment))
        return running[-1]

    yield run
    for each in running:
        processes.end_group(each)
        each.communicate()


def words(tmp_path, name="arguments"):
    return (tmp_path / name).read_text().splitlines()


def until_ready(tmp_path, started):
    processes.wait_until(lambda: (tmp_path / "ready").exists() or started.poll() is not None)
    assert started.poll() is None


@pytest.mark.parametrize(
    ("sent", "before", "told"),
    [
        (signal.SIGUSR1, "", ["SIGUSR1"]),
        (signal.SIGUSR1, "checkpoint_signal=TERM", ["SIGTERM"]),
        (signal.SIGTERM, "", ["SIGTERM"]),
    ],
)
def test_ranks_are_told_and_torchrun_is_not(sent, before, told, start, tmp_path):
    started = start(before=before)
    until_ready(tmp_path, started)
    started.send_signal(sent)
    assert started.wait(processes.PATIENCE) == 7  # torchrun's own
    assert words(tmp_path, "told") == told


@pytest.mark.parametrize(
    ("before", "told"), [("", ["SIGUSR1"]), ("checkpoint_signal=TERM", ["SIGTERM"])]
)
def test_ctrl_c_asks_the_ranks_for_a_checkpoint(before, told, start, tmp_path):
    started = start(before=before)
    until_ready(tmp_path, started)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal: also to torchrun and the rank
    assert started.wait(processes.PATIENCE) == 7
    assert words(tmp_path, "told") == told


def test_second_ctrl_c_ends_ranks_at_once(start, tmp_path):
    rank = tmp_path / "rank.py"
    rank.write_text(rank.read_text().replace("    sys.exit()", "    time.sleep(1000)"))
    started = start()
    until_ready(tmp_path, started)
    os.killpg(started.pid, signal.SIGINT)
    processes.wait_until((tmp_path / "told").exists)
    os.killpg(started.pid, signal.SIGINT)  # the same one, passed on by a runtime
    time.sleep(2.5)
    assert started.poll() is None
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(processes.PATIENCE) == 7
    assert words(tmp_path, "told")[0] == "SIGUSR1"


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM])
def test_rank_that_slurm_starts_is_told_what_its_program_knows(sent, start, tmp_path):
    (tmp_path / "programs/python").write_text('#!/bin/sh\nexec python3 "$FOLDER/rank.py"\n')
    started = start(before="checkpoint_signal=TERM", LOCAL_WORLD_SIZE="8")
    until_ready(tmp_path, started)
    started.send_signal(sent)
    assert started.wait(processes.PATIENCE) == 0
    assert words(tmp_path, "told") == ["SIGTERM"]


def test_torchrun_ignores_the_signal_before_it_has_a_handler(start, tmp_path):
    started = start()
    until_ready(tmp_path, started)
    assert words(tmp_path, "traps") == ["trap -- '' SIGUSR1"]


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, ["--nnodes=1", "--nproc-per-node=1", "--standalone"]),
        ({"GPUS_PER_NODE": "4"}, ["--nnodes=1", "--nproc-per-node=4", "--standalone"]),
        (
            {"NUM_NODES": "2", "MASTER_ADDR": "ai", "MASTER_PORT": "9", "SLURM_NODEID": "1"},
            [
                *("--nnodes=2", "--nproc-per-node=1"),
                *("--node-rank=1", "--master-addr=ai", "--master-port=9"),
            ],
        ),
        (
            {"NUM_NODES": "2", "MASTER_ADDR": "ai", "MASTER_PORT": "9", "NODE_RANK": "0"},
            [
                *("--nnodes=2", "--nproc-per-node=1"),
                *("--node-rank=0", "--master-addr=ai", "--master-port=9"),
            ],
        ),
    ],
)
def test_torchrun_is_given_the_shape_of_the_job(variables, options, start, tmp_path):
    started = start("it's", **variables)
    until_ready(tmp_path, started)
    own = ["train.py", "--steps", "1 0", "it's"]
    assert words(tmp_path) == ["-m", "torch.distributed.run", *options, "--tee=3", *own]
    size = int(variables.get("NUM_NODES", 1)) * int(variables.get("GPUS_PER_NODE", 1))
    assert words(tmp_path, "world_size") == [str(size)]


def test_variables_of_the_user_reach_torchrun(start, tmp_path):
    exported = dict.fromkeys(("status", "own", "threads", "rendezvous", "started"), "mine")
    until_ready(tmp_path, start(**exported))
    assert {f"{name}=mine" for name in exported} <= {*words(tmp_path, "environment")}


def test_rank_that_slurm_starts_is_python_itself(start, tmp_path):
    started = start("more", LOCAL_WORLD_SIZE="8")
    assert started.wait(processes.PATIENCE) == 5
    assert words(tmp_path) == ["train.py", "--steps", "1 0", "more"]
    assert words(tmp_path, "traps") == ["trap -- '' SIGUSR1"]


def test_without_an_address_several_nodes_are_told(start):
    started = start(NUM_NODES="2", NODE_RANK="0")
    _, said = started.communicate(timeout=processes.PATIENCE)
    assert started.returncode != 0
    assert "MASTER_ADDR" in said
