"""Job files: found from anywhere, each for its machine."""

import os
from pathlib import Path

import pytest
from support import processes

import lib
from lib.configuration.sites import load_machines
from lib.jobs.job_files import check_machine, job_files, read_job_file
from lib.jobs.options import Option
from lib.script.errors import LongshipError

ROOT = Path(lib.ROOT)
JOB = '#!/usr/bin/env bash\n#SBATCH --nodes=2   # two\n\nstart_job one "$@"\nstart_job two\n'


@pytest.fixture
def jobs(repository):
    """Give the folder of a repository with two sites and their jobs."""
    for site, names in (("here", "one other"), ("there", "two")):
        marks = [f'[machines.{name}]\nrecognise.host = "{name}"\n' for name in names.split()]
        repository.write(f"{site}/site.toml", "".join(marks))
    repository.write("here/train.sbatch", JOB)
    repository.write("here/shell.salloc", JOB.replace("start_job", "# start_job"))
    repository.write("there/train_two.sbatch", JOB.replace("start_job one", "start_job two"))
    repository.write("README.sbatch", "in no site's folder")
    return repository.root


def test_job_is_read(jobs):
    job = read_job_file(jobs, "here/train.sbatch")
    assert str(job.path) == "here/train.sbatch"
    assert (job.machine, job.header, job.is_interactive) == ("one", [Option("nodes", "2")], False)


@pytest.mark.parametrize("line", ["start_job", "python3 build_overlay.py --machine"])
def test_name_of_a_machine_may_have_a_hyphen(line, jobs):
    (jobs / "here/train.sbatch").write_text(f'#!/bin/bash\n{line} my-one "$@"\n')
    assert read_job_file(jobs, "here/train.sbatch").machine == "my-one"


def test_shell_on_a_node_reads_the_same_header(jobs):
    job = read_job_file(jobs, "here/shell.salloc")
    assert (job.machine, job.header, job.is_interactive) == ("", [Option("nodes", "2")], True)


def test_job_is_named_from_the_folder_at_hand_too(jobs, monkeypatch):
    monkeypatch.chdir(jobs / "here")
    assert str(read_job_file(jobs, "train.sbatch").path) == "here/train.sbatch"
    assert str(read_job_file(jobs, "../here/train.sbatch").path) == "here/train.sbatch"
    assert str(read_job_file(jobs, "there/train_two.sbatch").path) == "there/train_two.sbatch"


def test_job_outside_of_the_repository_keeps_its_path(jobs, tmp_path):
    own = tmp_path / "it's my job.sbatch"
    own.write_bytes(os.fsencode(JOB) + b"# \xff\n")
    assert read_job_file(jobs, str(own)).path == own


def test_all_checked_in_jobs_are_listed(jobs):
    found = [str(each.relative_to(jobs)) for each in job_files(jobs)]
    assert found == ["here/shell.salloc", "here/train.sbatch", "there/train_two.sbatch"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "here/trian.sbatch",
            'did you mean "here/train.sbatch"? valid values: here/shell.salloc, ',
        ),
        ("here", "valid values: here/shell.salloc, here/train.sbatch"),
        ("statsu", 'did you mean "status"? valid values: status, rerun, SITE/JOB.sbatch'),
        ("", "valid values: status, rerun, SITE/JOB.sbatch"),
    ],
)
def test_unknown_job_is_told(name, hint, jobs):
    with pytest.raises(LongshipError) as error:
        read_job_file(jobs, name, ["status", "rerun"])
    assert str(error.value) == f"job script not found: {name}"
    assert error.value.hint.startswith(hint)


def test_job_that_cannot_be_looked_at_is_none(jobs, unseen):
    with pytest.raises(LongshipError, match="job script not found: /x"):
        read_job_file(jobs, unseen)


def test_job_that_cannot_be_read_is_told(jobs):
    if os.geteuid() == 0:
        pytest.skip("root may read anything")
    (jobs / "here/train.sbatch").chmod(0)
    with pytest.raises(LongshipError, match="cannot read here/train.sbatch: Permission denied"):
        read_job_file(jobs, "here/train.sbatch")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train.py", "python3 container_run.py python train.py; or submit a job script"),
        ("here/job.sh", "write into its first line: #!/usr/bin/env bash"),
    ],
)
def test_file_without_a_shebang_is_told(name, hint, jobs):
    (jobs / name).write_text('"""Train."""\nimport torch\n')
    with pytest.raises(LongshipError) as error:
        read_job_file(jobs, name, ["status", "rerun"])
    message = f"{name} is not a job script: its first line does not begin with #!"
    assert (str(error.value), error.value.hint[: len(hint)]) == (message, hint)


