"""Jobs that start a failed or hanging step again, on a real Slurm: each decision of the watcher."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from integration.test_jobs import LOCAL, write_job
from support import processes
from support.jobs import TRAINING, JobClone
from support.repository import toml

TWO = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1"
STUCK = "not restarted: no step more than the attempt before"
# A node has no GPU: this stands for the tool of one, and refuses every other question.
QUERY = "--query-gpu=mig.mode.current,ecc.errors.uncorrected.volatile.total --format=csv,noheader"
SMI = """#!/bin/sh
if [ "$*" != "{1}" ]; then exit 2; fi
errors=0
if [ "$SLURMD_NODENAME" = "$(cat "{0}")" ]; then errors=2; fi
echo "Disabled, $errors"; echo "Disabled, 0"
"""
ERRORS = "nvidia-smi: 2 uncorrected memory errors"
# in another rank's words, which are no evidence
SAYS = 'echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"'


def attempts(run):
    """Give the lines of a run's attempts, which its log has too, without their times."""
    lines = run.record.get("attempts", "").split("\n")
    for each in lines:
        assert f"longship: {each}\n" in run.log
        assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ attempt", each)
    return [each.partition(" ")[2] for each in lines]


@pytest.fixture
def watched(make_job_clone, tmp_path):
    """Give a clone whose steps start again."""
    return make_job_clone(tmp_path, "[jobs]\nrestarts = 2\n")


@pytest.fixture
def faulty(watched, tmp_path):
    """Give a function that names the node whose GPU is faulty, and returns the environment."""
    program = tmp_path / "programs/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.format(tmp_path / "faulty", QUERY))
    program.chmod(0o755)

    def name(node):
        (tmp_path / "faulty").write_text(node)
        return {"PATH": f"{program.parent}:{watched.environment['PATH']}"}

    return name


def test_killed_rank_starts_again_and_losses_are_those_of_an_unbroken_run(jobs):
    arguments = [*TRAINING, "--steps", "150", "--checkpoint-every", "5", "--run-name"]
    given = [LOCAL, "--nodes=2"]
    unbroken = jobs.job(*given, "--", *arguments, "whole")
    number = jobs.job(*given, "--restarts=2", "--", *arguments, "broken")
    jobs.wait_for_step(number, "broken", 12)
    os.kill(max(_processes_of("train.py", "broken")), signal.SIGKILL)
    for each in (number, unbroken):
        assert jobs.slurm.wait(each) == "COMPLETED", jobs.slurm.log(each)
    run = jobs.run(number)
    (line,) = attempts(run)
    assert line.startswith("attempt 1 ended") and line.endswith("restart 1 of 2 on the same nodes")
    assert "/step-" in run.log.rsplit("longship: run ", 1)[1]  # from the checkpoint
    assert run.log.count("longship: run ") == 2
    assert run.record["exit_code"] == "0" and run.record["restarts"] == "0"
    assert jobs.losses("broken") == pytest.approx(jobs.losses("whole"), rel=1e-5)
    (shown,) = [
        each for each in json.loads(jobs.submit("status", "--json").stdout) if each["id"] == number
    ]
    assert shown["attempts"] == [run.record["attempts"]]
    jobs.submit("report", number)
    page = (run.folder / f"report-{run.folder.name}.html").read_text()
    assert run.record["attempts"] in page and "stroke-dasharray" in page


