"""The decisions after a failed step, and the bash of the watcher."""

import socket
import threading

import pytest
from support.stacks import settings_of

from extras.restarts.watcher import End, decide, final_messages, watch_limits
from lib.script.command import array
from lib.script.errors import LongshipError
from lib.script.render import render

HOUR = 3600
SAME = "not restarted: it failed twice in the same way at the same step"
NEVER = "not restarted: it would fail again"


@pytest.mark.parametrize(
    ("end", "action", "line"),
    [
        (End(137, "out of memory"), "again", "restart 1 of 3 on the same nodes"),
        (End(1), "again", "restart 1 of 3 on the same nodes"),
        (End(1, "no output", "", 5), "again", "restart 1 of 3 on the same nodes"),
        (End(1, "module missing", "never"), "stop", NEVER),
        (End(1, "disk full", "never", 900, ("node2",)), "stop", NEVER),
        (
            End(1, "GPU broken", "node", 7, ("n2", "n4")),
            "requeue",
            "requeued without n2, n4: restart 1 of 3",
        ),
        # it is not known which one
        (End(1, "node failed", "node"), "again", "restart 1 of 3 on the same nodes"),
    ],
)
def test_first_failure(end, action, line):
    found = decide(end, [], 3, HOUR)
    assert found[0] == action
    assert found[1].endswith(f"; {line}")


def test_line_names_step_way_and_exit_code():
    assert decide(End(9, "", "", 30), [], 1, HOUR)[1] == (
        "attempt 1 ended at step 30: exit code 9; restart 1 of 1 on the same nodes"
    )
    assert decide(End(9, "no output"), [], 0, HOUR)[1] == (
        "attempt 1 ended: no output (exit code 9); not restarted: jobs.restarts is 0"
    )


@pytest.mark.parametrize(
    ("steps", "topics", "action"),
    [
        ((10, 10), ("a", "a"), "stop"),
        ((10, 9), ("a", "a"), "stop"),  # another rank was the first to fail
        ((None, None), ("a", "a"), "stop"),
        ((10, None), ("a", "a"), "stop"),
        ((None, 10), ("a", "a"), "again"),
        ((10, 11), ("a", "a"), "again"),
        ((10, 10), ("a", "b"), "again"),
        ((10, 10), ("", ""), "stop"),
        ((10, 10, 10), ("a", "b", "a"), "stop"),
        ((10, 20, 30, 40), ("a", "a", "a", "a"), "stop"),  # three are allowed
    ],
)
def test_same_way_at_the_same_step(steps, topics, action):
    lines = []
    for number, (step, topic) in enumerate(zip(steps, topics)):
        # the exit code is that of any rank, which others have ended
        found = decide(End(1 if topic == "" else 1 + number, topic, "", step), lines, 3, HOUR)
        lines.append(found[1])
    assert found[0] == action
    assert found[1].endswith(SAME) == (action == "stop" and len(steps) < 4)


def test_requeued_twice_for_two_nodes():
    first = decide(End(1, "GPU broken", "node", 5, ("n1",)), [], 2, HOUR)
    second = decide(End(1, "GPU broken", "node", 6, ("n2",)), [first[1]], 2, HOUR)
    assert (first[0], second[0]) == ("requeue", "requeue")


def test_time_limit_is_left_to_the_next_job_of_a_chain():
    end = End(1, "NCCL timeout")
    assert decide(end, [], 3, 299)[0] == "next"
    assert decide(end, [], 3, 301)[0] == "again"
    # a requeued job has its whole time
    assert decide(end._replace(nodes=("n1",)), [], 3, 10)[0] == "requeue"


