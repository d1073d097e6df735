"""What submit.py does with a job: what it refuses, what it costs, and what reaches sbatch."""

import json
import os
import secrets
import shlex

import pytest
from support.repository import toml
from support.requests import CONFIGURATION, JOB, SITE, TRAIN, cost_of, options_of
from support.terminal import Terminal

from lib.configuration.paths import login_name
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render


def see_only(site, *folders):
    """Let the site's compute nodes see nothing but these folders."""
    key = f"compute_directories = {toml(list(folders))}"
    site.write("site/site.toml", SITE.replace("required", f"{key}\nrequired", 1))


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["site/trian.sbatch"], "job script not found: site/trian.sbatch", '"site/train.sbatch"?'),
        (["train.sbatch"], "job script not found: train.sbatch", '"site/train.sbatch"?'),
        (
            ["other/own.sbatch"],
            "but this machine is m",
            "site/*.sbatch",
        ),
        ([None, "--steps", "1"], "unknown option: --steps 1", "-- --steps"),
        ([None, "train.py"], 'unexpected argument: "train.py"', "after `--`, such as: "),
        ([None, "--account="], "m requires --account", "project.account"),
        (["site/strict.sbatch"], "strict requires --mem", "--mem=VALUE"),
        ([None, "--output=$HOME/%j.log"], "sbatch expands neither ~ nor variables", "%u stands"),
        ([None, "--error=~/%j.log"], "sbatch expands neither ~ nor variables", "whole path"),
        ([None, "--job-name=a/b"], 'invalid job name: "a/b"', "letters, digits"),
        (
            [None, "--", "a", ":", "b"],
            'a job argument is ":"',
            "join it to the argument",
        ),
        ([None, "--", "--token=hf_x1y2"], "contains the value of HF_TOKEN", "in its environment"),
        ([None, "--export=ALL,A=hf_x1y2"], "contains the value of HF_TOKEN", "in its environment"),
        ([None, "-h"], "--help is not supported", "--dry-run"),
        ([None, "--test-only"], "--test-only is not supported", "--dry-run"),
        ([None, "-W"], "--wait is not supported", "submit.py status"),
        ([None, "--export=NONE"], "--export=NONE hides the variables", "use --export=ALL"),
        ([None, "--export=A=1,B"], "--export=A=1,B hides the variables", "--export=ALL,A=1,B"),
    ],
)
def test_job_that_would_fail_is_refused(words, message, hint, submit):
    with pytest.raises(LongshipError) as error:
        submit(*words[1:], job=words[0] or TRAIN, environ={"HF_TOKEN": "hf_x1y2"})
    assert message in str(error.value)
    assert hint in error.value.hint
    assert "hf_x1y2" not in f"{error.value} {error.value.hint}"


@pytest.mark.parametrize(
    ("ids", "objects", "expected"),
    [
        ("7", ["a-%j"], ["a-7"]),
        ("7 8 9", ["a-%j"], ["a-7", "a-8", "a-9"]),  # a chain
        ("7 8 9", ["a-%j", "b-%j"], ["a-7", "a-8", "b-9"]),  # and an evaluation
        ("7 8 9", ["a-%j", "b-%j", "c-%A"], ["a-7", "b-8", "c-9"]),  # a study
    ],
)
def test_json_has_the_object_of_each_job(ids, objects, expected, run):
    lines = [f"submitted_ids=({ids})", call("jobs_print_json", *(f'"{x}"' for x in objects))]
    done = run(["bash", "-c", render("a test", lines)])
    assert json.loads(done.stdout) == expected


def test_dos_line_ends_are_refused(submit, site):
    (site.root / "site/dos.sbatch").write_bytes(b"#!/bin/bash\r\n#SBATCH --time=1\r\n")
    with pytest.raises(LongshipError, match="site/dos.sbatch has DOS line ends") as error:
        submit(job="site/dos.sbatch")
    assert error.value.hint == r"run: sed -i 's/\r$//' site/dos.sbatch"