def _processes_of(*words):
    """Give the IDs of the Python processes with these words in their arguments."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if line[0].endswith(b"python") and all(each.encode() in b" ".join(line) for each in words):
            found.append(int(each.parent.name))
    return found


@pytest.mark.parametrize("trap", ["", pytest.param('trap "" TERM;', marks=pytest.mark.slow)])
def test_silent_step_is_ended_and_starts_again(trap, make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path, '[jobs]\nsilence = "00:00:20"\nrestarts = 2\n')
    body = (
        'srun "$LAUNCHER" sh -c \'\n'
        'echo "step 7 begun"; if [ -e "$1/second" ]; then exit; fi\n'
        f'if [ "$SLURM_PROCID" = 1 ]; then touch "$1/second"; fi; {trap} exec sleep 600\' '
        'sh "$RUN_DIR"'
    )
    run = clone.finish(write_job(clone, "sleeps", body, TWO))
    assert f"longship: no output for 20 seconds: ending {run.job}.0\n" in run.log
    (line,) = attempts(run)
    assert line.startswith("attempt 1 ended at step 7: exit code ")
    assert "problem  no output: line " in run.log


@pytest.mark.slow  # as a silent one, for another reason
def test_step_that_cannot_continue_is_ended(make_job_clone, slurm, tmp_path):
    """It prints steps after its message, which the restarted job must not find again."""
    clone = make_job_clone(tmp_path, '[jobs]\nsilence = "00:00:20"\nrestarts = 2\n')
    body = (
        'srun "$LAUNCHER" sh -c \'\n'
        'if [ -e "$1/second" ]; then sleep 8; exit; fi; touch "$1/second"\n'
        'echo "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"\n'
        'for i in $(seq 100); do echo "step $i"; sleep 1; done\' sh "$RUN_DIR"'
    )
    run = clone.finish(write_job(clone, "useless", body))
    said = "longship: the ranks cannot continue: 0: [Rank 0] Watchdog caught collective operation"
    assert run.log.count(said) == 1 and f"WorkNCCL(SeqNum=1): ending {run.job}.0\n" in run.log
    (line,) = attempts(run)
    assert re.match(r"attempt 1 ended at step \d+: exit code \d+; restart 1 of 2", line)


@pytest.mark.slow  # decisions: tests/jobs/test_watcher.py
def test_ways_of_failing_lead_to_their_decisions(watched):
    """All of them at once, as each waits for Slurm."""
    python = 'srun "$LAUNCHER" python3 -c'
    kill = f'{python} "import os; print({{}}, flush=True); os.kill(os.getpid(), 9)"'
    grows = kill.format("'step', len(open(os.environ['RUN_DIR'] + '/record.json').read())")
    bodies = {
        "imports": f'{python} "import nothing_of_this_name"',
        "killed": kill.format("'step 5'"),
        "grows": grows,
    }
    chains = {name: [f"--chain={1 + (name != 'grows')}"] for name in bodies}
    numbers = {
        name: watched.submit(write_job(watched, name, body), *chains[name]).stdout.split()
        for name, body in bodies.items()
    }
    for first, *_ in numbers.values():
        assert watched.slurm.wait(first) == "FAILED", watched.slurm.log(first)
    found = {name: attempts(watched.run(first)) for name, (first, *_) in numbers.items()}
    never = "not restarted: it has made no step"
    assert found["imports"] == [f"attempt 1 ended: exit code 1; {never}"]
    killed = "attempt {} ended at step 5: exit code 137; {}"
    assert found["killed"] == [
        killed.format(1, "restart 1 of 2 on the same nodes"),
        killed.format(2, STUCK),
    ]
    assert [each.rpartition("; ")[2] for each in found["grows"]] == [
        "restart 1 of 2 on the same nodes",
        "restart 2 of 2 on the same nodes",
        "not restarted: jobs.restarts is 2",
    ]
    whys = {"imports": "without a step", "killed": "after two starts without a step more"}
    for name, why in whys.items():
        first, second = numbers[name]
        assert watched.slurm.wait(second) == "FAILED"
        log = watched.slurm.log(second)
        assert f"job {first}, which this job resumes, ended in state FAILED {why}\n" in log


def test_faulty_node_is_excluded_from_a_requeued_job_and_its_chain(watched, faulty):
    """It is not the one whose rank reports the error."""
    body = (
        'srun "$LAUNCHER" sh -c \'echo "on $SLURMD_NODENAME"\n'
        'if [ "$SLURM_JOB_NODELIST" != "node[1-2]" ]; then echo "step 9 of 9"; exit; fi\n'
        f'if [ "$SLURMD_NODENAME" = node1 ]; then sleep 1; {SAYS}; exit 1; fi\' sh'
    )
    job = write_job(watched, "faulty", body, TWO)
    given = [job, "--chain=3"]
    number, *later = watched.submit(*given, env=faulty("node2")).stdout.split()
    after = watched.job(job, "--after", number)  # has nothing to do with the chain
    assert watched.slurm.wait(number) == "COMPLETED", watched.slurm.log(number)
    run = watched.run(number)
    (line,) = attempts(run)
    assert (
        line == f"attempt 1 ended: exit code 1; requeued without node2 ({ERRORS}): restart 1 of 2"
    )
    assert "node2" not in run.record["nodelist"]
    assert run.log.count("0: on node1\n") == 2 and run.log.count("1: on node3\n") == 1
    for each in (number, *later):
        assert watched.slurm.facts(each)["ExcNodeList"] == "node2"
    assert watched.slurm.facts(after)["ExcNodeList"] == "(null)"
    watched.slurm.run(["scancel", after])
    assert watched.slurm.wait(later[-1]) == "COMPLETED", watched.slurm.log(later[-1])


def test_job_that_is_preempted_starts_again_later_and_has_not_failed(watched):
    """In the grace time its step has ended, and on TERM the stacks exit with code 0."""
    body = (
        'srun "$LAUNCHER" sh -c \'\n'
        'if [ "${SLURM_RESTART_COUNT:-0}" = 1 ]; then echo "step 9 of 9"; exit; fi\n'
        'trap "exit 0" TERM; echo "step 5 of 9"; sleep 600 & wait\' sh'
    )
    header = "#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\n#SBATCH --exclusive"
    job = write_job(watched, "gives-way", body, header)
    number = watched.job(job, "--partition=preemptible")
    watched.wait_until(number, lambda: watched.slurm.log(number).count("step 5") == 3)
    urgent = watched.slurm.submit("--partition=urgent", "--nodes=3", "--exclusive", "--wrap=true")
    assert watched.slurm.wait(urgent) == "COMPLETED"
    assert watched.slurm.wait(number) == "COMPLETED", watched.slurm.log(number)
    run = watched.run(number)
    assert run.log.count("longship: preempted: requeued\n") == 1
    assert run.log.count("step 9 of 9") == 3 and run.record["restarts"] == "1"
    assert "attempts" not in run.record and "restart 1 of" not in run.log


def test_step_that_starts_again_takes_no_spare_node(watched):
    """Even if a step of its own still keeps the first node, on which the ranks meet."""
    body = (
        "srun --nodes=1 --ntasks=1 --nodelist=node1 --exclusive sleep 8 &\n"
        'sleep 2; srun "$LAUNCHER" sh -c \'echo "rank $SLURM_PROCID on $SLURMD_NODENAME"\n'
        'echo "step 5"\n'
        'if [ -e "$1/second" ]; then exit; fi; sleep 1; touch "$1/second"; exit 1\' sh "$RUN_DIR"'
    )
    header = "#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1"
    run = watched.finish(write_job(watched, "same", body, header), "--spare-nodes=1")
    (line,) = attempts(run)
    assert line.endswith("restart 1 of 2 on the same nodes")
    for rank in (0, 1):
        assert run.log.count(f"rank {rank} on node{rank + 1}\n") == 2
    assert "on node3" not in run.log


def test_faulty_node_is_replaced_by_a_spare_one(watched, faulty):
    body = (
        'srun "$LAUNCHER" sh -c \'\n'
        'echo "on $SLURMD_NODENAME, $SLURM_NTASKS tasks, $NUM_NODES nodes, $MASTER_ADDR first"\n'
        'touch "$2/said-$SLURM_PROCID"; if [ "$SLURMD_NODENAME" = "$1" ]; then\n'
        'until [ "$(ls "$2" | grep -c said-)" = 4 ]; do sleep 0.1; done\n'
        'touch "$2/broken"; sleep 1; exit 1; fi\n'
        'while [ "$SLURMD_NODENAME" != node3 ] && ! [ -e "$2/broken" ]; do sleep 0.1; done\n'
        'sleep 0.3; echo "step 5 of 9"; sleep 2\' sh "${JOB_ARGUMENTS[@]}" "$RUN_DIR"'
    )
    header = "#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=2\n#SBATCH --gpus-per-node=2"
    job = write_job(watched, "spare", body, header)
    given = [job, "--spare-nodes=1", "--chain=2", "--", "node2"]
    said = watched.submit(*given, env=faulty("node2"))
    number, later = said.stdout.split()
    assert watched.slurm.wait(number) == "COMPLETED", watched.slurm.log(number)
    run = watched.run(number)
    (line,) = attempts(run)
    assert line.endswith(f"; restart 1 of 2 without node2 ({ERRORS})")
    first, second = run.log.split("longship: explanation of the failure")
    for log, nodes in ((first, ("node1", "node2")), (second, ("node1", "node3"))):
        for each in ("node1", "node2", "node3"):
            said = f"on {each}, 4 tasks, 2 nodes, node1 first"
            assert log.count(said) == (2 if each in nodes else 0)
    facts = watched.slurm.facts(number)
    assert facts["Restarts"] == "0" and facts["NodeList"] == "node[1,3]"
    # with its three nodes it could never start
    assert watched.slurm.facts(later)["ExcNodeList"] == "(null)"
    assert not list(run.folder.glob("*resize*"))
    watched.slurm.run(["scancel", later])
    # the job script runs on the first node, and without it too few are left
    number = watched.job(job, "--spare-nodes=1", "--", "node1", env=faulty("node1"))
    assert watched.slurm.wait(number) == "FAILED"
    log = watched.slurm.log(number)
    assert f"; not restarted without node1 ({ERRORS}): all but 2 nodes of the partition " in log


def test_signals_reach_the_step_and_end_the_watcher(watched):
    body = (
        "trap 'echo the script got USR1' USR1\n"
        'srun "$LAUNCHER" python3 -u -c "\n'
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('the step got USR1'), sys.exit(1)))\n"
        "for i in range(500): print('step', i); time.sleep(1)\" &\n"
        'while :; do wait $! && code=0 || code=$?; kill -0 $! 2>/dev/null || exit "$code"; done'
    )
    job = write_job(watched, "signals", body)
    number = watched.job(job)
    watched.wait_until(number, lambda: "step 1" in watched.slurm.log(number))
    watched.slurm.run(["scancel", "--batch", "--signal=USR1", number])
    watched.wait_until(number, lambda: "the script got USR1" in watched.slurm.log(number))
    watched.slurm.run(["scancel", "--signal=USR1", number])
    assert watched.slurm.wait(number) == "FAILED"
    run = watched.run(number)
    assert "the step got USR1" in run.log
    assert "attempts" not in run.record and run.record["exit_code"] == "1"
    number = watched.job(job)
    watched.wait_until(number, lambda: "step 1" in watched.slurm.log(number))
    watched.slurm.run(["scancel", number])
    assert watched.slurm.wait(number) == "CANCELLED"
    processes.wait_until(lambda: "exit_code" in watched.run(number).record)  # it is completing
    record = watched.run(number).record
    assert record["exit_code"] == "143" and record["stopped"] == "cancelled"
    assert "attempts" not in record


def root_clone(root, slurm, tmp_path):
    """Give a clone of root, who may stop a slurmd and drain a node."""
    clone = JobClone(root, tmp_path / "clone", slurm, tmp_path / "scratch")
    clone.configure(
        f"[paths]\nproject_dir = {toml(tmp_path)}\nscratch_dir = {toml(clone.scratch)}\n"
        '[container]\nruntime = "host"\n[packages]\nrequirements = ""\n'
    )
    return clone


@pytest.mark.slow  # for minutes Slurm says nothing; as a faulty node above
@pytest.mark.root
@pytest.mark.only_root
def test_node_whose_slurmd_does_not_answer_is_excluded(root, slurm, tmp_path):
    """It runs again when the decision has been made, as Slurm waits for it for five minutes."""
    clone = root_clone(root, slurm, tmp_path)
    body = (
        'srun "$LAUNCHER" sh -c \'if [ "${SLURM_RESTART_COUNT:-0}" = 1 ]; then exit; fi\n'
        'if [ "$SLURMD_NODENAME" != node2 ]; then exec sleep 600; fi; touch "$1/ready"\n'
        'until [ -e "$1/go" ]; do sleep 0.1; done; exit 1\' sh "$RUN_DIR"'
    )
    number = clone.job(write_job(clone, "unreachable", body, TWO), "--restarts=3")
    clone.wait_until(number, lambda: list(clone.runs.glob(f"{number}-*/ready")))
    folder = Path(slurm.environment["SLURM_CONF"]).parent
    slurmd = int((folder / "run/slurmd-node2.pid").read_text())
    os.kill(slurmd, signal.SIGSTOP)
    try:
        (clone.run(number).folder / "go").touch()
        clone.wait_until(number, lambda: "requeued without node2" in slurm.log(number))
    finally:
        os.kill(slurmd, signal.SIGCONT)
    assert slurm.wait(number) == "COMPLETED", slurm.log(number)
    run = clone.run(number)
    (line,) = attempts(run)
    assert line.endswith("; requeued without node2 (no answer): restart 1 of 3")
    assert "node2" not in run.record["nodelist"]


@pytest.mark.slow  # as a node whose GPU is faulty
@pytest.mark.root
@pytest.mark.only_root
def test_node_that_slurm_drains_is_excluded(root, slurm, tmp_path):
    clone = root_clone(root, slurm, tmp_path)
    body = (
        'srun "$LAUNCHER" sh -c \'if [ "${SLURM_RESTART_COUNT:-0}" = 1 ]; then exit; fi\n'
        'until [ -e "$1/go" ]; do sleep 0.1; done; exit 1\' sh "$RUN_DIR"'
    )
    number = clone.job(write_job(clone, "drained", body, TWO), "--restarts=3")
    clone.wait_until(number, lambda: "longship: run " in slurm.log(number))
    drain = ["scontrol", "update", "NodeName=node2"]
    slurm.run([*drain, "State=DRAIN", "Reason=a test"])
    try:
        (clone.run(number).folder / "go").touch()
        assert slurm.wait(number) == "COMPLETED", slurm.log(number)
    finally:
        slurm.run([*drain, "State=RESUME"])
    (line,) = attempts(clone.run(number))
    assert line.endswith("; requeued without node2 (Slurm: draining): restart 1 of 3")
    assert slurm.facts(number)["ExcNodeList"] == "node2"
