"""The tests' own machinery: what is missing is told, and the two scripts run from anywhere."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import support
from support import cache, directories, processes

A_TEST_THAT_NEEDS_IT = """
import pytest

@pytest.mark.needs("no-such-program")
def test_needing():
    raise AssertionError("it must not be run")

def test_asking(require):
    require("no-such-program")
    raise AssertionError("it must not come this far")

def test_skipping():
    pytest.skip("of its own accord")
"""


@pytest.fixture
def run_pytest(root, run, clean_environment, tmp_path):
    """Run pytest with this project's settings over a folder of tests made up here."""
    tests = tmp_path / "made up"
    tests.mkdir()
    (tests / "conftest.py").write_text('pytest_plugins = ["support.needs"]\n')
    (tests / "test_made_up.py").write_text(A_TEST_THAT_NEEDS_IT)
    shutil.copy(root / "pyproject.toml", tests)

    def run_here(*arguments):
        # The copied settings name folders that are found from here no longer.
        environment = {**clean_environment, "PYTHONPATH": str(root / "tests")}
        pytest_command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tests]
        return run([*pytest_command, *arguments], env=environment, cwd=tests, check=False)

    return run_here


def test_missing_program_skips_with_its_reason_below_what_failed(run_pytest, tmp_path):
    (tmp_path / "made up/test_broken.py").write_text("def test_it():\n    assert 0\n")
    out = run_pytest().stdout
    assert "1 failed, 3 skipped" in out
    missing = "needs the program no-such-program, which this machine does not have"
    told = f"skipped 2 tests: {missing}\nskipped 1 test: of its own accord\n"
    assert 0 < out.index("FAILED test_broken.py::test_it") < out.index(told)


def test_missing_program_fails_where_nothing_may_be_skipped(run_pytest):
    out = run_pytest("--no-skip").stdout
    assert "2 failed, 1 error" in out and "skipped" not in out
    assert "needs the program no-such-program" in out and "of its own accord" in out


GROUPED = """
import os, pytest

@pytest.mark.xdist_group("store")
@pytest.mark.parametrize("number", range(8))
def test_one_after_the_other(number):
    with open("workers", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_tests_of_a_group_run_in_one_process(run_pytest, tmp_path):
    """Some releases of pytest and pytest-xdist do not agree on that."""
    (tmp_path / "made up/test_grouped.py").write_text(GROUPED)
    run_pytest("--numprocesses=2", "--dist=loadgroup", "--no-loadscope-reorder")
    workers = (tmp_path / "made up/workers").read_text().split()
    assert len(workers) == 8 and len(set(workers)) == 1


def test_unknown_tool_is_refused_and_installed_ones_are_left(root, run, require):
    script = ["bash", root / "tests/install_tools.sh"]
    refused = run([*script, "aptainer"], check=False)
    assert refused.returncode != 0
    assert "no tool called 'aptainer'" in refused.stderr and "apptainer" in refused.stderr
    require("basics", "python")
    done = run([*script, "basics", "python"])
    assert done.stdout + done.stderr == ""


A_TEST_OF_EACH_TIER = """
import pytest

def test_fast():
    pass

@pytest.mark.real
def test_real():
    pass

@pytest.mark.slow
def test_slow():
    pass
