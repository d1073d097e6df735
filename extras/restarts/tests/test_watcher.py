"""The decisions after a failed step, and the bash of the watcher."""

import socket
import threading

import pytest
from support.stacks import settings_of

from extras.restarts.watcher import End, decide, faulty_nodes, final_messages, watch_limits
from lib.script.command import array
from lib.script.errors import LongshipError
from lib.script.render import render

HOUR = 3600
STUCK = "not restarted: no step more than the attempt before"
BROKEN = {"n1": "nvidia-smi: 3 of 4 GPUs"}


def told(node, *lines, tool="nvidia-smi", code=0):
    """Give what a node says: lines of its tool, and how that ended."""
    said = [f"{node}\tsaid {line}" for line in lines]
    return "\n".join([*said, f"{node}\tended {tool} {code}", ""])


GOOD = ["Disabled, 0"] * 4
LOST = "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost. Reboot the system"
RAS = ["GPU[0]: RAS INFO", "    Block    Status    Correctable Error  Uncorrectable Error"]


@pytest.mark.parametrize(
    ("said", "gpus", "faulty"),
    [
        (told("n1", *GOOD) + told("n2", *GOOD), 4, {}),
        (told("n1", *GOOD) + told("n2", *GOOD[:3], LOST, code=15), 4, "nvidia-smi: 3 of 4 GPUs"),
        (told("n1", *GOOD) + told("n2", *GOOD[:3], code=15), 0, "nvidia-smi: 3 of 4 GPUs"),
        (
            told("n1", *GOOD) + told("n2", *GOOD[:3], "[Unknown Error], [Unknown Error]"),
            4,
            "nvidia-smi: 3 of 4 GPUs",
        ),
        (told("n1", *GOOD) + told("n2", LOST, code=15), 4, "nvidia-smi: 0 of 4 GPUs"),
        (told("n1", *GOOD) + told("n2", code=124), 4, "nvidia-smi does not answer"),
        (
            told("n1", *GOOD) + told("n2", *GOOD[:3], "Disabled, 2"),
            4,
            "nvidia-smi: 2 uncorrected memory errors",
        ),
        # what is no fault: no memory errors are counted, a damaged infoROM, instances of a GPU
        (told("n1", *GOOD) + told("n2", *["[N/A], [N/A]"] * 4), 4, {}),
        (
            told("n1", *GOOD) + told("n2", *GOOD, "WARNING: infoROM is corrupted", code=14),
            4,
            {},
        ),
        (told("n1", "Enabled, 0") + told("n2", "Enabled, 0"), 7, {}),
        # steps that get no GPUs, tools that are missing or too old
        (told("n1", "No devices were found", code=6) + told("n2", "No devices", code=6), 4, {}),
        (told("n1", tool="", code=0) + told("n2", tool="", code=0), 4, {}),
        (told("n1", 'Field "mig" is not valid', code=2) + told("n2", code=2), 4, {}),
        # what all nodes say is not a fault of each
        (told("n1", LOST, code=9) + told("n2", LOST, code=9), 4, {}),
        # a node that hangs, and none that answers
        (told("n1", tool=""), 0, "no answer"),
        ("", 4, {}),
        (told("n1", tool="") + "n2\tslurm draining\n", 0, "Slurm: draining"),
        # another node, and lines of others
        (told("n1", *GOOD) + told("n2", *GOOD) + told("n9", LOST, code=15), 4, {}),
        (told("n1", *GOOD) + told("n2", *GOOD) + "srun: error: ECC\n\n", 4, {}),
        (
            told("n1", *RAS, "  UMC  ENABLED  7  0", tool="rocm-smi")
            + told("n2", *RAS, "  UMC  ENABLED  0  3", tool="rocm-smi"),
            1,
            "rocm-smi: 3 uncorrected memory errors",
        ),
    ],
)
def test_faulty_node_is_one_that_says_so_or_slurm(said, gpus, faulty):
    found = faulty_nodes(said, ["n1", "n2"], gpus)
    assert found == ({"n2": faulty} if faulty else {})


def test_node_that_was_not_asked_makes_no_other_faulty():
    """What all that answer say alike is rather their driver's fault."""
    said = told("n1", *GOOD[:1]) + told("n2", *GOOD[:1])
    assert faulty_nodes(said, ["n1", "n2", "n3"], 4) == {"n3": "no answer"}


@pytest.mark.parametrize(
    ("said", "faulty"),
    [
        (told("n1", LOST, code=15), "nvidia-smi: 0 of 4 GPUs"),
        (told("n1", *GOOD[:3]), "nvidia-smi: 3 of 4 GPUs"),
        (told("n1", "No devices were found", code=6), ""),
    ],
)
def test_node_of_a_job_without_others_is_judged_by_what_slurm_gave(said, faulty):
    assert faulty_nodes(said, ["n1"], 4) == ({"n1": faulty} if faulty else {})


@pytest.mark.parametrize(
    ("end", "action", "line"),
    [
        (End(137, 5), "again", "restart 1 of 3 on the same nodes"),
        (End(135, 0), "again", "restart 1 of 3 on the same nodes"),
        (End(1), "stuck", "not restarted: it has made no step"),
        (
            End(1, None, BROKEN),  # which is why it made no step
            "requeue",
            "requeued without n1 (nvidia-smi: 3 of 4 GPUs): restart 1 of 3",
        ),
    ],
)
def test_first_failure(end, action, line):
    found = decide(end, [], 3, HOUR)
    assert found[0] == action
    assert found[1].endswith(f"; {line}")


def test_line_names_step_and_exit_code():
    assert decide(End(9, 30), [], 1, HOUR)[1] == (
        "attempt 1 ended at step 30: exit code 9; restart 1 of 1 on the same nodes"
    )
    assert decide(End(9, 30), [], 0, HOUR)[1] == (
        "attempt 1 ended at step 30: exit code 9; not restarted: jobs.restarts is 0"
    )


