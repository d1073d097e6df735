"""Faulty nodes: what a job has found, who reads it, and what a submission makes of it."""

import json
import os
import re
import sys
from datetime import datetime, timedelta, timezone

import pytest
from support.repository import toml
from support.requests import TRAIN, options_of

from extras.nodes.check import findings
from extras.nodes.nodes import directory_to_write, faulty_nodes
from lib import ROOT
from lib.jobs.runs import add_faulty_nodes
from lib.script.command import call


def say(paths, node, reason, days=0, machine="m", user="", **changed):
    """Write what a user has said about a node, so many days ago; return the file."""
    time = datetime.now(timezone.utc) - timedelta(days=days)
    values = {"time": f"{time:%Y-%m-%dT%H:%M:%SZ}", "reason": reason, "run": "4711", **changed}
    file = paths.shared_dir / f"nodes/{machine}.{user or os.getuid()}/{node}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    return file


@pytest.fixture
def paths(site):
    """Give the paths of the repository that has a site and jobs."""
    return site.settings_and_paths()[1]


def names(paths):
    return [each.node for each in faulty_nodes(paths, "m")[0]]


def test_job_says_once_what_was_found(paths, bash, tmp_path):
    run = tmp_path / "a run" / "4711_3-train"
    run.mkdir(parents=True)
    (run / "record.json").write_text('{\n  "machine": "m",\n  "job": "4711_3"\n}\n')
    add_faulty_nodes(run, {"n1": "GPU broken"})
    add_faulty_nodes(run, {"n2": 'slow: "4 GB/s"', "../n3": "no node"})
    lines = [call("job_set", "longship_nodes", directory_to_write(paths)), "nodes_end"]
    done = bash(*lines, env={"RUN_DIR": str(run)})
    assert done.stderr.splitlines() == [
        "longship: n1 will be excluded from submissions (GPU broken): python3 doctor.py nodes",
        'longship: n2 will be excluded from submissions (slow: "4 GB/s"): python3 doctor.py nodes',
    ]
    (first, second), problems = faulty_nodes(paths, "m")
    assert (first.node, first.reason, first.run) == ("n1", "GPU broken", "4711_3")
    assert (second.node, second.reason, problems) == ("n2", 'slow: "4 GB/s"', [])
    assert re.fullmatch(r"GPU broken, \d+ [A-Z][a-z]{2}, run 4711_3 of \w+", first.words)
    # a requeued job ends again, after somebody has used the node again
    for file in paths.scratch_dir.glob("nodes/*/*"):
        file.unlink()
    assert bash(*lines, env={"RUN_DIR": str(run)}).stderr == ""
    assert names(paths) == [] and faulty_nodes(paths, "other") == ([], [])


def test_end_of_a_job_goes_on_where_nothing_can_be_written(paths, bash, tmp_path):
    add_faulty_nodes(tmp_path, {"n1": "GPU broken"})
    (tmp_path / "file").write_text("")
    lines = ["set +e", call("job_set", "longship_nodes", tmp_path / "file"), "nodes_end", "echo on"]
    done = bash(*lines, env={"RUN_DIR": str(tmp_path)})
    assert done.stdout == "on\n" and done.stderr.startswith("error: cannot use the directory ")
    assert "will be excluded" not in done.stderr and (tmp_path / "faulty_nodes").exists()


