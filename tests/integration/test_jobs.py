"""Jobs on a real Slurm: what is recorded, how they end, what goes on from what."""

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest
from support import processes
from support.environments import SECRET
from support.jobs import TRAINING
from support.repository import toml

from lib.configuration.sites import own_arch

TRAIN = "jsc/run_training_jwb.sbatch"
LOCAL = "local/run_training_local.sbatch"
# The lines by which a checked-in script takes start_job from the clone, with plain sbatch.
CHECKED_IN = (Path(__file__).parents[2] / LOCAL).read_text()
START = re.search(r"(?ms)^if ! declare -F start_job.*?^fi\n", CHECKED_IN)[0]
SMALL = ("--nodes=2", "--gpus-per-node=1", "--ntasks-per-node=1")


def write_job(clone, name, body, header=""):
    """Write a job of a test's own, of the form of the checked-in ones."""
    text = (
        f"#!/usr/bin/env bash\n#SBATCH --job-name={name}\n#SBATCH --time=00:10:00\n{header}\n"
        f'{START}start_job local "$@"\n{body}\n'
    )
    file = clone.root / f"local/{name}.sbatch"
    file.write_text(text)
    return f"local/{name}.sbatch"


def test_arguments_arrive_as_they_are(jobs, hostile_arguments):
    show = "python3 -c 'import sys; print(sys.argv[1:])'"
    job = write_job(
        jobs, "arguments", f'SLURM_LABELIO=0 srun "$LAUNCHER" {show} "${{JOB_ARGUMENTS[@]}}"'
    )
    run = jobs.finish(job, "--", *hostile_arguments)
    assert f"{hostile_arguments!r}\n" in run.log
    assert run.written("arguments").split("\0")[:-1] == hostile_arguments
    assert f"{hostile_arguments!r}\n" in jobs.finish("rerun", run.job).log


def test_arguments_as_long_as_the_kernel_takes_arrive(jobs):
    body = 'srun "$LAUNCHER" sh -c \'printf "%s %s\\n" "${#1}" "$2"\' long "${JOB_ARGUMENTS[@]}"'
    job = write_job(jobs, "long", body)
    run = jobs.finish(job, "--", "a" * 120_000, "é")
    assert ": 120000 é\n" in run.log
    assert run.written("arguments") == f"{'a' * 120_000}\0é\0"


def test_end_that_cannot_be_recorded_is_told_in_the_log(jobs):
    job = write_job(jobs, "endless", 'file_begin() { fail "cannot write $1" x; }\nexit 3')
    run = jobs.finish(job, state="FAILED")
    assert "record.json cannot be completed: the job exited with code 3\n" in run.log
    assert "exit_code" not in run.record
    (line,) = [
        each for each in jobs.submit("status").stdout.splitlines() if run.job in each.split()
    ]
    assert "exit code unknown" in line and "RUNNING" not in line


def test_plain_sbatch_gives_the_same_record(jobs):
    job = write_job(jobs, "plain", 'srun "$LAUNCHER" true')
    environment = {**jobs.environment, "LONGSHIP_MACHINE": "local"}
    number = jobs.slurm.submit(
        "--output=/dev/null", job, "one argument", cwd=jobs.root, env=environment
    )
    jobs.slurm.wait(number)
    record = jobs.run(number).record
    assert record["exit_code"] == "0"
    assert record["arguments"] == "'one argument'"
    assert jobs.run(number).written("job.sbatch") == (jobs.root / job).read_text()


def test_configuration_is_the_one_of_the_submission(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path, '[environment.set]\nMARK = "as submitted"\n')
    job = write_job(clone, "mark", 'srun "$LAUNCHER" sh -c "echo mark: \\$MARK"')
    number = clone.job(job, "--begin=now+2")
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace("as submitted", "as changed"))
    assert slurm.wait(number) == "COMPLETED"
    assert "mark: as submitted" in slurm.log(number)


