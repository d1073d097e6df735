"""The start and end of a job, and the record of its code."""

import json
import secrets
import shlex
import stat
import sys

import pytest
from support.git import record_code


def test_gpus_that_are_dealt_out_unevenly_are_told(bash):
    environment = {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS": "a100:4"}
    told = bash("job_set_shape 3", env=environment, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith(
        "error: Slurm distributed a100:4 GPUs unevenly over 2 nodes\nhint: "
    )


FAILED = "error: job 7, which this job resumes, ended in state {}\n"


@pytest.mark.parametrize(
    ("said", "record", "goes_on"),
    [
        # its own record decides, whatever Slurm says or has forgotten
        ("", {"exit_code": "0"}, True),
        ("CANCELLED", {"exit_code": "0"}, True),
        ("", {"exit_code": "143", "stopped": "cancelled"}, False),
        ("", {"exit_code": "0", "stopped": "cancelled"}, False),
        # it was to start again, and was cancelled as it waited for that
        ("", {"exit_code": "143", "stopped": "requeued"}, False),
        ("COMPLETED", {"exit_code": "0", "stopped": "requeued"}, False),
        ("CANCELLED", {"exit_code": "143", "stopped": "preempted"}, False),
        ("PREEMPTED", {"exit_code": "143", "stopped": "preempted"}, True),
        ("", None, False),
        ("", {"exit_code": "0", "cluster": "another"}, False),
        # its watcher has seen two starts without a step more
        ("", {"exit_code": "1", "stuck": "yes"}, False),
        # it has no end: the node is lost, or it was killed
        ("NODE_FAIL", {}, True),
        ("CANCELLED", {}, False),
    ],
)
def test_chain_ends_if_a_job_was_cancelled_or_is_stuck(said, record, goes_on, bash, tmp_path):
    """scontrol is a stand-in here, for states that take minutes or a broken node to reach."""
    programs = tmp_path / "bin"
    programs.mkdir()
    ends = "" if said else "exit 1\n"
    (programs / "scontrol").write_text(
        f"#!/bin/sh\n{ends}echo 'JobId=7 JobState={said} Reason=x'\n"
    )
    (programs / "scontrol").chmod(0o755)
    if record is not None:
        (tmp_path / "7-train").mkdir()
        text = json.dumps({"job": "7", "cluster": "", **record}, indent=2)
        (tmp_path / "7-train/record.json").write_text(f"{text}\n")
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    for steps in ("'' ''", "9 8"):
        lines = [f"RUN_DIR='{tmp_path}/8-train'", f"job_check_previous 7 {steps}"]
        told = bash(*lines, env=path, check=False)
        assert told.returncode == (0 if goes_on else 1), told.stderr
        assert goes_on or "error: job 7, which this job resumes, ended in state " in told.stderr


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("'' ''", "without a step"),
        ("'' 8", "without a step"),
        ("8 8", "at step 8, no step more than the job before it"),
        ("7 8", "at step 7, no step more than the job before it"),
        ("0 ''", ""),
        ("9 8", ""),
        ("10 9", ""),
    ],
)
@pytest.mark.parametrize(
    ("said", "record", "state"),
    [
        ("", {"exit_code": "1"}, "FAILED"),
        ("FAILED", {"exit_code": "135"}, "FAILED"),  # SIGBUS: USR1 ended squashfuse_ll
        ("TIMEOUT", {"exit_code": "143"}, "FAILED"),
        ("TIMEOUT", {}, "TIMEOUT"),
        ("OUT_OF_MEMORY", {}, "OUT_OF_MEMORY"),
        ("", {}, "unknown"),
    ],
)
def test_chain_goes_on_while_its_jobs_make_steps(said, record, state, steps, why, bash, tmp_path):
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho 'JobId=7 JobState={said} Reason=x'\n")
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "7-train").mkdir()
    text = json.dumps({"job": "7", "cluster": "", **record}, indent=2)
    (tmp_path / "7-train/record.json").write_text(f"{text}\n")
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    lines = [f"RUN_DIR='{tmp_path}/8-train'", f"job_check_previous 7 {steps}"]
    told = bash(*lines, env=path, check=False)
    assert told.returncode == (1 if why else 0), told.stderr
    assert told.stderr.startswith(FAILED.format(f"{state} {why}") if why else "")


