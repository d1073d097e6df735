"""Jobs on a real Slurm run the code of their submission, whatever happens to it while they wait."""

import re
import shutil

import pytest
from support import processes
from support.repository import toml

PROBE = """
import pathlib, sys
import helper
data = pathlib.Path("data/set").read_text().strip()
pathlib.Path("results").mkdir(exist_ok=True)
with open("results/lines", "a") as file:
    file.write("one\\n")
print("probe", helper.MARK, pathlib.Path("notes").read_text().strip(), data, *sys.argv[1:])
"""
# The test decides when the first start of a job ends.
BODY = """
srun "$LAUNCHER" python3 probe.py "${JOB_ARGUMENTS[@]}"
srun "$LAUNCHER" bash -c 'bash "$LONGSHIP_REPOSITORIES/tool/run.sh"'
srun "$LAUNCHER" bash "$STACK_DIR/own.sh"
# as a job does that changes its own code: no other job has it
if [[ -d $RUN_DIR/code ]]; then
    sed -i s/first/changed/ "$LONGSHIP_ROOT/helper.py" "$RUN_DIR/code/tool/run.sh"; : >notes
fi
if [[ ${JOB_ARGUMENTS[0]:-} == wait && ${SLURM_RESTART_COUNT:-0} == 0 ]]; then srun sleep 600; fi
"""
FIRST = ["probe first new untracked", "tool first", "stack first"]
LATER = ["probe later later untracked", "tool later", "stack later"]


def git(clone, folder, *words):
    command = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@x", *words]
    return processes.run(command, env=clone.environment).stdout


@pytest.fixture
def clone(make_job_clone, slurm, tmp_path):
    """Give a clone with a job that runs its code, a stack's and an external repository's."""
    clone = make_job_clone(tmp_path)
    clone.tool = clone.scratch / "project/repos/tool"
    clone.configure(
        (clone.root / "configuration.toml").read_text()
        + f'[[repositories]]\nname = "tool"\nurl = {toml(clone.tool)}\ninstall = "none"\n'
    )
    clone.job_file = clone.root / "local/probe.sbatch"
    clone.job_file.write_text(
        "#!/usr/bin/env bash\n#SBATCH --job-name=probe\n#SBATCH --time=00:10:00\n"
        "#SBATCH --requeue\n#SBATCH --open-mode=append\n"
        f'start_job local "$@"\n{BODY}'
    )
    for name, text in {".gitignore": "__pycache__/\n/data/\n", "probe.py": PROBE}.items():
        (clone.root / name).write_text(text)
    (clone.root / "data").mkdir()
    (clone.root / "data/set").write_text("untracked\n")
    clone.tool.mkdir(parents=True)
    (clone.tool / ".gitignore").write_text("/outputs/\n")
    mark(clone, "first")
    for folder in (clone.root, clone.tool):
        git(clone, folder, "init", "--quiet", "--initial-branch=main")
        git(clone, folder, "add", "--all")
        git(clone, folder, "commit", "--quiet", "--message=first")
    # what is not committed is part of it too
    (clone.root / "notes").write_text("new\n")
    return clone


def mark(clone, text):
    """Write a text into what each part of a job prints."""
    (clone.root / "helper.py").write_text(f"MARK = {text!r}\n")
    (clone.root / "stacks/pytorch/own.sh").write_text(f"echo stack {text}\n")
    run = f'echo tool {text}\necho step >>"${{0%/*}}/outputs/steps"\n'
    (clone.tool / "run.sh").write_text(run)


def change_everything(clone):
    """Edit, commit, delete and move branches, in the clone and in the external repository."""
    mark(clone, "later")
    (clone.root / "notes").write_text("later\n")
    for folder in (clone.root, clone.tool):
        git(clone, folder, "add", "--all")
        git(clone, folder, "commit", "--quiet", "--message=later")
        git(clone, folder, "branch", "--force", "old", "HEAD~")
        git(clone, folder, "checkout", "--quiet", "--orphan", "other")
        git(clone, folder, "commit", "--quiet", "--message=other")
        git(clone, folder, "branch", "--delete", "--force", "main")


def printed(log):
    """Give what the three parts of a job have printed, in the last start of it."""
    return re.findall(
        r"^ *\d+: ((?:probe|tool|stack) .*?)$", log.rsplit("longship: run", 1)[1], re.M
    )