def test_swap_of_the_image_does_not_reach_a_job_that_has_started(
    make_job_clone, slurm, base_image, tmp_path
):
    clone = make_job_clone(tmp_path, '[packages]\nrequirements = ""\n')
    (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace(str(base_image), "docker://longship.example/lab/base:1"))
    versions = clone.scratch / "containers/versions"
    versions.mkdir(parents=True)
    for name in ("20260102T030405Z", "20260102T030406Z"):
        os.link(base_image, versions / f"base_1_{own_arch()}_{name}_unrecorded.sif")
    active = clone.scratch / f"containers/base_1_{own_arch()}.sif"
    active.symlink_to(f"versions/base_1_{own_arch()}_20260102T030405Z_unrecorded.sif")
    body = (
        'srun "$LAUNCHER" sh -c "echo in \\$APPTAINER_CONTAINER"\n'
        'touch "$RUN_DIR/first"; until [[ -e $RUN_DIR/go ]]; do sleep 0.1; done\n'
        'srun "$LAUNCHER" sh -c "echo in \\$APPTAINER_CONTAINER"'
    )
    job = write_job(clone, "swap", body)
    number = clone.job(job)
    clone.wait_until(number, lambda: list(clone.runs.glob(f"{number}-*/first")))
    clone.move("--use", f"base_1_{own_arch()}_20260102T030406Z_unrecorded.sif")
    assert os.readlink(active).endswith("06Z_unrecorded.sif")
    clone.move("--prune")
    assert len(list(versions.glob("*.sif"))) == 2  # the job still needs the old one
    (pin,) = (clone.scratch / "containers/pins").glob(f"{number}-*")
    own = pin.read_text()
    assert f"\n{number} longship\n" in own
    pin.write_text(own.replace(f"{number} longship", "1 another"))  # whose jobs are not known here
    clone.move("--prune")
    assert len(list(versions.glob("*.sif"))) == 2
    pin.write_text(own)
    (clone.run(number).folder / "go").touch()
    assert slurm.wait(number) == "COMPLETED", slurm.log(number)
    assert slurm.log(number).count("05Z_unrecorded.sif") == 2
    assert clone.run(number).record["image"].endswith("05Z_unrecorded.sif")
    clone.move("--prune")
    assert not list(versions.glob("*05Z_unrecorded.sif"))


def test_rank_that_dies_ends_the_job_and_its_message_comes_first(jobs):
    body = (
        'srun --nodes=2 --ntasks-per-node=2 "$LAUNCHER" python3 -c "\n'
        "import os, sys, time\n"
        "if os.environ['RANK'] == '3': raise SystemExit('error: rank 3 has no data')\n"
        'time.sleep(600)"'
    )
    job = write_job(jobs, "dies", body, "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2")
    begin = time.monotonic()
    run = jobs.finish(job, state="FAILED")
    assert time.monotonic() - begin < 300  # not the time limit
    record = run.record
    assert record["exit_code"] != "0"
    assert record["failed"] == "task 3 on node2: Exited with exit code 1"
    said = run.log.partition("longship: explanation of the failure\n")[2].splitlines()
    assert said[0] == "first to fail: task 3 on node2: Exited with exit code 1"
    assert said[1] == "  error: rank 3 has no data"


def test_node_that_cannot_start_the_image_is_named(jobs):
    # on the second node it looks as if the file were gone
    body = (
        "export HIDDEN=$SLURM_JOB_ID\n"
        'hide="if [[ \\$SLURMD_NODENAME == node2 ]]; then image=/none.sif; else &; fi"\n'
        'sed "s|^  image=.*|$hide|" "$LAUNCHER" >"$RUN_DIR/broken"; chmod +x "$RUN_DIR/broken"\n'
        'srun "$RUN_DIR/broken" sleep 600'
    )
    job = write_job(jobs, "broken", body, "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1")
    run = jobs.finish(job, "--nodelist=node[1-2]", state="FAILED")
    assert run.record["failed"] == "task 1 on node2: Exited with exit code 1"
    said = run.log.partition("longship: explanation of the failure\n")[2]
    assert "error: image not found: /none.sif" in said
    assert "problem  message with a hint: line " in said and "    fix: ask the site's " in said