def test_newest_word_counts_for_two_weeks(paths):
    say(paths, "n1", "GPU broken", 13)
    say(paths, "n2", "GPU broken", 15)
    assert names(paths) == ["n1"]
    say(paths, "n1", "", 12, user=1)  # another member uses it again
    assert names(paths) == []
    say(paths, "n1", "node failed", 1, user=2)
    say(paths, "n2", "GPU broken", 2)
    assert [each.reason for each in faulty_nodes(paths, "m")[0]] == ["node failed", "GPU broken"]
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    for user, reason in ((3, "slow"), (4, ""), (5, "slow")):  # in the same second
        say(paths, "n5", reason, user=user, time=now)
    assert names(paths) == ["n1", "n2"]
    say(paths, "n3", "slow", machine="m2")  # of another machine, whose name begins alike
    assert names(paths) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ('{"time": "2026-01-02T03:04:05Z", "reason": "x"}', "'run'"),
        ('{"time": "2999-01-02T03:04:05Z", "reason": "x", "run": "1"}', "in the future: 2999"),
        ('{"time": "yesterday", "reason": "x", "run": "1"}', "does not match format"),
        ('{"time": "2026-01-02T03:04:05Z", "reason": ["x"], "run": "1"}', "expected string"),
        (f'{{"reason": "{"x" * 5000}"}}', "larger than 4096 bytes"),
    ],
)
def test_file_that_cannot_be_read_excludes_nothing(text, message, submit, paths):
    file = say(paths, "n1", "x")
    file.write_text(text)
    known, (problem,) = faulty_nodes(paths, "m")
    assert known == [] and f"cannot read {file}, which excludes no node: " in str(problem)
    assert message in str(problem) and problem.hint == f"run: {call('rm', file)}"
    lines = submit()
    assert call("warn_of", str(problem), problem.hint) in lines
    assert "exclude" not in "".join(options_of(lines))
    (found,) = findings(submit.site.settings(machine="m"))
    assert (found.state, found.text, found.fix) == ("warning", str(problem), problem.hint)


def test_file_of_somebody_else_is_data(submit, paths):
    file = say(paths, "n1", "\x1b[2J$(touch x)\nerror: y\ud800" + "z" * 99, run="`id`\n--uid=0")
    (one,) = faulty_nodes(paths, "m")[0]
    assert (one.reason, one.run) == ("?[2J$(touch x)?error: y?" + "z" * 36, "`id`?--uid=0")
    for name in ("n1,--uid=0", "-n2", "n 3", "n$(id)", "n\n4", "n;5"):
        file.with_name(f"{name}.json").write_text(file.read_text())
    os.mkfifo(file.with_name("n6.json"))
    file.with_name("n7.json").symlink_to(file)
    file.with_name("n8.json.partial").write_text(file.read_text())
    assert names(paths) == ["n1"] and len(faulty_nodes(paths, "m")[1]) == 2
    assert "--exclude=n1" in options_of(submit())


@pytest.mark.parametrize(
    ("words", "excluded"),
    [
        ([], "n1,n2"),
        (["--exclude=a[1-3]"], "a[1-3],n1,n2"),
        (["-x", "a1", "-x", "a2"], "a2,n1,n2"),  # the last one counts
    ],
)
def test_submission_excludes_them_too_and_says_so(words, excluded, calls, submit, paths):
    say(paths, "n1", "GPU broken")
    say(paths, "n2", "slow")
    for given in calls(*words)[-2:]:  # the test, and the submission
        *_, last = [each for each in given if each.startswith("--exclude=")]
        assert last == f"--exclude={excluded}"
    told = submit(*words)
    (line,) = [each for each in told if "print_messages excluded" in each]
    assert "n1 (GPU broken, " in line and "doctor.py nodes --machine m --remove NODE" in line
    # what a re-run gives to sbatch is the user's own
    (kept,) = [each for each in told if "LONGSHIP_JOB_OPTIONS=" in each]
    assert "n1" not in kept


def test_exclude_of_the_job_script_is_kept(submit, paths):
    say(paths, "n1", "GPU broken")
    submit.site.write(
        TRAIN, "#!/bin/bash\n#SBATCH --exclude=h1\n#SBATCH --time=1:00\nstart_job m\n"
    )
    assert "--exclude=h1,n1" in options_of(submit())
    assert options_of(submit(job="site/shell.salloc"))[-1] == "--exclude=n1"