@pytest.mark.parametrize(
    ("log", "stopped"),
    [
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***\n", "cancelled"),
        (
            "*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE to SIGNAL Terminated ***\n",
            "cancelled",
        ),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO TIME LIMIT ***\n", "timed out"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO PREEMPTION ***\n", "preempted"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO JOB REQUEUE ***\n", "requeued"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***\nlongship: run /r/7-train\nx\n", ""),
        ("*** JOB 77 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***\n", ""),
        ("*** STEP 7.0 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***\n", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_who_has_stopped_a_job_is_known_by_its_log(log, stopped, bash, tmp_path):
    if log is not None:
        (tmp_path / "a log").write_text(f"{log}more\n")
    ask = f"run_find_reason '{tmp_path}/a log'; printf %s \"${{longship_facts[*]}}\""
    found = bash("SLURM_JOB_ID=7 longship_facts=()", ask).stdout
    assert found == (f"stopped {stopped}" if stopped else "")


@pytest.mark.parametrize("code", [0, 1, 7, 143])
def test_end_keeps_the_exit_code_when_the_record_cannot_be_written(code, bash, tmp_path):
    lines = (
        f"RUN_DIR='{tmp_path}/none' longship_log= longship_facts=(job 1)",
        "at_exit run_end",
        f"exit {code}",
    )
    done = bash(*lines, check=False)
    assert done.returncode == code
    assert f"none/record.json cannot be completed: the job exited with code {code}\n" in done.stderr
    assert done.stderr.count("error: cannot write ") == 1


def test_record_that_cannot_be_completed_at_last_is_an_error(bash, tmp_path):
    lines = (
        f"RUN_DIR='{tmp_path}/run' longship_log= longship_facts=(job 1)",
        """spoil() { file_begin() { fail "cannot write $1" x; }; }""",
        "longship_at_end=(spoil)",
        'mkdir "$RUN_DIR"; at_exit run_end',
    )
    done = bash(*lines, check=False)
    assert done.returncode == 0 and json.loads((tmp_path / "run/record.json").read_text())["ended"]
    assert done.stderr.count("error: cannot write ") == 1


def test_record_of_which_a_part_could_not_be_written_is_an_error(bash, tmp_path):
    fill = 'printf() { [[ $1 == -v || $* != *value* ]] && builtin printf "$@"; }'
    done = bash(fill, f"record_write '{tmp_path}/x' name value last x", check=False)
    assert done.returncode == 1 and f"error: cannot write {tmp_path}/x\n" in done.stderr


CANCELLED = "*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***"
# stand-ins, which take long on a slow file system: Slurm can kill the job meanwhile
EXPLAIN = """
import os, shutil
shutil.copy(os.environ["RUN_DIR"] + "/record.json", os.environ["RUN_DIR"] + "/meanwhile")
print("problem  job cancelled: line 1\\nfirst to fail: task 3\\n  odd")
with open(os.environ["RUN_DIR"] + "/log", "a") as log:
    log.write(os.environ["LATE"])
"""


@pytest.mark.parametrize("late", [False, True])
def test_end_is_recorded_before_what_takes_long(late, bash, tmp_path):
    """A chain that was cancelled would go on after a job without an end in its record."""
    (tmp_path / "doctor.py").write_text(EXPLAIN)
    (tmp_path / "log").write_text("" if late else f"{CANCELLED}\n")
    lines = (
        f"longship_log='{tmp_path}/log' longship_facts=(job 7) SLURM_JOB_ID=7",
        "measure() { run_set_fact gpu_hours 1.5; }",
        "longship_at_end=(measure)",
        "at_exit run_end",
        "exit 143",
    )
    env = {"RUN_DIR": str(tmp_path), "LONGSHIP_ROOT": str(tmp_path)}
    env["LATE"] = f"{CANCELLED}\n" if late else ""
    assert bash(*lines, env=env, check=False).returncode == 143
    first = json.loads((tmp_path / "meanwhile").read_text())
    last = json.loads((tmp_path / "record.json").read_text())
    assert first["exit_code"] == "143" and first["ended"] == last["ended"]
    assert first.get("stopped") == (None if late else "cancelled")
    assert last["stopped"] == "cancelled" and last["gpu_hours"] == "1.5"
    assert last["failed"] == "task 3"


@pytest.mark.parametrize("submodule", [False, True])
def test_code_of_somebody_else_is_recorded_and_nothing_of_it_is_run(
    submodule, recorded, run, tmp_path
):
    """All that a repository's own settings can start: filters, monitors, hooks, other programs."""
    folder, git = recorded
    if submodule:
        (folder / "sub").mkdir()
        git = ["git", "-C", folder / "sub", *git[3:]]
        run([*git, "init", "--quiet"])
    (git[2] / "filtered").write_text("first\n")
    (git[2] / ".gitattributes").write_text("filtered filter=x diff=x\n* filter=y\n")
    run([*git, "add", "."])
    run([*git, "commit", "--quiet", "--message=z"])
    if submodule:
        outer = ["git", "-C", folder, *git[3:]]
        run([*outer, "add", "sub", "code"])
        run([*outer, "commit", "--quiet", "--message=y"])
        (folder / "code").write_text("mine again\n")
    (git[2] / "filtered").write_text("second\n")
    program = tmp_path / "canary"
    program.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path / 'was run'))}\ncat\n")
    program.chmod(0o755)
    value = shlex.quote(str(program))
    keys = ["filter.x.clean", "filter.y.process", "diff.x.command", "diff.x.textconv"]
    keys += ["core.fsmonitor", "diff.external", "core.sshCommand", "core.pager", "core.editor"]
    for key in keys:
        run([*git, "config", key, value])
    run([*git, "config", "filter.x.required", "true"])
    run([*git, "config", "core.hooksPath", tmp_path / "hooks"])
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/post-index-change").symlink_to(program)
    theirs = record_code(run, folder, tmp_path / "theirs")
    assert not (tmp_path / "was run").exists()
    patch = theirs.with_suffix(".patch").read_text()
    assert ("+mine again\n" if submodule else "+second\n") in patch
    # what is recorded can be applied to what it names
    commit = theirs.with_suffix(".commit").read_text().split()[1]
    run(["git", "clone", "--quiet", "--no-checkout", folder, tmp_path / "again"])
    again = ["git", "-C", tmp_path / "again"]
    run([*again, "checkout", "--quiet", commit])
    run([*again, "apply", theirs.with_suffix(".patch")])
    for name in ["code"] if submodule else ["code", "filtered"]:
        assert (tmp_path / "again" / name).read_text() == (folder / name).read_text()
    run([*git, "status"])
    assert (tmp_path / "was run").exists(), "these settings do nothing with this git"