def test_what_ranks_compile_is_on_their_node_until_the_job_ends(jobs):
    body = (
        "export TORCH_HOME=/mine HF_HUB_OFFLINE=0\n"
        'srun "$LAUNCHER" sh -c \'mkdir -p "$TRITON_CACHE_DIR"; ls -ld "${TRITON_CACHE_DIR%/*}"\'\n'
        "export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID\n"
        'srun "$LAUNCHER" sh -c \'echo "own $TRITON_CACHE_DIR $TORCH_HOME"\'\n'
    )
    job = write_job(jobs, "compiles", body, "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2")
    run = jobs.finish(job)
    made = [line.split() for line in run.log.splitlines() if " drwx" in line]
    assert {words[1] for words in made} == {"drwx------"} and len(made) == 4
    folders = {words[-1] for words in made}
    name = f"/tmp/longship-{os.getuid()}-{run.job}-"
    assert len(folders) == 2 and all(each.startswith(name) for each in folders)
    assert not any(map(os.path.exists, folders))
    assert run.log.count(f": own /tmp/triton-{run.job} /mine\n") == 4
    assert run.log.count("replaced inside the environment") == 2  # once in each step


def test_two_jobs_on_one_node_do_not_share_a_port(jobs):
    job = write_job(jobs, "port", 'echo "port $MASTER_PORT at $MASTER_ADDR"; srun sleep 1')
    numbers = [jobs.job(job, "--nodelist=node1") for _ in range(2)]
    for number in numbers:
        assert jobs.slurm.wait(number) == "COMPLETED"
    ports = [jobs.slurm.log(number).split("port ")[1].split()[0] for number in numbers]
    assert ports[0] != ports[1]


def test_requeued_job_goes_on_with_its_launcher_and_its_checkpoint(jobs):
    arguments = [*TRAINING, "--steps", "400", "--checkpoint-every", "5", "--run-name", "requeued"]
    number = jobs.job(LOCAL, "--", *arguments)
    jobs.wait_for_step(number, "requeued", 12)
    launcher = jobs.run(number).folder / "launcher"
    before = launcher.stat().st_ino
    jobs.slurm.run(["scontrol", "requeue", number])
    jobs.wait_until(number, lambda: "/step-" in _last_start(jobs.slurm.log(number)))
    assert launcher.stat().st_ino == before
    record = jobs.run(number).record
    assert record["restarts"] == "1" and int(record["earlier_seconds"]) > 0
    assert record["first_started"] < record["started"]


def _last_start(log):
    return log.rsplit("longship: run", 1)[1] if log.count("longship: run") > 1 else ""


def test_cancelled_job_leaves_a_checkpoint_and_ends_its_chain(jobs):
    arguments = [*TRAINING, "--steps", "4000", "--run-name", "cancelled"]
    said = jobs.submit(LOCAL, "--gpus-per-node=2", "--chain=3", "--", *arguments)
    first, second, third = said.stdout.split()
    assert f"cancel: scancel {first} {second} {third}" in said.stderr
    jobs.wait_for_step(first, "cancelled", 5)
    jobs.slurm.run(["scancel", first])
    assert jobs.slurm.wait(first) == "CANCELLED"
    assert list((jobs.scratch / "checkpoints/cancelled").glob("step-*.pt"))
    for number in (second, third):
        assert jobs.slurm.wait(number) == "FAILED"
    log = jobs.slurm.log(second)
    assert f"error: job {first}, which this job resumes, ended in state CANCELLED" in log