def test_slurm_that_does_not_respond_is_told(clean_environment, run, tmp_path):
    said = "sbatch: fatal: Could not establish a configuration source"
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    script = render("a test", ["submission_test '' job.sbatch"])
    done = run(["bash", "-c", script], env=env, check=False)
    error, hint = done.stderr.splitlines()
    assert error == "error: Slurm does not respond: Could not establish a configuration source"
    assert hint.endswith("or run without Slurm: python3 container_run.py COMMAND")


@pytest.mark.parametrize(
    ("said", "codes", "told"),
    [
        ("Invalid job id specified", [], "names a job that Slurm does not know"),
        ("Invalid job id", ["0"], ""),
        ("Invalid job id", ["1"], "names a job that Slurm does not know"),
        ("Invalid job id", [""], "names a job that Slurm does not know"),  # its node was lost
        ("Invalid job id", ["0", "1"], ""),  # of two clusters that share a file system
        ("", [], ""),
        ("", ["1"], ""),
    ],
)
def test_job_after_one_that_slurm_does_not_know_needs_its_record(
    said, codes, told, clean_environment, run, tmp_path
):
    """Slurm would start it at once, also after a job that has failed."""
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    for number, code in enumerate(codes):
        folder = tmp_path / f"runs/999999-train.{number}"
        folder.mkdir(parents=True)
        values = {"job": "999999", "exit_code": code} if code else {"job": "999999"}
        (folder / "record.json").write_text(json.dumps(values, indent=2))
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    script = render("a test", [call("submission_check_after", "999999", tmp_path / "runs")])
    done = run(["bash", "-c", script], env=env, check=False)
    assert done.returncode == bool(told)
    assert done.stderr.startswith(f"error: --after {told}" if told else "")
    assert told or not done.stderr


@pytest.mark.parametrize(
    ("states", "refused"),
    [
        (["FAILED"], True),
        (["COMPLETED", "TIMEOUT"], True),  # tasks of an array
        (["COMPLETED", "RUNNING"], False),
        (["PENDING"], False),
    ],
)
def test_job_after_one_that_has_failed_is_refused(
    states, refused, clean_environment, run, tmp_path
):
    """Slurm would cancel it, and nobody would be told."""
    lines = [f"JobId={each}\n   JobState={each} Reason=None" for each in states]
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\ncat <<'X'\n{chr(10).join(lines)}\nX\n")
    (tmp_path / "scontrol").chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    script = render("a test", [call("submission_check_after", "7", tmp_path / "runs")])
    done = run(["bash", "-c", script], env=env, check=False)
    assert done.returncode == refused
    assert done.stderr.startswith("error: --after names a job that has not" if refused else "")
    assert refused or not done.stderr


def test_job_to_follow_is_looked_for(submit):
    assert any(each.startswith("submission_check_after 999999 ") for each in submit(after="999999"))


def test_terminal_is_told_what_the_number_is(clean_environment, tmp_path):
    lines = ["submitted_ids=(7 8)", call("jobs_print", "/runs/%j.log")]
    command = ["bash", "-c", render("a test", lines)]
    with Terminal(command, env=clean_environment, cwd=tmp_path) as terminal:
        terminal.end()
    assert terminal.said.startswith("job: 7 8\r\nlog: /runs/7.log\r\n")


@pytest.mark.parametrize("given", [{"chain": 2}, {"after": "7"}])
def test_shell_on_a_node_cannot_wait_for_another_job(given, submit):
    with pytest.raises(LongshipError, match="is interactive"):
        submit(job="site/shell.salloc", **given)


def test_variable_that_keeps_the_environment_from_jobs_is_told(submit):
    with pytest.raises(LongshipError, match="--export=NONE hides the variables"):
        submit(environ={"SBATCH_EXPORT": "NONE"})
    submit("--export=ALL,A=1", environ={"SBATCH_EXPORT": "NONE"})