@pytest.mark.parametrize("place", ["added", "removed", "beside", "deleted"])
def test_password_is_in_no_recorded_change(place, recorded, run, tmp_path):
    folder, git = recorded
    canary = secrets.token_hex(12)
    login = f"--index-url https://me:{canary}@example.org/simple\n"
    name = "it's re\tquired.txt"
    (folder / name).write_text("torch\n" if place == "added" else f"{login}torch\n")
    run([*git, "add", "."])
    run([*git, "commit", "--quiet", "--message=z"])
    texts = {"added": f"{login}torch\n", "removed": "torch\n", "beside": f"{login}numpy\n"}
    if place == "deleted":
        (folder / name).unlink()
    else:
        (folder / name).write_text(texts[place])
    (folder / "code").write_text("mine again\n")
    record = record_code(run, folder, tmp_path / "record")
    patch = record.with_suffix(".patch")
    written = patch.read_text() + record.with_suffix(".commit").read_text()
    assert canary not in written and "+mine again\n" in written
    assert "left out, because it contains a password: it's re?quired.txt\n" in written
    run([*git, "checkout", "--quiet", "--", "."])
    run([*git, "apply", patch])
    assert (folder / "code").read_text() == "mine again\n"
    assert not list(tmp_path.glob("longship-git.*"))


