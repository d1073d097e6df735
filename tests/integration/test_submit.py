"""submit.py with a real Slurm and real files: what it refuses, what it asks, what it leaves."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from integration.test_jobs import START, write_job
from support import processes
from support.lab import fill, is_told
from support.repository import toml
from support.terminal import Terminal
from support.tiers import slow

from lib.configuration.partitions import Price
from lib.configuration.sites import Machine
from lib.jobs.cost import per_hour
from lib.jobs.options import Option, combined, read_header, read_options, read_variables
from lib.jobs.size import size_of_facts, size_of_options

LOCAL = "local/run_training_local.sbatch"
TRAIN = "jsc/run_training_jwb.sbatch"
LATER = "--begin=now+1hour"


def queued(clone):
    """Name all jobs of this user that wait or run."""
    return clone.slurm.run(["squeue", "--me", "--noheader", "--format=%i"]).stdout.split()


def change(clone, old, new):
    """Change the configuration."""
    text = (clone.root / "configuration.toml").read_text()
    assert old in text
    clone.configure(text.replace(old, new))


def refused(clone, words, message, hint, **options):
    """Hold that a job is refused in two lines, and none is submitted."""
    done = clone.submit(*words, check=False, **options)
    is_told(done, message, hint)
    assert done.stdout == ""
    assert queued(clone) == []
    assert not list(clone.runs.rglob("*.partial*"))
    return done


@pytest.fixture
def own(make_job_clone, slurm, tmp_path):
    """Give a clone whose configuration a test may change."""
    return make_job_clone(tmp_path)


# --- what is priced

NOTHING = "a missing --nodes"


@pytest.mark.parametrize(
    ("typed", "header", "environ", "unclear"),
    [
        ("-N2 --ntasks-per-node=4 -c3", "", {}, ""),
        ("-N1 -n2 --ntasks-per-node=4", "", {}, ""),
        ("-N1-3 -n4", "", {}, ""),
        ("-N1 --gpus=8 --gpus-per-task=1 -c2", "", {}, ""),
        ("-N1 --gpus=2 --cpus-per-gpu=8", "", {}, ""),
        ("-N1 --gpus=2", "", {"SBATCH_CPUS_PER_GPU": "8"}, ""),
        ("-N1 --mem=64gb --exclusive", "", {}, ""),
        ("-N1", "", {"SBATCH_EXCLUSIVE": "", "SBATCH_HINT": "nomultithread"}, ""),
        ("--ignore-pbs", "#PBS -l nodes=3", {}, ""),
        ("", "#PBS -l nodes=3", {"SBATCH_IGNORE_PBS": ""}, ""),
        ("-n300 -c2", "", {}, NOTHING),
        ("--gres=gpu:2 --gpus=4", "", {}, NOTHING),
        ("--spread-job -n3", "", {}, "--spread-job"),
        ("-n3", "", {"SBATCH_SPREAD_JOB": "1"}, "SBATCH_SPREAD_JOB"),
        ("-n2", "", {"SLURM_HOSTFILE": "HOSTS"}, "SLURM_HOSTFILE"),
        ("--constraint=thin*2", "", {}, "--constraint=thin*2"),
        ("--mincpus=40", "", {}, "--mincpus"),
        ("-B 2:4:1", "", {}, "--extra-node-info"),
        ("--ntasks-per-gpu=2 --gpus=4", "", {}, "--ntasks-per-gpu"),
        ("-N1 --nodelist=node1", "#PBS -l nodes=3:ppn=2", {}, "#PBS"),
        ("", "true\n#BSUB -n 4", {}, "#BSUB"),
        ("", "#BSUB -x", {}, "#BSUB"),
    ],
)
def test_no_job_is_larger_than_its_price(typed, header, environ, unclear, slurm, tmp_path):
    (tmp_path / "hosts").write_text("node1\nnode2\n")
    environ = {
        name: value.replace("HOSTS", str(tmp_path / "hosts")) for name, value in environ.items()
    }
    job = tmp_path / "job.sbatch"
    job.write_text(f"#!/bin/bash\n{header}\ntrue\n")
    price = Price(node=1000, core=1)
    machine = Machine("m", "site.toml", cores_per_node=288, gpus_per_node=8, price=price)
    words, header = typed.split(), read_header(job.read_text(), "job")
    options = [*header, *read_variables(environ), *read_options(words), Option("job-name", "x")]
    asked = size_of_options(combined(options), machine)
    assert asked.unclear == unclear
    number = slurm.submit("--output=/dev/null", *words, job, env=environ)
    assert slurm.wait(number) == "COMPLETED"
    given = size_of_facts(slurm.facts(number), "")
    # what is unclear is larger than what can be counted, or of a size that Slurm chooses
    is_covered = per_hour(given, price) <= per_hour(asked, price)
    assert is_covered or unclear, (given, asked)


# --- what is refused


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["jsc/run_traning_jwb.sbatch"], "job script not found: jsc/run_tran", f'mean "{TRAIN}"?'),
        ([LOCAL, "--partion=booster"], "unrecognized option '--partion=booster'", "change the"),
        (
            [TRAIN, "--time=25:00:00"],
            "Requested time limit is invalid",
            "partition booster has at most 1-00:00:00 (jsc/site.toml); change",
        ),
        ([LOCAL, "--partition=boster"], "Invalid partition name specified", "partitions: sinfo"),
        ([LOCAL, "--nodes=4"], "sbatch failed: ", "change the sbatch options"),
        (
            [LOCAL, "-pdevelbooster", "-t3:0:0"],
            "Requested time limit is invalid",
            "the sbatch options",
        ),
        (
            ["local/interactive.salloc", "--nodes=4"],
            "sbatch failed: ",
            "change the sbatch options",
        ),
        ([LOCAL, "--after=999999"], "Slurm does not know", "python3 submit.py status"),
    ],
)
def test_job_that_slurm_would_refuse(words, message, hint, jobs):
    refused(jobs, words, message, hint)


def test_machine_without_slurm_is_told(jobs, tmp_path):
    path = tmp_path / "programs"
    path.mkdir()
    for folder in processes.PATH.split(":"):
        for program in Path(folder).iterdir():
            if program.name != "sbatch" and not (path / program.name).is_symlink():
                (path / program.name).symlink_to(program)
    python = jobs.environment["PATH"].split(":")[0]
    hint = "submit from a login node of jwb"
    env = {"PATH": f"{python}:{path}"}
    refused(jobs, [TRAIN], "Slurm not found on this machine", hint, env=env)


def test_python_of_the_job_that_cannot_run_the_scripts_is_told(jobs, tmp_path):
    make = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"]
    processes.run(make, env=jobs.environment)
    env = {"PATH": f"{tmp_path}/bare/bin:{processes.PATH}"}
    message = "the python3 that jobs use cannot run the scripts: "
    message += f"{tmp_path}/bare/bin/python3 has no package click"
    refused(jobs, [LOCAL], message, "python3 -m venv .venv", env=env)


@pytest.mark.slow  # Slurm's own patience; test_doctor.py has a dead one too
def test_slurm_that_does_not_answer_is_told(jobs, tmp_path):
    settings = Path(jobs.environment["SLURM_CONF"])
    text = re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", settings.read_text())
    text = re.sub(r"MessageTimeout=\d+", "MessageTimeout=10", text)
    (tmp_path / "slurm.conf").write_text(text)
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    refused(jobs, [LOCAL], "Slurm does not respond: ", "try again later", env=env)
    is_told(jobs.submit("status", env=env, check=False), "squeue failed: ", "again later")


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ('account = "acc"', "", "requires --account", "set project.account"),
        (
            "image = ",
            'image = "docker://no.invalid/a/b:1" # ',
            "image not found",
            "build_container.py",
        ),
        ("image = ", 'image = "/none/x.sif" # ', "image not found: /none/x.sif", "container.image"),
        ("[environment]", '[packages]\noverlay = "mine"\n[environment]', "", "build_overlay.py"),
    ],
    ids=["account", "image", "image file", "overlay"],
)
def test_what_is_missing_is_told_with_the_command_that_makes_it(old, new, message, hint, own):
    change(own, old, new)
    refused(own, [TRAIN], message, hint)


def test_missing_venv_and_that_of_another_image_are_told(own, tmp_path):
    (link,) = own.scratch.glob("venv_*")
    venv = os.path.realpath(link)
    link.unlink()
    refused(own, [TRAIN], "Python packages are not installed", "python3 set_up.py install")
    link.symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    shutil.copy(f"{venv}/longship-inputs", tmp_path / "other")
    (tmp_path / "other/longship-base").write_text("/other.sif\n")
    refused(
        own, [TRAIN], "were installed on top of /other.sif, not of ", "python3 set_up.py install"
    )


def test_job_of_another_site_is_refused(jobs):
    env = {"LONGSHIP_MACHINE": "lumi"}
    done = refused(
        jobs,
        [TRAIN],
        f"{TRAIN} is for jwb, but this machine is lumi",
        "job scripts for this machine: ",
        env=env,
    )
    assert "lumi/*.sbatch" in done.stderr


def test_full_disk_is_told(own, small_disk):
    (link,) = own.scratch.glob("venv_*")
    disk = small_disk(12)  # for a copy of the code
    (disk / link.name).symlink_to(os.path.realpath(link))
    change(own, f"scratch_dir = {toml(own.scratch)}", f"scratch_dir = {toml(disk)}")
    own.runs = disk / "runs"
    ballast = fill(disk)
    refused(own, [LOCAL, LATER], "No space left on device", "free some space")
    ballast.unlink()
    done = own.submit(LOCAL, LATER)
    assert f"warning: {disk} has only " in done.stderr
    assert done.stdout.split() == queued(own)


def test_runs_that_cannot_be_written_to_are_told(own):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    own.runs.mkdir(exist_ok=True)
    own.runs.chmod(0o555)
    refused(own, [LOCAL, LATER], f"cannot use the directory {own.runs}/configurations", "[paths]")
    own.runs.chmod(0o755)


# --- what is asked and warned of


@pytest.fixture
def costly(own):
    """Give a clone that asks before jobs above 10 core-hours."""
    change(own, "[environment]", "[jobs]\nask_above = 10\n[environment]")
    return own


def test_costly_job_waits_for_a_yes(costly, terminal):
    for answer, submitted in (("n\n", 0), ("\n", 0), ("\x04", 0), ("y\n", 1)):
        shown = terminal(costly, "submit.py", TRAIN, LATER, stdout=subprocess.PIPE)
        shown.expect("[y/N] ")
        assert queued(costly) == []
        shown.type(answer)
        assert shown.end() == 1 - submitted, shown.said
        assert ("error: not submitted" in shown.said) == (not submitted)
        assert shown.process.stdout.read().decode().split() == queued(costly)
        assert len(queued(costly)) == submitted
    assert "core-hours" in shown.said


def test_interrupt_at_the_question_submits_nothing(costly, terminal):
    shown = terminal(costly, "submit.py", TRAIN, LATER)
    shown.expect("[y/N] ")
    shown.type("\x03")
    assert shown.end() in (130, -2)
    assert "Traceback" not in shown.said
    assert queued(costly) == []


def test_costly_job_without_a_terminal_needs_a_yes_beforehand(costly):
    refused(costly, [TRAIN, LATER], "above jobs.ask_above, and no terminal is attached", "--yes")
    done = costly.submit(TRAIN, "--yes", LATER)
    assert done.stdout.split() == queued(costly)


@pytest.mark.parametrize(
    ("numbers", "warned"),
    [
        ("1000000001* 1000000000 1100000000 6d 42 0 0 -", "is exhausted"),
        slow("500000000 1000000000 1100000000 - 42 0 0 -", ""),
        ("", ""),
    ],
    ids=["over", "room", "no Lustre"],
)
@pytest.mark.parametrize("between", [slow(" "), r"\n      "], ids=["one line", "two lines"])
def test_quota_that_is_exhausted_is_warned_of(numbers, warned, between, jobs, tmp_path):
    # A mock, as no Lustre is here. Behind a long path it begins a line of its own.
    text = f"  {jobs.scratch}{between}{numbers}" if numbers else ""
    (tmp_path / "lfs").write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
    (tmp_path / "lfs").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{jobs.environment['PATH']}"}
    done = jobs.submit(LOCAL, LATER, env=env)
    assert ("the quota of" in done.stderr) == bool(warned)
    assert warned in done.stderr
    assert done.stdout.split() == queued(jobs)


# --- what is submitted


def test_standard_output_is_the_job_id_alone(jobs):
    done = jobs.submit(LOCAL, LATER)
    assert re.fullmatch(r"\d+\n", done.stdout)
    assert f"cancel: scancel {done.stdout}" in done.stderr
    facts = jobs.slurm.facts(done.stdout.strip())
    assert f"log: {facts['StdOut']}\n" in done.stderr


@pytest.mark.needs("strace")
# more for freeze_worker.py, for each of its calls of git, and for tar and coreutils
@pytest.mark.parametrize(("options", "most"), [(["--live"], 24), ([], 40)], ids=["live", "frozen"])
def test_submission_starts_few_processes(jobs, options, most, tmp_path):
    """On a slow shared file system each costs a second; with quotas of Lustre, a mock."""
    (tmp_path / "lfs").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "lfs").chmod(0o755)
    env = {**jobs.environment, "PATH": f"{tmp_path}:{jobs.environment['PATH']}"}
    strace = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=clone,clone3,fork,vfork",
        "-o",
        tmp_path / "trace",
    ]
    jobs.submit(*options, LOCAL, LATER)  # what it keeps is there from now on
    command = jobs.command("submit.py", *options, LOCAL, LATER)
    processes.run([*strace, *command], env=env, cwd=jobs.root)
    started = re.findall(r"(?:clone3?\(.*SIGCHLD|fork\()", (tmp_path / "trace").read_text())
    assert 5 < len(started) < most


def test_dry_run_submits_and_writes_nothing(own):
    before = sorted(own.scratch.rglob("*"))
    script = own.dry_run("submit.py", LOCAL, LATER, "--", "--steps", "1")
    assert sorted(own.scratch.rglob("*")) == before
    assert queued(own) == []
    done = processes.run(["bash", "-c", script], env=own.environment, cwd="/")
    assert done.stdout.split() == queued(own)


def test_dry_run_shows_what_the_job_then_runs(jobs):
    job = write_job(jobs, "shown", 'srun "$LAUNCHER" true')
    shown = jobs.dry_run("submit.py", "--live", job, "--nodes=2")
    run = jobs.finish("--live", job, "--nodes=2")
    _, start, *_, launcher = shown.replace("%j", run.job).split("\nexit\n\n# ====")
    heading, text = launcher.split("\n", 1)
    assert heading.endswith('for each rank, outside the container: srun "$LAUNCHER" COMMAND')
    assert text == run.written("launcher")
    heading, text = start.split("\n", 1)
    assert heading.endswith(f"on the first node, where start_job in {job} sources it")
    text = re.sub(r"/bin/python(?=['\" ])", "/bin/python3", text)  # as job scripts start it
    shown, told = (
        {line.strip(" \\") for line in each.splitlines()}
        for each in (text, run.written("start.bash"))
    )
    # what only Slurm knows
    known_later = {line.split()[0] for line in told - shown}
    assert shown <= told
    assert known_later <= {"account", "cluster", "partition", "qos", "submitted"}


def test_it_may_be_called_from_anywhere(jobs, tmp_path):
    folder = tmp_path / "my $jobs, 'here'"
    folder.mkdir()
    job = folder / "its own job.sbatch"
    job.write_text('#!/bin/bash\n#SBATCH --job-name=own\nprintf "[%s]" "$PWD" "$@"\n')
    number = jobs.job(job.name, "--", "a  b", "--nodes=2", cwd=folder)
    assert jobs.slurm.wait(number) == "COMPLETED"
    assert jobs.slurm.log(number) == f"[{jobs.root}][a  b][--nodes=2]"
    assert Path(jobs.slurm.facts(number)["StdOut"]) == jobs.runs / f"{number}-own.log"
    assert jobs.submit(LOCAL, LATER, cwd=folder).stdout.split() == queued(jobs)


def test_two_submissions_at_once_are_two_jobs(own):
    started = [own.start("submit.py", LOCAL, LATER) for _ in range(2)]
    ended = [process.communicate(timeout=processes.PATIENCE) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert sorted(output.strip() for output, _ in ended) == sorted(queued(own))
    assert len(list((own.runs / "configurations").iterdir())) == 1


@pytest.mark.parametrize("words", [[], ["status", "--nodes=2"], ["rerun"], [LOCAL, "--chain=0"]])
def test_wrong_call(words, jobs):
    done = jobs.submit(*words, check=False)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")
    assert queued(jobs) == []


@pytest.mark.slow  # tests/jobs/test_jobs.py
def test_job_that_a_job_of_a_chain_submits_is_not_of_the_chain(own):
    begin = "#!/bin/bash\n#SBATCH --time=5\nstart_job local\n"
    outer = 'python3 "$LONGSHIP_ROOT/submit.py" local/inner.sbatch --nodes=2 >"$RUN_DIR/inner"\n'
    (own.root / "local/outer.sbatch").write_text(begin + outer)
    (own.root / "local/inner.sbatch").write_text(begin + 'srun "$LAUNCHER" hostname\n')
    for number in own.submit("local/outer.sbatch", "--chain=2").stdout.split():
        assert own.slurm.wait(number) == "COMPLETED", own.slurm.log(number)
        inner = own.run(own.run(number).written("inner").strip())
        assert own.slurm.wait(inner.job) == "COMPLETED", inner.log
        assert "goes_on_from" not in inner.record
        assert inner.record["nodes"] == "2"


def test_job_that_a_step_submits_does_not_inherit_its_options(own):
    """A step's binding would pin the ranks of the new job, and its distribution places them."""
    begin = f"#!/bin/bash\n#SBATCH --time=5\n{START}start_job local\n"
    (own.root / "local/inner.sbatch").write_text(begin + 'env >"$RUN_DIR/seen"\n')
    step = "srun --cpu-bind=map_cpu:0 --mem=64 --distribution=cyclic"
    plain = "sbatch --parsable local/inner.sbatch"
    command = (
        f'sh -c \'env >"$0"; python3 "$1/submit.py" local/inner.sbatch >"$2"; {plain} >"$2-plain"\''
    )
    (own.root / "local/outer.sbatch").write_text(
        f'{begin}{step} {command} "$RUN_DIR/step" "$LONGSHIP_ROOT" "$RUN_DIR/inner"\n'
    )
    run = own.finish("local/outer.sbatch")
    inner = own.run(run.written("inner").strip())
    assert own.slurm.wait(inner.job) == "COMPLETED", inner.log

    def names(text):
        return {line.partition("=")[0] for line in text.splitlines()}

    theirs = {"SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_STEP_ID"}
    assert theirs <= names(run.written("step"))
    assert not theirs & names(inner.written("seen"))
    plain = own.run(run.written("inner-plain").strip())
    assert own.slurm.wait(plain.job) == "COMPLETED", plain.log
    assert "SLURM_CPU_BIND" not in names(plain.written("seen"))