@pytest.mark.parametrize("folder", ["paths.project_dir", "paths.scratch_dir", "container.image"])
def test_folder_that_compute_nodes_do_not_see_is_told(folder, site, submit):
    see_only(site, "/compute", str(site.root))
    good = {"paths.project_dir": "/compute/p", "paths.scratch_dir": "/compute"}
    values = {**good, folder: "/computer/x.sif"}
    lines = (f"{name} = {toml(value)}\n" for name, value in values.items())
    site.write("configuration.toml", CONFIGURATION + "".join(lines))
    with pytest.raises(LongshipError) as error:
        submit(runtime="apptainer")
    assert str(error.value) == f"{folder} is not visible to compute nodes of m: /computer/x.sif"
    assert error.value.hint == f"move it to a directory under /compute or {site.root}"


def test_image_that_no_rank_starts_is_not_looked_at(site, submit):
    see_only(site, "/compute", str(site.root))
    roots = 'paths.project_dir = "/compute/p"\npaths.scratch_dir = "/compute"\n'
    site.write("configuration.toml", f'{CONFIGURATION}{roots}container.image = "/home/my.def"\n')
    assert submit() and submit(runtime="apptainer")  # nothing, and what was built below scratch_dir
    site.write("site/build.sbatch", JOB.replace("start_job m", "build_container.py --machine m"))
    with pytest.raises(LongshipError, match="container.image is not visible .*: /home/my.def"):
        submit(job="site/build.sbatch", runtime="apptainer")
    site.write("configuration.toml", CONFIGURATION + roots)
    site.write("stacks/pytorch/stack.toml", "")
    assert submit()  # on the host no stack needs an image


def test_repository_and_log_must_be_seen_too(site, submit):
    own = (str(site.scratch), str(site.scratch.with_name("project")))
    see_only(site, "/home", *own)
    with pytest.raises(LongshipError, match="this repository is not visible to compute nodes"):
        submit()
    see_only(site, "/home", *own, str(site.root))
    with pytest.raises(LongshipError, match="the log is not visible .*: /tmp.log"):
        submit("--output=/tmp.log")


def test_configured_account_is_passed_unless_another_is_said(site, submit):
    def accounts(*words, **given):
        found = options_of(submit(*words, **given))
        return [each for each in found if each.startswith("--account")]

    assert accounts() == ["--account=acc"]
    assert accounts("-A", "mine") == ["--account=mine"]
    assert accounts(environ={"SBATCH_ACCOUNT": "mine"}) == []
    site.write("site/train.sbatch", JOB.replace("--time", "--account=mine --time"))
    assert accounts() == []


def test_gpus_of_the_command_line_win(site, submit):
    site.write("site/train.sbatch", JOB.replace("--time", "--gres=gpu:4 --time"))
    assert options_of(submit("--gpus-per-node=2"))[1] == "--gres=gpu:2"


def test_log_lies_beside_the_runs(site, submit):
    runs = f"--output={site.scratch}/runs"
    assert options_of(submit())[-1] == f"{runs}/%j-%x.log"
    assert options_of(submit("--array=0-3", agreed=True))[-1] == f"{runs}/%A_%a-%x.log"
    assert options_of(submit("-o", "x"))[1:] == ["--output=x"]
    assert options_of(submit(environ={"SBATCH_OUTPUT": "x"})) == ["--account=acc"]


def test_folders_of_the_log_are_made(calls, submit, tmp_path):
    calls(f"--output={tmp_path}/logs/%x/run-%j.log", f"--error={tmp_path}/errors/%x/%j")
    assert (tmp_path / "logs/train").is_dir()
    assert (tmp_path / "errors/train").is_dir()
    with pytest.raises(LongshipError, match="the log directory must be a fixed path, .*: /x/%j"):
        submit("--output=/x/%j/log")


def test_log_lies_where_the_job_runs(site, submit, tmp_path):
    words = ("--output=a.log", "--error=e/%j")
    for folder in (str(tmp_path), "below"):
        lines = submit(f"--chdir={folder}", *words)
        assert lines[-1] == call("jobs_print", f"{site.root / folder}/a.log")
        (made,) = [each for each in lines if each.startswith("directory_make ")]
        assert str(site.root / folder) in shlex.split(made)
        assert str(site.root / folder / "e") in shlex.split(made)
    assert submit(*words)[-1] == call("jobs_print", f"{site.root}/a.log")