@pytest.mark.parametrize(
    ("nodes", "left", "spares", "action"),
    [
        (("n1",), HOUR, 1, "again"),
        (("n1", "n2"), HOUR, 1, "requeue"),
        (("n1",), HOUR, 0, "requeue"),
        (("n1",), 10, 1, "requeue"),  # which gives it its whole time
        ((), 10, 1, "next"),
    ],
)
def test_faulty_nodes_are_replaced_if_enough_are_spare(nodes, left, spares, action):
    found = decide(End(1, "GPU broken", "node", 5, nodes), [], 2, left, spares)
    assert found[0] == action
    assert ("restart 1 of 2 without n1" in found[1]) == (action == "again")


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("[deepspeed] OVERFLOW! Attempted loss scale: 0.1, reducing to 0.05", False),
        ("Reducing learning rate: reducing to 0.0", False),
        ("no GPU has fallen off the bus", False),
        ('if "we are taking the entire process down" is printed, look above', False),
        ("NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", True),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", True),
        ("[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)", True),
    ],
)
@pytest.mark.parametrize("label", ["", " 3: "])
def test_lines_that_end_a_step_are_those_of_a_run_that_cannot_continue(label, line, ends, run):
    found = run(["grep", "-a", "-E", "-e", final_messages()], input=f"{label}{line}\n", check=False)
    assert (found.returncode == 0) == ends and found.stderr == ""


def limited(root, folder, text):
    return settings_of(root, "pytorch", "local", folder, f"[jobs]\n{text}\n")


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", (0, 0)),
        ("restarts = 2", (2, 1800)),
        ('restarts = 2\nsilence = "0"', (2, 0)),
        ('restarts = 2\nsilence = "00:00:20"', (2, 20)),
        ('silence = "90"', (0, 5400)),
    ],
)
def test_limits(text, limits, root, tmp_path):
    jobs = limited(root, tmp_path, text).configuration.jobs
    assert watch_limits(jobs, "configuration.toml") == limits


def test_silence_that_is_no_time(root, tmp_path):
    with pytest.raises(LongshipError, match='cannot read jobs.silence = "30m"') as told:
        limited(root, tmp_path, 'silence = "30m"')
    assert "such as 00:30:00" in told.value.hint


@pytest.fixture
def bash(run, clean_environment, tmp_path):
    """Give a function that runs lines with the functions they use."""

    def run_lines(*lines, check=True, **environment):
        script = tmp_path / "script.sh"
        script.write_text(render("a test", lines))
        return run(["bash", script], env={**clean_environment, **environment}, check=check)

    return run_lines