# as torchrun at SIGTERM
CRASHING = (
    'srun --nodes=2 --ntasks-per-node=2 "$LAUNCHER" python3 -c \'\n'
    "import signal, time\n"
    'def end(*_): raise RuntimeError("Process 7 got signal: 15")\n'
    "signal.signal(signal.SIGTERM, end)\n"
    'print("started", flush=True)\n'
    "time.sleep(600)'"
)


def test_job_script_keeps_its_own_traps(jobs):
    """After start_job and before it; a trap that exits keeps the run from nothing."""
    failing = "echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; exit 3"
    body = f"trap 'echo my cleanup; exit 4' EXIT\nsrun \"$LAUNCHER\" bash -c '{failing}'"
    run = jobs.finish(write_job(jobs, "trap-after", body), state="FAILED")
    assert "longship: explanation of the failure\n" in run.log and "my cleanup\n" in run.log
    assert (run.record["exit_code"], run.record["failed"][:6]) == ("3", "task 0")
    header = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n"
    header += "trap 'echo my cleanup' EXIT\ntrap 'echo told to end; exit 5' TERM"
    number = jobs.job(write_job(jobs, "trap-before", CRASHING, header))
    jobs.wait_until(number, lambda: jobs.slurm.log(number).count("started\n") == 4)
    jobs.slurm.run(["scancel", number])
    assert jobs.slurm.wait(number) == "CANCELLED"
    processes.wait_until(lambda: "my cleanup\n" in jobs.slurm.log(number))  # it is completing
    assert "told to end\n" in jobs.slurm.log(number)
    record = jobs.run(number).record
    assert (record["exit_code"], record["stopped"]) == ("5", "cancelled")
    _, explanation = jobs.slurm.log(number).split("longship: explanation of the failure\n")
    assert explanation.startswith("problem  job cancelled: ") and "first" not in explanation
    assert any(
        number in each.split() and "  cancelled, exit code 5" in each
        for each in jobs.submit("status").stdout.splitlines()
    )


def test_job_that_ends_in_the_grace_time_of_a_preemption_says_so(jobs):
    """Slurm then writes nothing about it into the log."""
    header = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --exclusive"
    number = jobs.job(write_job(jobs, "preempted", CRASHING, header), "--partition=preemptible")
    jobs.wait_until(number, lambda: jobs.slurm.log(number).count("started\n") == 4)
    options = ("--output=/dev/null", "--partition=urgent", "--nodes=3", "--exclusive")
    urgent = jobs.slurm.submit(*options, "--wrap=true")
    assert jobs.slurm.wait(urgent) == "COMPLETED"
    assert jobs.run(number).record["stopped"] == "preempted"
    _, explanation = jobs.slurm.log(number).split("longship: explanation of the failure\n")
    assert explanation.startswith("problem  preempted: ")