def test_status_shows_a_line_that_colours_and_redraws_itself(jobs):
    job = jobs.root / "local/redraws.sbatch"
    job.write_text(
        "#!/bin/bash\n#SBATCH --job-name=redraws\n"
        "start_job local\n"
        "printf '\\033[31mstep 1\\033[0m\\r\\033[Kstep \\033[1;32m2\\033[0m of 9\\n \\n'\n"
        "exec sleep 600\n"
    )
    number = jobs.job("local/redraws.sbatch")
    other = jobs.slurm.submit("--job-name=a/b c|d", "--output=/dev/null", "--wrap=sleep 600")
    jobs.wait_until(number, lambda: "of 9" in jobs.slurm.log(number))
    shown = jobs.submit("status").stdout
    assert "\n    step 2 of 9\n" in shown
    assert f"{other:<12} a/b c|d " in shown


def failed(clone, *options):
    """Run a job that fails; return its run."""
    begin = "start_job local\n"
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00\n{begin}exit 3\n"
    (clone.root / "local/fails.sbatch").write_text(text)
    return clone.finish("local/fails.sbatch", *options, state="FAILED")


def test_status_is_read_by_programs(own):
    odd = 'it\'s a "name" \\ | of\nmine'
    ended = failed(own)
    job = own.root / "local/named.sbatch"
    job.write_text(
        "#!/bin/bash\n#SBATCH --job-name=named\n#SBATCH --time=01:00:00\n"
        "start_job jwb\n"
        "printf 'a \"line\" \\377\\n'\nexec sleep 600\n"
    )
    done = own.submit("local/named.sbatch", "--machine=jwb", "--partition=booster", "--json")
    (submitted,) = json.loads(done.stdout)
    assert submitted["cost_at_most"] == 48 and submitted["cost_unit"] == "core-hours"
    other = own.slurm.submit(f"--job-name={odd}", "--output=/dev/null", "--wrap=sleep 600")
    waits = own.job(LOCAL, "--begin=now+1hour", "--time=1-00:00:00")
    own.wait_until(submitted["id"], lambda: "line" in own.slurm.log(submitted["id"]))
    read = {each["id"]: each for each in json.loads(own.submit("status", "--json").stdout)}
    named = read[submitted["id"]]
    assert read[other]["name"] == odd.partition("\n")[0]
    assert set(read) == {ended.job, submitted["id"], other, waits}
    assert (named["name"], named["state"], named["nodes"]) == ("named", "RUNNING", 1)
    assert named["last_line"] == 'a "line" \ufffd'
    assert named["limit_seconds"] == 3600 and 0 <= named["elapsed_seconds"] < 600
    assert named["cost"] < 48 and named["cost_unit"] == "core-hours"
    assert named["log"] == submitted["log"] and named["exit_code"] is None
    assert named["run"] == str(own.run(submitted["id"]).folder)
    assert (read[waits]["state"], read[waits]["reason"]) == ("PENDING", "BeginTime")
    assert (read[waits]["limit_seconds"], read[waits]["run"]) == (86400, "")
    over = read[ended.job]
    assert (over["state"], over["run"]) == ("ENDED", str(ended.folder))
    assert over["exit_code"] == 3
    assert over["ended"] == ended.record["ended"] and over["elapsed_seconds"] >= 0