BUSY = """#!/bin/sh
echo "$*" >>"$FOLDER/asked"
if [ "$(wc -l <"$FOLDER/asked")" -gt "$FAILURES" ]; then echo "JobId=7 Name=a  b"; exit; fi
echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (3, 0), (1000, 1)])
def test_job_waits_for_a_slurm_that_is_busy(failures, code, run, root, clean_environment, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", BUSY), ("sleep", '#!/bin/sh\necho "$1" >>"$FOLDER/slept"\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        **clean_environment,
        **{"PATH": f"{programs}:{clean_environment['PATH']}", "FOLDER": str(tmp_path)},
        **{"FAILURES": str(failures), "SLURM_JOB_ID": "7"},
    }
    script = 'source "$1/lib/shell/job.bash"; job_show'
    told = run(["bash", "-c", script, "bash", root], env=environment, check=False)
    assert told.returncode == code
    assert (tmp_path / "asked").read_text().startswith("show job --oneliner 7\n")
    waited = (tmp_path / "slept").read_text().split() if failures else []
    if code:
        assert 240 < sum(map(int, waited)) < 600
        assert told.stderr.splitlines()[-2].startswith("error: Slurm reports nothing about job 7")
        assert told.stderr.splitlines()[-1].startswith("hint: ")
    else:
        assert told.stdout == "JobId=7 Name=a  b\n"
        assert waited == ["1", "2", "3"][:failures]


@pytest.fixture
def recorded(run, tmp_path):
    """Give a repository, its folder, and a run that has recorded its code."""
    folder = tmp_path / "it's a repository"
    folder.mkdir()
    git = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@x"]
    run([*git, "init", "--quiet"])
    (folder / "code").write_text("first\n")
    run([*git, "add", "."])
    run([*git, "commit", "--quiet", "--message=x"])
    (folder / "code").write_text("mine\n")
    record_code(run, folder, tmp_path / "12-train")
    return folder, git


def test_what_a_run_is_started_again_with_nobody_else_can_change(bash, tmp_path):
    """Whatever the umask: a group that shares a folder is told to use 007."""
    lines = (
        "umask 0",
        f"RUN_DIR='{tmp_path}' JOB_ARGUMENTS=(a) LONGSHIP_JOB_OPTIONS=--nodes=1",
        "SLURM_JOB_NODELIST=n",
        "run_begin ''",
        "builtin trap - EXIT",
        "umask",
    )
    assert bash(*lines).stdout == "0000\n"
    for name in ("arguments", "options"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644


def test_version_that_is_imported_is_recorded(root, run, clean_environment, tmp_path):
    """A venv or an overlay has a newer version than the image under it."""
    for name, version in (("venv", "2.0"), ("image", "1.0")):
        folder = tmp_path / name / "longship_tiny.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: longship-tiny\nVersion: {version}\n")
    path = {"PYTHONPATH": f"{tmp_path}/venv:{tmp_path}/image"}
    command = [sys.executable, root / "lib/jobs/inside/list_packages.py"]
    listed = run(command, env={**clean_environment, **path}).stdout
    assert [each for each in listed.split() if "tiny" in each] == ["longship-tiny==2.0"]