def test_job_without_a_name_is_told_by_the_name_that_slurm_gives_it(site, submit):
    nameless = JOB.replace("#SBATCH --job-name=train\n", "")
    site.write("site/mine.sbatch", nameless)
    site.write("site/mine.salloc", nameless)
    lines = submit(job="site/mine.sbatch")
    assert lines[-1] == call("jobs_print", f"{site.scratch}/runs/%j-mine.sbatch.log")
    assert cost_of(lines)[0].startswith("mine.sbatch: ")
    assert cost_of(submit(job="site/mine.salloc"))[0].startswith("bash: ")


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        ([], {}, "train: 1 node of gpu for at most 01:00:00; at most 48.0 core-hours"),
        (
            ["-N2", "-t30"],
            {},
            "train: 2 nodes of gpu for at most 00:30:00; at most 48.0 core-hours",
        ),
        ([], {"chain": 2}, "01:00:00, 2 jobs; at most 96.0 core-hours"),
        (["--array=0-1"], {"agreed": True}, "01:00:00, 2 jobs; at most 96.0 core-hours"),
        (["-a1-45"], {"agreed": True}, "01:00:00, 45 jobs; at most 2,160.0 core-hours"),
        (
            ["-pfree"],
            {"agreed": True},
            "train: 1 node of free for at most 01:00:00; cost unknown: the site file has no price",
        ),
        (
            ["--time=0"],
            {"agreed": True},
            "train: 1 node of gpu for at most UNLIMITED; cost unknown: no time limit is known",
        ),
        (["-pfree", "--gpus=2"], {}, "at most 2.0 hours"),
        (["-pfree", "--gpus=1", "--time=15"], {}, "at most 0.3 hours"),
        (["-pfree", "--gpus=3", "--time=6"], {}, "at most 0.3 hours"),
    ],
)
def test_cost_is_told(words, given, told, submit):
    (said,) = cost_of(submit(*words, **given))
    assert said.endswith(told)


def test_it_asks_only_above_the_limit_and_when_nobody_agreed(submit):
    assert len(cost_of(submit("-N2", "-t62:30"))) == 1  # 100 core-hours
    for amount, words in (("100.8", ["-N2", "-t63"]), ("144.0", ["-N3"])):
        reason = f"the cost of at most {amount} core-hours is above jobs.ask_above"
        assert cost_of(submit(*words))[1] == reason
    assert len(cost_of(submit(chain=3, agreed=True))) == 1
    for unknown in (["-pfree"], ["--time=0"], ["--tres-per-task=cpu:8"]):
        reason = "the cost is not known, and jobs.ask_above is set"
        assert cost_of(submit(*unknown))[1] == reason


def test_script_that_starts_nothing_inside_is_told(submit, site):
    site.write("site/own.sbatch", "#!/bin/bash\n#SBATCH --time=1\nsrun python train.py\n")
    told = [each for each in submit(job="site/own.sbatch") if each.startswith("warn_of ")]
    assert "site/own.sbatch runs outside the environment" in told[0]
    assert "docs/how-to/your_own_training.md" in told[0]
    assert not [each for each in submit() if each.startswith("warn_of ")]


def test_array_and_order_of_jobs_are_one_of_each(submit):
    with pytest.raises(LongshipError, match="--chain cannot be used with job arrays"):
        submit("--array=0-3", chain=2)
    with pytest.raises(LongshipError, match="--after and --dependency=singleton cannot"):
        submit("--dependency=singleton", after="7")


def test_variables_of_salloc_are_those_that_count_for_a_shell(submit):
    environ = {"SALLOC_ACCOUNT": "theirs", "SBATCH_ACCOUNT": "none", "SALLOC_TIMELIMIT": "20"}
    lines = submit(job="site/shell.salloc", environ=environ)
    options = next(each for each in lines if each.startswith("options="))
    assert "--account=theirs" in options and "--time=20" in options


