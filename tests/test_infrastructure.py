"""The tests' own machinery: what is missing is told, and the two scripts run from anywhere."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
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


def test_missing_program_skips_with_its_reason(run_pytest):
    result = run_pytest()
    assert result.returncode == 0, result.stdout
    assert "3 skipped" in result.stdout
    missing = "needs the program no-such-program, which this machine does not have"
    assert f"skipped 2 tests: {missing}\nskipped 1 test: of its own accord\n" in result.stdout


def test_what_failed_is_told_before_what_is_missing(run_pytest, tmp_path):
    (tmp_path / "made up/test_broken.py").write_text("def test_it():\n    assert 0\n")
    out = run_pytest().stdout
    assert 0 < out.index("FAILED test_broken.py::test_it") < out.index("skipped 2 tests: ")


def test_missing_program_fails_where_nothing_may_be_skipped(run_pytest):
    result = run_pytest("--no-skip")
    assert result.returncode == 1, result.stdout
    assert "2 failed, 1 error" in result.stdout and "skipped" not in result.stdout
    assert "needs the program no-such-program" in result.stdout
    assert "of its own accord" in result.stdout


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


def test_missing_tool_names_the_command_that_installs_it(root, run, clean_environment, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "paste"):
        (bare / name).symlink_to(shutil.which(name))
    script = (root / "tests/install_tools.sh").read_text().replace(":/usr/sbin:/sbin", "")
    (tmp_path / "install_tools.sh").write_text(script)
    bare_environment = {**clean_environment, "PATH": str(bare)}
    command = ["bash", tmp_path / "install_tools.sh", "--missing", "umoci"]
    assert run(command, env=bare_environment).stdout == "umoci\n"


def test_unknown_tool_is_refused(root, run):
    result = run(["bash", root / "tests/install_tools.sh", "aptainer"], check=False)
    assert result.returncode != 0
    assert "no tool called 'aptainer'" in result.stderr and "apptainer" in result.stderr


def test_installed_tools_are_not_installed_again(root, run, require):
    require("basics", "python")
    result = run(["bash", root / "tests/install_tools.sh", "basics", "python"])
    assert result.stdout + result.stderr == ""


@pytest.fixture(scope="module")
def awkward_clone(root, tmp_path_factory):
    """Make a clone with a trivial test under a path with spaces and quotes."""
    # The pip that comes with Python 3.9 cannot be installed where a path holds a dollar.
    name = 'it\'s "my" $clone' if sys.version_info >= (3, 10) else 'it\'s "my" clone'
    clone = tmp_path_factory.mktemp("clones") / name
    (clone / "tests").mkdir(parents=True)
    (clone / "requirements").mkdir()
    shutil.copy(root / "run_tests.sh", clone)
    shutil.copy(root / "pyproject.toml", clone)
    (clone / "tests/test_trivial.py").write_text("def test_one():\n    assert 1\n")
    # An empty environment is quick to make; pytest comes from the one that runs this test.
    (clone / "requirements/host.txt").write_text("")
    (clone / "requirements/test.txt").write_text("")
    return clone


@pytest.fixture
def clone_environment(clean_environment):
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {
        **clean_environment,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(packages),
    }


def test_run_tests_from_another_folder_and_an_awkward_path(awkward_clone, clone_environment, run):
    script = awkward_clone / "run_tests.sh"
    interrupted = processes.start([script], env=clone_environment, cwd="/")
    assert "making the test environment" in interrupted.stderr.readline()
    processes.end_group(interrupted)
    interrupted.communicate()
    assert not (awkward_clone / ".venv-tests/stamp").exists()
    mended = run([script], env=clone_environment, cwd="/")
    assert "making the test environment" in mended.stderr
    assert "1 passed" in mended.stdout
    again = run([script, "tests/test_trivial.py"], env=clone_environment, cwd="/")
    assert "1 passed" in again.stdout
    assert again.stderr == ""
    failing = run([script, "-k", "nothing"], env=clone_environment, check=False)
    assert failing.returncode == 5, "pytest's exit code must come through"


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


@pytest.fixture
def tiered_clone(awkward_clone):
    """Give that clone with a test of each tier."""
    conftest, tests = awkward_clone / "tests/conftest.py", awkward_clone / "tests/test_tiers.py"
    conftest.write_text('pytest_plugins = ["support.needs"]\n')
    tests.write_text(A_TEST_OF_EACH_TIER)
    yield awkward_clone
    conftest.unlink()
    tests.unlink()


@pytest.mark.parametrize(
    ("arguments", "tiers"),
    [
        ([], ["fast"]),
        (["--all"], ["fast", "real"]),
        (["--slow"], ["fast", "real", "slow"]),
        (["--slow", "-m", "slow"], ["slow"]),
        (["tests/test_tiers.py", "-k", "real or slow"], ["real", "slow"]),
        (["tests/test_tiers.py::test_slow"], ["slow"]),
    ],
    ids=" ".join,
)
def test_run_tests_takes_the_tiers(tiered_clone, clone_environment, run, root, arguments, tiers):
    packages = f"{root / 'tests'}{os.pathsep}{clone_environment['PYTHONPATH']}"
    command = [tiered_clone / "run_tests.sh", "--collect-only", "-q", *arguments]
    out = run(command, env={**clone_environment, "PYTHONPATH": packages}, cwd="/").stdout
    assert re.findall(r"test_tiers.py::test_(\w+)", out) == tiers


def test_table_names_directories_and_tests_that_exist(root):
    paths = {path for test, paths in directories.TABLE.items() for path in (test, *paths)}
    assert [
        path for path in paths.union(directories.EVERYTHING) if not (root / path).exists()
    ] == []
    assert all(Path(test).match("tests/*/test_*.py") for test in directories.TABLE)
    assert min(map(len, directories.TABLE.values())) > 1


def test_tests_of_the_table_run_when_their_directory_changed():
    every = set(directories.TABLE)
    assert directories.tests_left_out([]) == every
    assert directories.tests_left_out(["CHANGELOG.md", "trainer/train.py"]) == every
    for test, paths in directories.TABLE.items():
        for path in paths:
            assert test not in directories.tests_left_out([path])
            assert test not in directories.tests_left_out(["CHANGELOG.md", f"{path}/x.py"])
    for path in directories.EVERYTHING:
        assert directories.tests_left_out([path]) == set()


def test_commit_that_git_does_not_know_leaves_nothing_out(run, tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("text\n")
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for words in (["init", "-q"], ["add", "."], [*me, "commit", "-q", "-m", "One file"]):
        run(["git", *words])
    assert directories.unchanged("HEAD") == set(directories.TABLE)
    for unknown in (None, "", "0123456789" * 4):
        assert directories.unchanged(unknown) == set()
    (tmp_path / "README.md").rename(tmp_path / "run_tests.sh")
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


def test_few_tests_are_unsteady(root):
    """Each is one that a lost race may fail without anybody looking at it."""
    text = "".join(path.read_text() for path in root.glob("tests/**/test_*.py"))
    assert len(re.findall(r"pytest\.mark\.unsteady\(", text)) <= 5


def test_run_tests_without_a_usable_python_says_what_is_needed(root, run, tmp_path):
    # None of those that it would try but the one given.
    script = (root / "run_tests.sh").read_text()
    script = script.replace("python3.{14,13,12,11,10,9} /usr/bin/python3", "")
    (tmp_path / "run_tests.sh").write_text(script)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/test.txt").touch()
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}
    result = run(["bash", tmp_path / "run_tests.sh"], env=environment, check=False)
    assert result.returncode == 1
    assert "Python 3.9 or newer" in result.stderr and "install_tools.sh python" in result.stderr


def test_cache_holds_only_what_is_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSHIP_TEST_CACHE", str(tmp_path / "cache"))

    def interrupted(partial):
        partial.write_text("half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached("thing-1.txt", interrupted)
    assert not (cache.cache_folder() / "thing-1.txt").exists()
    made = cache.cached("thing-1.txt", lambda partial: partial.write_text("all of it"))
    assert made.read_text() == "all of it"
    assert cache.cached("thing-1.txt", interrupted) == made


def test_cache_drops_what_was_not_used_for_long(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSHIP_TEST_CACHE", str(tmp_path / "cache"))
    old = cache.cached("old-1", lambda partial: partial.mkdir())
    os.utime(old.with_name("old-1.lock"), (0, 0))
    cache.cached("new-1", lambda partial: partial.mkdir())
    assert sorted(path.name for path in old.parent.iterdir()) == ["new-1", "new-1.lock"]


def test_run_shows_all_output_of_a_failure(run):
    with pytest.raises(pytest.fail.Exception) as failure:
        run(["sh", "-c", "echo to you; echo to me >&2; exit 3"])
    for part in ("ended with 3", "to you", "to me"):
        assert part in str(failure.value)


def test_run_ends_what_takes_too_long(run):
    with pytest.raises(pytest.fail.Exception, match="did not end within 1 s"):
        run(["sh", "-c", "sleep 60 & wait"], timeout=1)


def test_run_keeps_every_byte(run, hostile_arguments):
    result = run(["printf", "%s\\0", *hostile_arguments])
    assert result.stdout.split("\0")[:-1] == hostile_arguments


def test_clean_environment_holds_nothing_of_the_project(clean_environment, monkeypatch):
    assert not [name for name in clean_environment if name.startswith("LONGSHIP_")]
    assert Path(clean_environment["HOME"]).is_dir()


def test_read_only_folder_refuses(read_only_folder):
    with pytest.raises(OSError):
        (read_only_folder / "file").touch()


@pytest.mark.root
@pytest.mark.needs("namespaces")
def test_as_root_sees_user_0(run, as_root):
    assert run(as_root(["id", "-u"])).stdout == "0\n"