def test_jobs_run_the_code_of_their_submission(clone, slurm):
    """One, a chain, an array, and those that are to run from the clone; then runs of them again."""
    hold = ("local/probe.sbatch", "--hold")
    single = clone.submit(*hold, "--", "a b")
    (archive,) = clone.runs.glob("code/*.tar")
    told = f"code: frozen in {archive}; later changes do not reach this job\n"
    assert told in single.stderr
    job = single.stdout.split()[0]
    chain = clone.submit(*hold, "--chain=2").stdout.split()
    array = clone.job(*hold, "--array=0-1", "--yes")
    live = clone.submit(*hold, "--live")
    assert "code: not frozen: the job runs the files of" in live.stderr
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(f"jobs.freeze = false\n{text}")
    unfrozen = clone.job(*hold)
    bare = text.replace('runtime = "apptainer"', 'runtime = "host"')
    clone.configure(f'{bare}[packages]\nrequirements = ""\n')
    host = clone.job(*hold)
    clone.configure(text)
    change_everything(clone)
    (clone.root / "probe.py").rename(clone.root / "moved.py")
    slurm.run(["scontrol", "release", job, *chain, array])
    for number in (job, *chain, f"{array}_0", f"{array}_1"):
        assert slurm.wait(number) == "COMPLETED", slurm.log(number)
    expected = [f"{FIRST[0]} a b", *FIRST[1:]]
    assert printed(clone.run(job).log) == expected
    for number in (*chain, f"{array}_0", f"{array}_1"):
        assert printed(clone.run(number).log) == FIRST
    # each has its own copy, and what it wrote next to it with a relative path
    assert (clone.run(job).folder / "code/longship/results/lines").read_text() == "one\n"
    assert not (clone.root / "results").exists()
    kept = f"longship: written next to the code, and kept in {clone.run(job).folder}/code: "
    (line,) = [each for each in slurm.log(job).splitlines() if each.startswith(kept)]
    assert "longship/results/lines" in line and line.endswith("(4 in all)")
    slurm.run(["scontrol", "release", host])
    assert slurm.wait(host) == "COMPLETED", slurm.log(host)
    assert printed(clone.run(host).log) == FIRST
    # what git ignores in a repository is that of the repository, from the first job on
    assert (clone.tool / "outputs/steps").read_text() == "step\n" * 6
    assert len(list(clone.runs.glob("code/*.tar"))) == 2  # another configuration.toml
    assert clone.run(job).record["repository"] == str(clone.root)
    (clone.root / "moved.py").rename(clone.root / "probe.py")
    slurm.run(["scontrol", "release", live.stdout.split()[0], unfrozen])
    for number in (live.stdout.split()[0], unfrozen):
        assert slurm.wait(number) == "COMPLETED", slurm.log(number)
        assert printed(clone.run(number).log) == LATER

    mark(clone, "last")
    shutil.rmtree(clone.runs / "code")  # as if it had been pruned; each run has its archive
    again = [clone.job("rerun", job), clone.job("rerun", job, "--live")]
    for number, lines in zip(
        again, (expected, ["probe last later untracked a b", "tool last", "stack last"])
    ):
        assert slurm.wait(number) == "COMPLETED", slurm.log(number)
        assert slurm.log(number) and printed(clone.run(number).log) == lines
    told = clone.submit("rerun", live.stdout.split()[0], check=False)
    assert told.returncode == 1 and not told.stdout
    error, hint = told.stderr.splitlines()[-2:]
    assert (
        error.startswith("error: the code of ") and "was not kept: it ran from the clone" in error
    )
    assert hint == "hint: to run the current code, add: --live"


def test_requeued_job_runs_the_same_code(clone, slurm):
    job = clone.job("local/probe.sbatch", "--", "wait")
    clone.wait_until(job, lambda: "stack first" in slurm.log(job))
    change_everything(clone)
    slurm.run(["scontrol", "requeue", job])
    assert slurm.wait(job) == "COMPLETED", slurm.log(job)
    assert slurm.log(job).count("longship: run") == 2
    assert printed(slurm.log(job)) == [f"{FIRST[0]} wait", *FIRST[1:]]