def test_question_that_nobody_can_answer_stops_it(submit, run):
    script = render("a test", [each for each in submit(chain=3) if each.startswith("cost_confirm")])
    done = run(["bash", "-c", script], check=False)
    assert done.returncode == 1 and "144.0 core-hours" in done.stderr and "--yes" in done.stderr


@pytest.mark.parametrize(
    ("words", "cores", "priced"),
    [
        (["--mem=10G"], 3, 1),
        (["--mem=10G", "--cpus-per-task=3"], 0, 3),
        (["--mem=10G", "--cpus-per-task=3", "--hint=nomultithread"], 6, 3),
        (["--mem=10G", "--nodes=2"], 6, 2),
        (["--mem-per-cpu=3G", "--cpus-per-task=4"], 0, 4),
        (["--mem-per-cpu=3G", "--cpus-per-task=4", "--threads-per-core=1"], 7, 4),
        (["--mem-per-gpu=10G", "--gpus=1"], 0, 1),
        (["--mem=10G", "--partition=gpu"], 0, 1),  # which prices nodes
        (["--mem=10G", "--partition=slices"], 0, 4),
        (["--mem=40G", "--partition=slices"], 11, 8),
    ],
)
def test_core_that_slurm_adds_for_the_memory_is_not_missing_in_the_price(
    words, cores, priced, submit, clean_environment, run, tmp_path
):
    """As Slurm 22.05 does with MaxMemPerCPU=2000 and two threads in each core."""
    site = submit.site.root / "site/site.toml"
    text = 'partitions.cores = { price = { core = 1 }, max_time = "1:00:00" }\n'
    text += "partitions.slices = { price = { slice = 1, slice_cores = 4, slice_memory = 20 } }\n"
    site.write_text(site.read_text().replace("partitions.devel", f"{text}partitions.devel"))
    limits = "echo MaxNodes=UNLIMITED MaxMemPerCPU=2000"
    for name, said in (("scontrol", limits), ("sinfo", "echo 2")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{said}\n")
        (tmp_path / name).chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    lines = [each for each in submit("--partition=cores", *words) if "cost_check_mem" in each]
    done = run(["bash", "-c", render("a test", [*lines, "true"])], env=env, check=False)
    expected = f"error: for its memory, Slurm gives this job {cores} cores, and its price counts"
    assert done.stderr.partition("\n")[0] == (f"{expected} {priced}" if cores else "")
    assert done.returncode == (cores > 0) and ("--cpus-per-task" in done.stderr) == (cores > 0)


def test_words_reach_sbatch_as_they_are(calls, site, hostile_arguments):
    comment = "--comment=a 'b' $HOME\n"
    trial, real = calls(comment, "--", *hostile_arguments)
    options = ["--account=acc", comment, f"--output={site.scratch}/runs/%j-%x.log"]
    words = [*options, TRAIN, *hostile_arguments]
    assert trial == ["sbatch", "", "--test-only", *words]
    assert real == ["sbatch", "", "--parsable", *words]
    assert calls.done.stdout == "101\n"
    assert f"log: {site.scratch}/runs/101-train.log\n" in calls.done.stderr


def test_chain_goes_on_from_each_other_after_another_job(calls):
    found = calls(chain=3, agreed=True, after="7")[1:]
    assert [words[1] for words in found] == ["", "101", "102"]
    after = [[word[2:] for word in words if "dep" in word] for words in found]
    first = ["dependency=afterok:7", "kill-on-invalid-dep=yes"]  # the last of a kind wins
    then = [[*first, f"dependency=afterany:{job}"] for job in (101, 102)]
    assert after == [first, *then]
    assert calls.done.stdout == "101\n102\n103\n"


def test_job_that_is_submitted_in_a_job_goes_on_from_nothing(calls, clean_environment):
    clean_environment.update(LONGSHIP_JOB_RESUMES="7", LONGSHIP_JOB_RERUN="/run")
    assert [words[1] for words in calls()] == ["", ""]


def test_shell_on_a_node_gets_the_header_from_here(calls):
    trial, words = calls("--nodes=2", "--", "a b", job="site/shell.salloc")
    options = ["--account=acc", "--job-name=train", "--time=1:00:00", "--nodes=2"]
    assert words[0] == "salloc" and words[2:6] == options
    assert words[6:] == ["bash", "site/shell.salloc", "a b"]
    assert trial[:3] == ["sbatch", "", "--test-only"]
    assert trial[3:] == [each for each in words[2:] if each != "bash"]


def test_configuration_is_kept_as_it_is(calls, site):
    calls()
    (kept,) = (site.scratch / "runs/configurations").iterdir()
    before = site.settings(machine="m").configuration
    site.write("configuration.toml", "")
    again = site.settings(configuration=str(kept)).configuration
    assert again == before and again.project.account == "acc"


def test_kept_configuration_is_new_for_a_site_that_deletes_old_files(run, tmp_path):
    file = tmp_path / "configurations/a.json"
    script = render("a test", [call("submission_keep", "X", file, "x"), 'printf %s "$X"'])
    assert run(["bash", "-c", script]).stdout == str(file)
    file.write_text("")  # damaged
    assert run(["bash", "-c", script]).stdout == str(file) and file.read_text() == "x"
    os.utime(file, (1, 1))
    run(["bash", "-c", script])
    assert file.stat().st_mtime > 1 and file.read_text() == "x"
    assert [*file.parent.iterdir()] == [file] and file.stat().st_mode & 0o777 == 0o600


def test_runs_that_cannot_be_written_to_are_told(run, read_only_folder):
    file = read_only_folder / "sub/x.json"
    done = run(
        ["bash", "-c", render("a test", [call("submission_keep", "X", file, "x")])], check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot use the directory {file.parent}: ")


def test_runs_are_looked_at_before_what_is_in_them(submit):
    lines = [each.partition(" ")[0] for each in submit()]
    assert lines.index("roots_make") == lines.index("submission_begin") + 1


@pytest.mark.parametrize("is_the_same", [True, False])
def test_python_that_runs_the_scripts_is_not_tried_again(
    is_the_same, clean_environment, run, tmp_path
):
    for name in ("sbatch", "python3"):
        (tmp_path / name).write_text(f"#!/bin/bash\n: >'{tmp_path}/{name} was started'\n")
        (tmp_path / name).chmod(0o755)
    python = tmp_path / "python3" if is_the_same else "/elsewhere/python3"
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    script = render("a test", [call("submission_begin", "m", tmp_path, python)])
    run(["bash", "-c", script], env=env)
    assert (tmp_path / "python3 was started").exists() != is_the_same


def test_what_sbatch_says_moves_no_cursor(submit, clean_environment, run, tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    said = r"sbatch: error: no \033]0;x\007\033[31m \302\2332J"
    (path / "sbatch").write_text(f"#!/bin/bash\nprintf '{said}\\n' >&2\nexit 1\n")
    (path / "sbatch").chmod(0o755)
    env = {**clean_environment, "PATH": f"{path}:{clean_environment['PATH']}"}
    told = run(["bash", "-c", render("a test", submit())], env=env, check=False).stderr
    assert "sbatch failed: no ?]0;x??[31m ?2J\n" in told
    assert all(each.isprintable() for each in told.split("\n"))


@pytest.mark.parametrize("words", [["--", "--token=CANARY"], ["--comment=CANARY"]])
def test_token_of_a_file_is_not_submitted(words, submit, tmp_path):
    canary = secrets.token_hex(12)
    (tmp_path / "token").write_text(f"{canary}\nmore\n")
    os.mkfifo(tmp_path / "fifo")
    files = f'{{ T = "{tmp_path}/token", U = "{tmp_path}/fifo", V = "{tmp_path}/none" }}'
    local = f"environment.token_files = {files}\n"
    submit.site.write("configuration.local.toml", local)
    submit(*[each.replace("CANARY", "more") for each in words])
    with pytest.raises(LongshipError, match="a job argument contains the value of T") as error:
        submit(*[each.replace("CANARY", canary) for each in words])
    assert canary not in str(error.value) + error.value.hint


def test_name_that_no_file_can_have_is_told(submit):
    submit(f"--job-name={'x' * 200}")
    with pytest.raises(LongshipError, match="invalid job name"):
        submit(f"--job-name={'ø' * 125}")


@pytest.mark.parametrize(
    ("said", "job"),
    [
        ("4711", "4711"),
        ("4711;juwels", "4711"),
        ("sbatch: warning: 12\n4711", "4711"),
        ("4711\nYour job will be charged to account 12.", "4711"),
        ("Submitted batch job 4711", "4711"),
        ("Submitted batch job 4711 on cluster c2\nThank you", "4711"),
        ("nothing", None),
        ("47 11", None),
    ],
)
def test_id_of_a_job_is_read_among_other_lines(said, job, clean_environment, run, tmp_path):
    """A job that is submitted is not taken for one that is not, and so submitted again."""
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\nprintf '%s\\n' '{said}'\n")
    (tmp_path / "sbatch").chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    script = render("a test", ["submission_send_job x", "jobs_print x.log"])
    done = run(["bash", "-c", script], env=env, check=False)
    if job:
        assert (done.returncode, done.stdout) == (0, f"{job}\n")
    else:
        error, hint = done.stderr.split("\nhint: ")
        assert error == f"error: sbatch submitted a job and printed no ID: {said}"
        assert hint == "look for the job before you submit it again: squeue --me\n"


@pytest.mark.parametrize(
    "sent", [["submission_send 3 0 x"], ["submission_send 1 0 x", "submission_send_job y"]]
)
def test_interruption_names_the_jobs_that_were_submitted(sent, clean_environment, run, tmp_path):
    (tmp_path / "sbatch").write_text(
        f"#!/bin/bash\n[[ ! -e {tmp_path}/first ]] || {{ kill -INT $PPID; exit 130; }}\n"
        f": >{tmp_path}/first; echo 4711\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}"}
    # not in a subshell, as the terminal's Ctrl-C reaches the script too
    script = render("a test", ['command_exec() { exec "$@"; }', *sent])
    done = run(["bash", "-c", script], env=env, check=False)
    assert done.returncode == 130
    assert "warning: interrupted; submitted: 4711, and perhaps one more\n" in done.stderr
    assert "squeue --me; to cancel these, run: scancel 4711\n" in done.stderr


@pytest.mark.parametrize(
    ("said", "error", "hint"),
    [
        (
            "sbatch: unrecognized option '--partion=x'\nTry \"sbatch --help\" for more information",
            "unrecognized option '--partion=x'",
            "at most 8 nodes; change the sbatch options",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified",
            "Batch job submission failed: Invalid account or account/partition combination "
            "specified",
            "at most 8 nodes; change the sbatch options",
        ),
        (
            "allocation failure: Requested time limit is invalid (missing or exceeds some limit)",
            "Requested time limit is invalid (missing or exceeds some limit)",
            "at most 8 nodes; change the sbatch options",
        ),
    ],
)
def test_refusal_of_slurm_is_shown_with_what_explains_it(
    said, error, hint, clean_environment, run, tmp_path
):
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\ncat >&2 <<'X'\n{said}\nX\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    env = {**clean_environment, "PATH": f"{tmp_path}:{clean_environment['PATH']}", "USER": "me"}
    script = render("a test", [call("submission_test", "at most 8 nodes", "x")])
    first, second = run(["bash", "-c", script], env=env, check=False).stderr.splitlines()
    assert first == f"error: sbatch failed: {error}"
    assert second.startswith(f"hint: {hint}")


def test_user_in_the_directory_of_a_log_is_the_users(submit):
    text = render("a test", submit("--output=/tmp/%u/logs/R-%x-%j.out"))
    assert f"directory_make /tmp/{login_name()}/logs\n" in text
    with pytest.raises(LongshipError, match="must be a fixed path"):
        submit("--output=/tmp/%j/x.out")