@pytest.mark.parametrize(
    ("steps", "action", "why"),
    [
        ((10, 10), "stuck", STUCK),
        ((10, 9), "stuck", STUCK),
        ((10, None), "stuck", "not restarted: it has made no step"),
        ((10, 11), "again", "restart 2 of 3 on the same nodes"),
        ((10, 20, 20), "stuck", STUCK),
        ((10, 20, 30, 40), "stop", "not restarted: jobs.restarts is 3"),
    ],
)
@pytest.mark.parametrize("codes", [(1, 1), (135, 1)])  # whatever the message and exit code
def test_job_goes_on_while_it_makes_steps(steps, action, why, codes):
    lines = []
    for number, step in enumerate(steps):
        found = decide(End(codes[number % 2], step), lines, 3, HOUR)
        lines.append(found[1])
    assert found[0] == action and found[1].endswith(f"; {why}")


def test_attempt_after_that_of_a_faulty_node_makes_a_step():
    """If the faulty node was why there was none, the next attempt makes some."""
    first = decide(End(1, None, BROKEN), [], 3, HOUR)
    assert decide(End(1, 0), [first[1]], 3, HOUR)[0] == "again"
    assert decide(End(1), [first[1]], 3, HOUR)[0] == "stuck"
    assert decide(End(1, 5, {"n2": "no answer"}), [first[1]], 3, HOUR)[0] == "requeue"


def test_time_limit_is_left_to_the_next_job_of_a_chain():
    end = End(1, 5)
    assert decide(end, [], 3, 299)[0] == "stop"
    assert decide(end, [], 3, 301)[0] == "again"
    # a requeued job has its whole time
    assert decide(end._replace(faulty=BROKEN), [], 3, 10)[0] == "requeue"


@pytest.mark.parametrize(
    ("faulty", "left", "spares", "action"),
    [
        (BROKEN, HOUR, 1, "again"),
        ({**BROKEN, "n2": "no answer"}, HOUR, 1, "requeue"),
        (BROKEN, HOUR, 0, "requeue"),
        (BROKEN, 10, 1, "requeue"),  # which gives it its whole time
        ({}, 10, 1, "stop"),
    ],
)
def test_faulty_nodes_are_replaced_if_enough_are_spare(faulty, left, spares, action):
    found = decide(End(1, 5, faulty), [], 2, left, spares)
    lacking = decide(End(1, 5, faulty), [], 2, left, spares, "all but 2 nodes are excluded")
    assert lacking[0] == ("stop" if action == "requeue" else action)
    assert lacking[1].endswith(": all but 2 nodes are excluded") == (action == "requeue")
    assert found[0] == action
    assert ("restart 1 of 2 without n1 (nvidia-smi: 3 of 4" in found[1]) == (action == "again")


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
        said = bash("watch_ask_nccl", NCCL_RAS_ADDR=address).stderr
        thread.join()
    assert asked == [b"verbose status\n"]
    assert "longship: NCCL:   Process 7 on node 10.0.0.2 managing GPU 5\n" in said
    assert "\x1b" not in said
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
    says = {"squeue": "4711_3.0", "scancel": "", "sinfo": "n1", "scontrol": "x ExcNodeList=n1 y"}
    for name, said in says.items():
        program = tmp_path / name
        program.write_text(
            f'#!/bin/sh\ncase $* in "show hostnames"*) echo n1; exit; esac\n'
            f'echo "{name} $*" >>"{tmp_path}/calls"\necho {said}\n'
        )
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
        "scontrol requeuehold 4711_3",
        "sinfo --all --noheader --Node --format=%N",
        "scontrol show job --oneliner 4711_3",  # what it excludes already
        "scontrol update JobId=4711_3 ExcNodeList=n1",
        "scontrol show job --oneliner 4711_3",  # whether it does now
        "scontrol release 4711_3",
        "scontrol show job --oneliner 4711_3",  # whether it is preempted
    ]


@pytest.mark.parametrize(
    ("excluded", "refusals", "sent"),
    [
        ("(null)", 0, ["n1,n2"]),
        ("n3,gone", 0, ["n1,n2,n3"]),  # with a name that Slurm does not know it accepts none
        ("(null)", 2, ["n1,n2"] * 3),
        ("(null)", 9, ["n1,n2"] * 4),
    ],
)
def test_exclusion_is_what_slurm_knows_and_is_checked(
    excluded, refusals, sent, bash, clean_environment, tmp_path
):
    """A stand-in for Slurm: it refuses so often, as for a job that was requeued a moment ago."""
    scontrol = f"""case $* in
"show hostnames "*) echo "$3" | tr , '\\n' ;;
"show job --oneliner 7") echo "JobId=7 ExcNodeList=$(cat {tmp_path}/list) Features=x" ;;
"update JobId=7 ExcNodeList="*) echo "${{3#*=}}" >>{tmp_path}/sent
    if [ $(wc -l <{tmp_path}/sent) -le {refusals} ]; then echo "error: no" >&2; exit 1; fi
    echo "${{3#*=}}" >{tmp_path}/list ;;
*) exit 2 ;;
esac"""
    for name, body in {"sinfo": r"printf 'n%s\n' 1 2 3 3", "scontrol": scontrol}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "list").write_text(excluded)
    path = {"PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    said = bash("sleep() { :; }", "watch_exclude n1,n2 7", **path).stderr
    assert (tmp_path / "sent").read_text().split() == sent
    assert said.startswith("warning: cannot exclude n1") == (refusals == 9)
    assert refusals == 9 or not said


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
        "timeout() { printf '%s\\0' again line lines '' ''; }  # submit.py decide",
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