def test_tokens_reach_the_ranks_and_nothing_that_others_read(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path)
    tokens = {"FROM_FILE": secrets.token_hex(16), "FROM_HERE": secrets.token_hex(16)}
    (tmp_path / "token").write_text(tokens["FROM_FILE"] + "\n")
    (clone.root / "configuration.local.toml").write_text(
        '[environment]\nsecrets = ["FROM_FILE", "FROM_HERE"]\n'
        f"token_files = {{ FROM_FILE = {toml(tmp_path / 'token')} }}\n"
    )
    (clone.root / "CHANGELOG.md").write_text(
        f"--extra-index-url https://{'me'}:{tokens['FROM_HERE']}@example.org/simple\n"
    )
    environment = {"FROM_HERE": tokens["FROM_HERE"]}
    show = "import os, hashlib as h; print([h.sha256(os.environ[n].encode()).hexdigest() for n in"
    body = f"srun \"$LAUNCHER\" python3 -c \"{show} ('FROM_FILE', 'FROM_HERE')])\"\n"
    body += "until [[ -e $RUN_DIR/go ]]; do sleep 0.1; done"
    job = write_job(clone, "tokens", body)
    for value in tokens.values():
        done = clone.submit(job, "--", value, check=False, env=environment)
        assert done.returncode == 1 and "contains the value of FROM_" in done.stderr
    number = clone.job(job, env=environment)
    clone.wait_until(number, lambda: "['" in slurm.log(number))
    said = slurm.run(["scontrol", "show", "job", number]).stdout
    arguments = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it is gone
            arguments.append(each.read_bytes())
    (clone.run(number).folder / "go").touch()
    assert slurm.wait(number) == "COMPLETED"
    assert str([sha256(each.encode()).hexdigest() for each in tokens.values()]) in slurm.log(number)
    # what a file of the clone has, its copies have
    copies = [clone.runs / "code", clone.run(number).folder / "code"]
    assert {each.stat().st_mode & 0o777 for each in copies} == {0o700}
    (archive,) = clone.run(number).folder.glob("code-*.tar")
    assert archive.stat().st_mode & 0o777 == 0o400
    made = [each for each in clone.runs.rglob("*") if each.is_file() and each != archive]
    files = [each for each in made if not {*copies} & {*each.parents}]
    assert clone.run(number).folder / "repositories/longship.commit" in files
    written = b"".join([*arguments, said.encode(), *(each.read_bytes() for each in files)])
    for value in tokens.values():
        assert value.encode() not in written


@pytest.mark.slow  # as the cancelled one above
def test_requeued_job_that_is_cancelled_as_it_waits_ends_its_chain(jobs):
    job = write_job(jobs, "waiting", """srun "$LAUNCHER" sh -c 'echo started; exec sleep 600'""")
    first, second = jobs.submit(job, "--chain=2").stdout.split()
    jobs.wait_until(first, lambda: "started" in jobs.slurm.log(first))
    jobs.slurm.run(["scontrol", "requeuehold", first])
    jobs.wait_until(first, lambda: jobs.run(first).record.get("stopped") == "requeued")
    assert jobs.slurm.wait(first, "REQUEUE_HOLD", "PENDING")
    jobs.slurm.run(["scancel", first])
    assert jobs.slurm.wait(second) == "FAILED"
    log = jobs.slurm.log(second)
    assert f"error: job {first}, which this job resumes, ended in state CANCELLED" in log


def test_chain_stops_at_an_error(jobs):
    job = write_job(jobs, "wrong", 'srun "$LAUNCHER" false')
    first, second = jobs.submit(job, "--chain=2").stdout.split()
    assert jobs.slurm.wait(first) == "FAILED"
    assert jobs.slurm.wait(second) == "FAILED"
    log = jobs.slurm.log(second)
    assert f"error: job {first}, which this job resumes, ended in state FAILED" in log
    assert f"python3 submit.py rerun {first}" in log


def test_chain_goes_on_while_its_jobs_make_steps(jobs, tmp_path):
    """As with ranks that get SIGBUS, because USR1 has ended squashfuse_ll; until it is stuck."""
    body = (
        'srun "$LAUNCHER" sh -c \'echo x >>"$1"; n=$(wc -l <"$1"); echo "step $((n > 2 ? 2 : n))"; '
    )
    body += 'kill -s BUS $$\' sh "${JOB_ARGUMENTS[@]}"'
    job = write_job(jobs, "advances", body)
    numbers = jobs.submit(job, "--chain=4", "--", str(tmp_path / "steps")).stdout.split()
    assert jobs.slurm.wait(numbers[-1]) == "FAILED"
    assert [jobs.run(each).record["exit_code"] for each in numbers] == ["135", "135", "135", "1"]
    why = "ended in state FAILED at step 2, no step more than the job before it\n"
    assert f"error: job {numbers[2]}, which this job resumes, {why}" in jobs.slurm.log(numbers[3])