@pytest.mark.parametrize(
    ("words", "option"), [(["-w", "n1"], "nodelist"), (["--exclude=./file"], "exclude")]
)
def test_nodes_that_the_user_names_are_taken(words, option, submit, paths):
    say(paths, "n1", "GPU broken")
    lines = submit(*words)
    assert "--exclude=n1" not in options_of(lines)
    assert any(f"not excluded, because of --{option}: n1 (GPU" in each for each in lines)


def test_all_nodes_are_used_on_request(submit, paths):
    say(paths, "n1", "GPU broken")
    lines = submit(use_faulty=True)
    assert not any("n1" in each for each in lines)


def test_directory_of_a_group_is_made_by_its_owner(submit, site, bash, tmp_path):
    shared = tmp_path / "it's shared"
    text = (site.root / "configuration.toml").read_text()
    site.write("configuration.toml", f"{text}paths.shared_dir = {toml(shared)}\n")
    paths = site.settings_and_paths()[1]
    assert (
        directory_to_write(paths) == paths.scratch_dir / "nodes"
    )  # of a member, until it is there
    (line,) = [each for each in submit() if each.startswith("nodes_share ")]
    bash(line)  # the directory of the group is missing, or somebody else's
    shared.mkdir()
    bash("umask 077", line)
    assert (shared / "nodes").stat().st_mode & 0o7777 == 0o1777
    assert directory_to_write(paths) == shared / "nodes"
    bash("umask 077", call("nodes_write", shared / "nodes", "m", "n1", "2026", "x", "1"))
    (own,) = (shared / "nodes").iterdir()
    assert own.stat().st_mode & 0o777 == 0o755 and own.name == f"m.{os.getuid()}"
    assert (own / "n1.json").stat().st_mode & 0o777 == 0o644
    own.chmod(0o777)
    done = bash(call("nodes_write", shared / "nodes", "m", "n2", "", "", ""), check=False)
    assert done.returncode == 1 and f"{own} belongs to another user, or others can" in done.stderr
    assert not (own / "n2.json").exists()
    own.chmod(0o755)
    (own / "n1.json").write_text('{"time": "2999", "reason": "x", "run": "1"}')
    say(paths, "n3", "x")
    assert names(paths) == ["n3"]  # of the group
    say(paths._replace(shared_dir=paths.scratch_dir), "n4", "x")
    assert names(paths) == ["n3", "n4"]  # and of the time before


def test_nodes_are_listed_and_removed(run, clean_environment, tmp_path, repository):
    env = {**clean_environment, "HOME": str(tmp_path), "LONGSHIP_MACHINE": "local"}
    scratch = tmp_path / "longship-data/scratch"
    paths = repository.settings_and_paths()[1]._replace(shared_dir=scratch)

    def nodes(*words, check=True):
        return run([sys.executable, f"{ROOT}/doctor.py", *words], env=env, cwd=ROOT, check=check)

    assert nodes("nodes").stdout == "no node of local is excluded\n"
    say(paths, "n1", "GPU broken", machine="local")
    say(paths, "n2", "slow: 4 GB/s", machine="local", user=1)
    first, second = nodes("nodes").stdout.splitlines()
    assert re.fullmatch(r"n1  GPU broken, \d+ [A-Z][a-z]{2}, run 4711 of \w+", first)
    assert second.startswith("n2  slow: 4 GB/s, ")
    assert "nodes_write " in nodes("nodes", "--remove=n2", "--dry-run").stdout
    assert len(nodes("nodes").stdout.splitlines()) == 2
    assert nodes("--nodes", "--remove", "n2").stderr == "note: n2 is no longer excluded\n"
    (scratch / "nodes/local.1/n3.json").write_text("{")
    left = nodes("nodes")
    assert left.stdout == f"{first}\n" and left.stderr.startswith("warning: cannot read ")
    again = nodes("nodes", "--remove=n2", check=False)
    assert again.returncode == 1 and again.stderr.splitlines() == [
        "error: n2 is not excluded on local",
        "hint: run: python3 doctor.py nodes",
    ]