def test_nccl_is_asked_in_its_own_words(bash):
    """A stand-in for the RAS of NCCL, which needs GPUs: it answers as its documentation shows."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            with peer:
                asked.append(peer.recv(100))
                peer.sendall(b"Errors\n\n  Process 7 on node 10.0.0.2 managing GPU 5\n\x1b[2J\n")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        told = bash("watch_ask_nccl", NCCL_RAS_ADDR=address).stderr
        thread.join()
    assert asked == [b"verbose status\n"]
    assert "longship: NCCL:   Process 7 on node 10.0.0.2 managing GPU 5\n" in told
    assert "\x1b" not in told
    assert bash("watch_ask_nccl", NCCL_RAS_ADDR=address).stderr == ""  # nobody answers


def test_fact_of_the_record_is_replaced(bash):
    done = bash(
        "longship_facts=(a 1 b a)",
        "run_set_fact a 2; run_set_fact b 'x y'; run_set_fact c 3",
        "printf '[%s]' \"${longship_facts[@]}\"",
    )
    assert done.stdout == "[a][2][b][x y][c][3]"


def test_last_task_of_an_array_acts_on_itself_alone(bash, clean_environment, tmp_path):
    """Slurm gives it the ID of the array, by which its commands would take every task."""
    for name in ("squeue", "scancel", "scontrol"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\necho 4711_3.0\n')
        program.chmod(0o755)
    bash(
        "read() { :; }; sleep() { :; }  # no pauses",
        "watch_attempt() { watch_idle=0 watch_ended=1; watch_end_steps silent; watch_requeue n1; }",
        "watch_run 1 0 0 log message",
        RUN_DIR=str(tmp_path / "4711_3-sweep-8.2"),
        SLURM_JOB_ID="4711",
        NCCL_RAS_ADDR="127.0.0.1:1",
        PATH=f"{tmp_path}:{clean_environment['PATH']}",
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        "squeue --steps --noheader --format=%i --jobs=4711_3",
        "scancel --signal=TERM 4711_3.0",
        "scancel --signal=KILL 4711_3.0",
        "scontrol requeue 4711_3",
        "scontrol update JobId=4711_3 ExcNodeList=n1",
        "scontrol show job --oneliner 4711_3",
    ]


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ("/r/launcher python train.py -N 3", "--nodelist=n1,n2"),
        ("--ntasks 4 --label /r/launcher x", "--nodelist=n1,n2"),
        ("--nodes=1 /r/launcher x", ""),
        ("-w n3 /r/launcher x", ""),
        ("hostname", ""),
    ],
)
def test_ranks_start_on_the_first_nodes_unless_the_call_says_where(
    arguments, added, bash, clean_environment, tmp_path
):
    for name, body in {"srun": 'echo "$@"; exit 7', "scontrol": r"printf 'n%s\n' 1 2 3"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{clean_environment['PATH']}"
    nodes = {"SLURM_JOB_NODELIST": "n[1-3]", "LAUNCHER": "/r/launcher", "PATH": path}
    done = bash("watch_keep_spares 2", f"srun {arguments}", check=False, **nodes)
    assert (done.stdout, done.returncode) == (f"{added} {arguments}".lstrip() + "\n", 7)


def test_signal_while_the_next_attempt_is_prepared_ends_the_job(bash, tmp_path):
    """Slurm sends it once, and kills what is left half a minute later."""
    done = bash(
        "watch_attempt() { echo attempt; true & longship_child=$!; wait; return 7; }",
        "run_explain() { kill -s TERM $$; }",
        "timeout() { printf '%s\\0' again line lines ''; }  # submit.py decide",
        "longship_facts=()",
        "watch_run 3 0 0 log message",
        RUN_DIR=str(tmp_path),
        LONGSHIP_ROOT="/clone",
        SLURM_JOB_ID="7",
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "attempt\n")


@pytest.fixture
def attempt(bash, clean_environment, tmp_path):
    """Give a function that lets the watcher run a step, whose process writes its id to `step`.

    scancel sends TERM to it, and squeue is the given line of sh.
    """

    def attempt(squeue, step, silence, message):
        programs = {"squeue": squeue, "scancel": f'kill "$(cat {tmp_path}/step)"'}
        for name, line in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "log").touch()
        return bash(
            array("longship_script", ["bash", "-c", step]),
            f"watch_attempt {silence} {tmp_path}/log '^{message}$' || exit",
            RUN_DIR=str(tmp_path),
            NCCL_RAS_ADDR="127.0.0.1:1",
            PATH=f"{tmp_path}:{clean_environment['PATH']}",
            check=False,
        )

    return attempt


@pytest.mark.parametrize(("code", "ended", "told"), [(0, 1, 1), (143, 1, 1), (9, 1, 9), (0, 0, 0)])
def test_step_that_had_to_be_ended_has_failed(code, ended, told, attempt, tmp_path):
    """On TERM the stacks write a checkpoint and exit with code 0."""
    wait = "while :; do sleep 0.1; done" if ended else ":"
    step = f"trap 'exit {code}' TERM; echo $$ >{tmp_path}/step; {wait}"
    done = attempt("echo 7.0", step, 1, "never")
    assert done.returncode == told
    assert ("no output for 1 seconds: ending 7.0" in done.stderr) == bool(ended)


def test_slurm_that_does_not_answer_is_asked_again(attempt, tmp_path):
    asked = tmp_path / "asked"
    busy = f"if [ -e {asked} ]; then echo 7.0; else touch {asked}; echo busy >&2; exit 1; fi"
    step = (
        f"echo $$ >{tmp_path}/step; sleep 1; echo lost >{tmp_path}/log; while :; do sleep 0.1; done"
    )
    done = attempt(busy, step, 10, "lost")
    assert done.returncode == 1
    assert "longship: the ranks cannot continue: lost: ending 7.0\n" in done.stderr