"""


def test_run_tests_makes_its_environment_and_takes_the_tiers(
    root, run, clean_environment, tmp_path
):
    """From another folder, and below a path with spaces and quotes."""
    # The pip that comes with Python 3.9 cannot be installed where a path holds a dollar.
    clone = tmp_path / ('it\'s "my" $clone' if sys.version_info >= (3, 10) else 'it\'s "my" clone')
    (clone / "tests").mkdir(parents=True)
    (clone / "requirements").mkdir()
    for name in ("run_tests.sh", "pyproject.toml"):
        shutil.copy(root / name, clone)
    (clone / "tests/conftest.py").write_text('pytest_plugins = ["support.needs"]\n')
    (clone / "tests/test_it.py").write_text(A_TEST_OF_EACH_TIER)
    # An empty environment is quick to make; pytest comes from the one that runs this test.
    for name in ("host", "test"):
        (clone / f"requirements/{name}.txt").touch()
    packages = [str(root / "tests"), *(path for path in sys.path if path.endswith("site-packages"))]
    made = {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(packages)}
    script, environment = clone / "run_tests.sh", {**clean_environment, **made}

    interrupted = processes.start([script], env=environment, cwd="/")
    assert "making the test environment" in interrupted.stderr.readline()
    processes.end_group(interrupted)
    interrupted.communicate()
    mended = run([script], env=environment, cwd="/")
    assert "making the test environment" in mended.stderr
    assert "1 passed" in mended.stdout
    again = run([script, "-k", "nothing"], env=environment, cwd="/", check=False)
    assert (again.returncode, again.stderr) == (5, ""), "pytest's exit code must come through"
    for arguments, tiers in (
        (["--all"], "fast real"),
        (["--slow"], "fast real slow"),
        (["--slow", "-m", "slow"], "slow"),
        (["tests/test_it.py", "-k", "real or slow"], "real slow"),
        (["tests/test_it.py::test_slow"], "slow"),
    ):
        command = [script, "--collect-only", "-q", *arguments]
        out = run(command, env=environment, cwd="/").stdout
        assert re.findall(r"test_it.py::test_(\w+)", out) == tiers.split(), arguments


@pytest.mark.extras
def test_tests_of_the_table_run_when_their_directory_changed(root):
    every = set(directories.TABLE)
    assert all(re.fullmatch(r"(tests|extras)/.+/test_\w+\.py", test) for test in every)
    assert directories.tests_left_out(["CHANGELOG.md", "trainer/train.py"]) == every
    for path in directories.EVERYTHING:
        assert (root / path).exists() and directories.tests_left_out([path]) == set()
    for test, paths in directories.TABLE.items():
        assert len(paths) > 1
        for path in paths:
            assert (root / path).exists()
            assert test not in directories.tests_left_out([path])
            assert test not in directories.tests_left_out(["CHANGELOG.md", f"{path}/x.py"])


def test_commit_that_git_does_not_know_leaves_nothing_out(run, tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "ROOT", tmp_path)
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for words in (["init", "-q"], [*me, "commit", "-q", "--allow-empty", "-m", "Nothing"]):
        run(["git", *words])
    assert directories.unchanged("HEAD") == set(directories.TABLE)
    for unknown in (None, "", "0123456789" * 4):
        assert directories.unchanged(unknown) == set()
    (tmp_path / "run_tests.sh").touch()
    run(["git", "add", "--all"])
    assert directories.unchanged("HEAD") == set()


def test_nightly_run_leaves_nothing_out(root):
    script = (root / ".ci/run").read_text()
    nightly = next(line for line in script.splitlines() if "--slow -m" in line)
    assert "-m 'slow or by_directory'" in nightly and "--changed-since" not in nightly
    assert ".ci/run --slow" in (root / ".github/workflows/nightly.yml").read_text()
    assert '--changed-since="$(<.ci/green)"' in script
    assert re.fullmatch("[0-9a-f]{40}\n", (root / ".ci/green").read_text())


def test_help_of_run_tests_names_the_tiers_and_runs_none(root, run):
    out = run([root / "run_tests.sh", "--help"]).stdout
    for word in ("./run_tests.sh --all", "./run_tests.sh --slow", "minutes", "install_tools.sh"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_each_file_of_support_is_explained():
    files = {path.stem for path in Path(support.__file__).parent.glob("[!_]*.py")}
    assert [each for each in files if not re.search(rf"\b{each}\b", support.__doc__)] == []


def test_few_tests_are_unsteady(root):
    """Each is one that a lost race may fail without anybody looking at it."""
    text = "".join(path.read_text() for path in root.glob("tests/**/test_*.py"))
    assert len(re.findall(r"pytest\.mark\.unsteady\(", text)) <= 3


def test_run_tests_without_a_usable_python_says_what_is_needed(root, run, tmp_path):
    # None of those that it would try but the one given.
    script = (root / "run_tests.sh").read_text()
    script = script.replace("python3.{14,13,12,11,10,9} /usr/bin/python3", "")
    (tmp_path / "run_tests.sh").write_text(script)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/test.txt").touch()
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}
    done = run(["bash", tmp_path / "run_tests.sh"], env=environment, check=False)
    assert "Python 3.9 or newer" in done.stderr and "install_tools.sh python" in done.stderr


def test_cache_holds_what_is_complete_and_was_used(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSHIP_TEST_CACHE", str(tmp_path))

    def interrupted(partial):
        partial.write_text("half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached("old-1", interrupted)
    assert not (tmp_path / "old-1").exists()
    made = cache.cached("old-1", lambda partial: partial.write_text("all of it"))
    assert cache.cached("old-1", interrupted) == made and made.read_text() == "all of it"
    os.utime(tmp_path / "old-1.lock", (0, 0))
    cache.cached("new-1", lambda partial: partial.mkdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new-1", "new-1.lock"]


def test_run_keeps_every_byte_and_tells_all_of_a_failure(run, hostile_arguments):
    result = run(["printf", "%s\\0", *hostile_arguments])
    assert result.stdout.split("\0")[:-1] == hostile_arguments
    with pytest.raises(pytest.fail.Exception) as failure:
        run(["sh", "-c", "echo to you; echo to me >&2; exit 3"])
    assert all(part in str(failure.value) for part in ("ended with 3", "to you", "to me"))
    with pytest.raises(pytest.fail.Exception, match="did not end within 1 s"):
        run(["sh", "-c", "sleep 60 & wait"], timeout=1)


@pytest.mark.root
@pytest.mark.needs("namespaces")
def test_fixtures_stand_for_other_users(run, as_root, read_only_folder):
    assert run(as_root(["id", "-u"])).stdout == "0\n"
    with pytest.raises(OSError):
        (read_only_folder / "file").touch()