def test_status_with_no_job_is_an_empty_list(own):
    assert json.loads(own.submit("status", "--json").stdout) == []


def test_jobs_of_a_chain_are_told_to_programs(own):
    done = own.submit(LOCAL, "--begin=now+1hour", "--chain=2", "--json", "--parsable")
    read = json.loads(done.stdout)
    assert sorted(each["id"] for each in read) == sorted(queued(own))
    assert all(each["id"] in each["log"] for each in read)
    plain = own.submit(LOCAL, "--begin=now+1hour", "--parsable").stdout
    assert plain.strip() in queued(own)


def test_status_fits_a_terminal(own):
    own.job(LOCAL, "--begin=now+1hour", "--job-name=" + "long" * 20)
    run = failed(own, "--job-name=" + "long" * 20)
    command = own.command("submit.py", "status")
    with Terminal(command, env=own.environment, cwd=own.root, columns=80) as terminal:
        assert terminal.end() == 0
    assert "PENDING" in terminal.said and "recently finished:" in terminal.said
    assert f"\nnext: python3 doctor.py explain {run.job}" in terminal.said
    assert [line for line in terminal.said.splitlines() if len(line) > 80] == []


def test_help_names_all_that_it_does(jobs):
    said = jobs.submit("--help").stdout
    for word in ("--chain", "--after", "--yes", "--dry-run", "status", ".salloc"):
        assert word in said
    assert jobs.submit(LOCAL, "--help").stdout == said