@pytest.mark.parametrize("chosen", ["one", "other", "local"])
def test_job_of_this_site_is_taken(chosen, jobs):
    job = read_job_file(jobs, "here/train.sbatch")
    check_machine(job, chosen, load_machines(jobs))  # local: nobody knows what it can do


def test_job_that_names_no_machine_is_taken_anywhere(jobs):
    check_machine(read_job_file(jobs, "here/shell.salloc"), "two", load_machines(jobs))


def test_job_of_another_site_is_told_with_those_of_this_one(jobs):
    job = read_job_file(jobs, "there/train_two.sbatch")
    with pytest.raises(LongshipError) as error:
        check_machine(job, "other", load_machines(jobs))
    assert str(error.value) == "there/train_two.sbatch is for two, but this machine is other"
    assert error.value.hint == "job scripts for this machine: here/*.sbatch"


def test_checked_in_jobs_are_for_machines_of_their_site(root):
    machines = load_machines(root)
    assert job_files(root)
    for path in job_files(root):
        job = read_job_file(root, str(path))
        if job.machine:
            site = str(path.parent.relative_to(root))
            assert machines[job.machine].site_file == f"{site}/site.toml", path


@pytest.mark.parametrize("start", ["bash", "sbatch"])
@pytest.mark.parametrize("path", job_files(ROOT), ids=lambda each: each.name)
def test_job_that_was_not_submitted_from_the_clone_is_told(path, start, run, tmp_path):
    """By bash, or by sbatch elsewhere, whose directory is in a variable."""
    env = {"PATH": processes.PATH, **({"SLURM_SUBMIT_DIR": "/"} if start == "sbatch" else {})}
    done = run(["bash", path], env=env, cwd=tmp_path, check=False)
    assert done.returncode == 1
    hint = "hint: in it, run: python3 submit.py FILE"
    assert done.stderr.splitlines() == ["error: not submitted from your clone", hint]


def test_job_script_that_sources_what_nobody_has_checked_is_refused(jobs):
    """The form of before: the file could be another's when the job starts."""
    old = 'source "${LONGSHIP_ROOT:-$SLURM_SUBMIT_DIR}/lib/shell/job.bash" || exit\n'
    (jobs / "old.sbatch").write_text(f"#!/bin/bash\n{old}start_job one\n")
    with pytest.raises(LongshipError, match="sources lib/shell/job.bash without a check") as error:
        read_job_file(jobs, "old.sbatch")
    assert error.value.hint.startswith("remove the lines from that `source` up to start_job")
    assert read_job_file(jobs, "old.sbatch", is_recorded=True).machine == "one"  # `rerun`
    (jobs / "old.sbatch").write_text("#!/bin/bash\nstart_job one\n")
    assert read_job_file(jobs, "old.sbatch").machine == "one"


@pytest.mark.parametrize(
    "path",
    [each for each in job_files(ROOT) if "\nmodule " in (ROOT / each).read_text()],
    ids=lambda each: each.name,
)
def test_job_ends_with_the_error_of_a_module_that_fails(path, tmp_path):
    """Another set of libraries in its place would be for another CUDA, and silently wrong."""
    environment = {"PATH": processes.PATH, "CALLS": f"{tmp_path}/calls"}
    module = '() {  printf "%s\\n" "$*" >>"$CALLS"; [[ "$*" != "$MISSING" ]] || {\n'
    module += " echo unknown module >&2; return 3; }\n}"
    environment["BASH_FUNC_module%%"] = module
    environment["BASH_FUNC_start_job%%"] = "() { echo started; exit; }"

    def start(missing):
        return processes.run(
            ["bash", ROOT / path], env={**environment, "MISSING": missing}, check=False
        )

    assert start("").stdout == "started\n"
    for call in (tmp_path / "calls").read_text().splitlines():
        done = start(call)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "unknown module\n")