def test_job_waits_until_slurm_answers(jobs, tmp_path):
    asked = shlex.quote(str(tmp_path / "asked"))
    program = tmp_path / "programs/scontrol"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho >>{asked}\nif [ $(wc -l <{asked}) -le 2 ]; then\n"
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\nfi\n"
        f'exec {shutil.which("scontrol")} "$@"\n'
    )
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{jobs.environment['PATH']}"}
    run = jobs.finish(write_job(jobs, "busy", 'srun "$LAUNCHER" echo begun'), env=path)
    assert run.log.count("Slurm does not respond; retrying") == 2
    assert "begun" in run.log


def test_job_after_another_one(jobs):
    first = jobs.job(write_job(jobs, "first", "srun sleep 1"))
    second = jobs.job(write_job(jobs, "second", "srun true"), f"--after={first}")
    assert jobs.slurm.wait(second) == "COMPLETED"
    assert jobs.run(first).record["ended"] <= jobs.run(second).record["started"]
    failed = jobs.job(write_job(jobs, "failed", "false"), "--hold")
    never = jobs.job(write_job(jobs, "never", "true"), f"--after={failed}")
    jobs.slurm.run(["scontrol", "release", failed])
    assert jobs.slurm.wait(never) == "CANCELLED"
    refused = jobs.submit("local/never.sbatch", f"--after={failed}", check=False)
    assert f"error: --after names a job that has not succeeded: {failed}\n" in refused.stderr


@pytest.mark.slow  # of a sweep: the next one
def test_each_task_of_an_array_has_a_run(jobs):
    job = write_job(jobs, "array", 'echo "task $SLURM_ARRAY_TASK_ID"; srun "$LAUNCHER" true')
    number = jobs.job(job, "--array=1,3")
    for task in (1, 3):
        name = f"{number}_{task}"
        assert jobs.slurm.wait(name) == "COMPLETED"
        (folder,) = jobs.runs.glob(f"{name}-array/")
        assert json.loads((folder / "record.json").read_text())["job"] == name
        assert f"task {task}" in (jobs.runs / f"{name}-array.log").read_text()


def test_each_task_of_a_sweep_has_its_values(jobs, tmp_path):
    show = "python3 -c 'import sys; print(sys.argv[1:])'"
    job = write_job(
        jobs, "sweep", f'SLURM_LABELIO=0 srun "$LAUNCHER" {show} "${{JOB_ARGUMENTS[@]}}"'
    )
    lines = ["3e-4", 'it\'s  "2" $HOME', "@{x} @{", "only later"]
    (tmp_path / "my values").write_text("\n".join(lines))
    words = ["--value", f"@{{{tmp_path}/my values}}", f"--name=v-@{{{tmp_path}/my values}}"]
    number = jobs.job(job, "--hold", "--array=0-2%2", "--", *words)
    (tmp_path / "my values").unlink()  # the submission has kept them
    jobs.slurm.run(["scontrol", "release", number])
    for task, line in enumerate(lines[:3]):
        assert jobs.slurm.wait(f"{number}_{task}") == "COMPLETED"
        run = jobs.run(f"{number}_{task}")
        values = ["--value", line, f"--name=v-{line}"]
        assert f"{values!r}\n" in run.log
        assert run.written("arguments").split("\0")[:-1] == values
    shown = jobs.submit("status").stdout
    assert f"{number:<12} sweep            3 completed\n" in shown
    assert "    --value 3e-4 --name=v-3e-4\n" in shown
    again = jobs.job("rerun", f"{number}_2")
    assert jobs.slurm.wait(f"{again}_2") == "COMPLETED"
    assert jobs.run(f"{again}_2").log.splitlines()[-1] == run.log.splitlines()[-1]


def test_rerun_is_the_same_job_again(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path, '[environment.set]\nMARK = "first"\n')
    body = 'srun "$LAUNCHER" sh -c "echo mark: \\$MARK with $*"'
    job = write_job(clone, "again", body, "#SBATCH --nodes=1")
    first = clone.finish(job, "--nodes=2", "--time=5", "--", "a b", "c")
    clone.configure((clone.root / "configuration.toml").read_text().replace("first", "second"))
    (clone.root / job).write_text("#!/bin/bash\nfalse\n")
    second = clone.finish("rerun", first.job)
    assert "mark: first with a b c" in second.log
    record = second.record
    assert record["nodes"] == "2"
    assert record["time_limit"] == "00:05:00"
    assert record["run_again"] == str(first.folder)
    launcher = second.written("launcher").replace(second.folder.name, first.folder.name)
    assert launcher == first.written("launcher")
    assert second.written("arguments") == first.written("arguments")
    third = clone.finish("rerun", first.folder.name, "--nodes=1", "--", "d")
    assert "mark: first with d" in third.log
    assert third.record["nodes"] == "1"


@pytest.mark.slow  # as with arguments above
def test_rerun_without_arguments_has_none(jobs):
    job = write_job(jobs, "bare", 'echo "${#JOB_ARGUMENTS[@]} arguments"; srun "$LAUNCHER" true')
    run = jobs.finish(job)
    assert "0 arguments" in jobs.finish("rerun", run.job).log


@pytest.mark.slow  # of a sweep above
def test_rerun_of_a_task_of_an_array_is_that_task(jobs):
    job = write_job(jobs, "tasks", 'echo "task $SLURM_ARRAY_TASK_ID"; srun "$LAUNCHER" true')
    number = jobs.job(job, "--array=4,6")
    assert jobs.slurm.wait(f"{number}_6") == "COMPLETED"
    again = jobs.job("rerun", f"{number}_6")
    assert jobs.slurm.wait(f"{again}_6") == "COMPLETED"
    assert [path.name for path in jobs.runs.glob(f"{again}_*-tasks")] == [f"{again}_6-tasks"]


@pytest.mark.slow  # tests/jobs/test_reruns.py
def test_rerun_of_a_plain_sbatch_asks_for_the_same(jobs):
    job = write_job(jobs, "plainly", 'srun "$LAUNCHER" true')
    given = ["--gres=gpu:2", "--constraint=fat", "--cpus-per-task=3", "--time=7"]
    number = jobs.slurm.submit(
        "--output=/dev/null", *given, job, cwd=jobs.root, env=jobs.environment
    )
    jobs.slurm.wait(number)
    again = jobs.job("rerun", number, "--live")
    jobs.slurm.wait(again)
    first, second = jobs.slurm.facts(number), jobs.slurm.facts(again)
    for fact in ("TresPerNode", "Features", "CPUs/Task", "TimeLimit", "JobName"):
        assert first[fact] == second[fact], fact


# It waits for Slurm's clock; test_job_sites.py sends the same signal.
@pytest.mark.slow
def test_signal_before_the_time_limit_is_slurms_own(jobs):
    """The real one: Slurm sends it up to a minute early, and jobs take whole minutes."""
    arguments = [*TRAINING, "--steps", "100000", "--run-name", "limited"]
    number = jobs.job(LOCAL, "--time=2", "--signal=USR1@40", "--", *arguments)
    assert jobs.slurm.wait(number, timeout=400) == "COMPLETED", jobs.slurm.log(number)
    assert "stopped by a signal" in jobs.slurm.log(number)


def test_signal_that_comes_before_pytorch_is_there_ends_nothing(jobs):
    arguments = [*TRAINING, "--steps", "3", "--run-name", "early"]
    number = jobs.job("lumi/run_training_ranks_lumi.sbatch", *SMALL, "--", *arguments)
    jobs.wait_until(number, lambda: _processes(b"train.py", b"early") == 2)
    jobs.slurm.run(["scancel", "--signal=USR1", number])
    assert jobs.slurm.wait(number) == "COMPLETED", jobs.slurm.log(number)


def _processes(*words):
    """Count the Python processes with these words in their arguments; Slurm's nodes are here."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().split(b"\0")
            found += line[0] == b"python" and all(word in b" ".join(line) for word in words)
    return found


@pytest.mark.slow  # tests/jobs/test_reruns.py
def test_rerun_without_its_image_is_told(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path)
    run = clone.finish(write_job(clone, "gone", 'srun "$LAUNCHER" true'))
    record = {**run.record, "image": "/none/x.sif"}
    (run.folder / "record.json").write_text(json.dumps(record, indent=2))
    told = clone.submit("rerun", run.job, check=False)
    assert told.returncode == 1
    assert f"error: the image of run {run.folder.name} no longer exists: /none/x.sif" in told.stderr


@pytest.mark.slow  # test_status_is_read_by_programs
def test_status_shows_jobs_with_cost_and_last_line(jobs):
    body = 'srun "$LAUNCHER" sh -c "echo almost there; sleep 600"'
    job = write_job(jobs, "slow", body)
    (jobs.root / job).write_text(
        (jobs.root / job).read_text().replace("start_job local", "start_job jwb")
    )
    number = jobs.job(job, "--partition=booster", "--machine=jwb")
    waiting = jobs.job(job, "--begin=now+1hour", "--partition=booster", "--machine=jwb")
    jobs.wait_until(number, lambda: "almost there" in jobs.slurm.log(number))
    shown = jobs.submit("status").stdout
    line = next(line for line in shown.splitlines() if line.startswith(f"{number} "))
    assert "RUNNING" in line
    assert "core-hours" in line
    assert "    0: almost there" in shown
    assert f"{waiting} " in shown
    assert "    pending: BeginTime" in shown


def test_code_and_changes_are_recorded(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path)
    (clone.root / ".gitignore").write_text("__pycache__/\n")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"]):
        processes.run([*git, *command], env=clone.environment, cwd=clone.root)
    with open(clone.root / "train.py", "a") as file:
        file.write("# mine\n")
    (clone.root / "new.py").write_text("new\n")
    run = clone.finish(write_job(clone, "code", 'srun "$LAUNCHER" true'))
    assert "+# mine\n" in run.written("repositories", "longship.patch")
    commit = run.written("repositories", "longship.commit")
    head = processes.run(["git", "rev-parse", "HEAD"], env=clone.environment, cwd=clone.root).stdout
    assert f"commit {head}" in commit
    assert "+++ b/new.py\n" in run.written("repositories", "longship.patch")
    assert run.written("repositories", "longship.patch").count("diff --git") == 3  # and the job


def test_no_secret_is_written_down(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path)
    job = write_job(clone, "secret", 'srun "$LAUNCHER" sh -c "echo length \\${#HF_TOKEN}"')
    run = clone.finish(job, env={"HF_TOKEN": SECRET})
    assert f"length {len(SECRET)}" in run.log
    for path in clone.runs.rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text(errors="replace"), path


def test_interrupted_submit_leaves_nothing_half_done(jobs, tmp_path):
    begun = tmp_path / "begun"
    program = tmp_path / "programs/sbatch"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--test-only*) exec {shutil.which("sbatch")} "$@" ;; esac\n'
        f"echo >{shlex.quote(str(begun))}\nexec sleep 600\n"
    )
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{jobs.environment['PATH']}"}
    waiting = jobs.start("submit.py", LOCAL, "--begin=now+1hour", env=path)
    try:
        processes.wait_until(lambda: begun.exists() or waiting.poll() is not None)
        os.killpg(waiting.pid, signal.SIGINT)
        _, errors = waiting.communicate(timeout=processes.PATIENCE)
    finally:
        processes.end_group(waiting)
    assert waiting.returncode in (130, -signal.SIGINT), errors
    assert "Traceback" not in errors
    assert not list(jobs.runs.rglob("*.partial*"))
    assert not jobs.slurm.run(["squeue", "--me", "--noheader"]).stdout


@pytest.fixture(autouse=True)
def _no_jobs_of_other_tests(slurm):
    """End the jobs of each test with it, also where it made a clone of its own."""
    return slurm
