"""Adding a site by docs/how-to/add_a_site.md: one folder, no Python, and the tests pass."""

import re
import sys

import pytest
from support import processes
from support.walkthrough import Page, alone, changed, follow, run_own_tests

# The page's own tests are run, in a clone.
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("docs_add_a_site")]

PAGE = Page("docs/how-to/add_a_site.md")
FOLDER = "skald"
OWN = "configuration.local.toml"  # git does not track it


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Give a clone with the files of the page, and its git; leave it as it is."""
    folder = tmp_path_factory.mktemp("followed")
    return follow(PAGE, folder / "clone", processes.make_environment(folder / "home"))


def test_page_has_one_folder_and_no_python():
    assert sorted(PAGE.files) == [
        OWN,
        f"{FOLDER}/README.md",
        f"{FOLDER}/interactive.salloc",
        f"{FOLDER}/jupyter.sbatch",
        f"{FOLDER}/preprocess_data_parallel_{FOLDER}.sbatch",
        f"{FOLDER}/preprocess_data_{FOLDER}.sbatch",
        f"{FOLDER}/run_training_{FOLDER}.sbatch",
        f"{FOLDER}/site.toml",
    ]


def test_commands_of_the_page_are_taken_and_change_nothing_else(followed, run):
    clone, git = followed
    environment = {**clone.environment, "LONGSHIP_MACHINE": FOLDER}  # as it is recognised there
    calls = PAGE.calls("python3")
    assert len(calls) > 4
    for script, *arguments in calls:
        if script == "--version":
            continue
        command = [sys.executable, script, "--dry-run", *arguments]
        said = run(command, env=environment, cwd=clone.root).stdout
        assert f"machine {FOLDER} ({FOLDER}/site.toml)" in said or script == "doctor.py"
    assert changed(git) == sorted({*PAGE.files} - {OWN})


def test_price_and_limits_are_those_of_the_page(followed, run):
    clone, _ = followed
    job = [sys.executable, "submit.py", f"{FOLDER}/run_training_{FOLDER}.sbatch", "--dry-run"]
    job += ["--machine", FOLDER]
    script = run(job, env=clone.environment, cwd=clone.root).stdout
    assert "at most 8.0 GPU-hours" in script  # two nodes, four GPUs each, an hour
    done = run([*job, "--time=3-0"], env=clone.environment, cwd=clone.root, check=False)
    assert done.returncode == 1
    assert f"hint: use at most --time=2-00:00:00 ({FOLDER}/site.toml)" in done.stderr


@pytest.mark.parametrize(
    "words", [FOLDER, pytest.param(alone(FOLDER), marks=pytest.mark.slow)], ids=["own", "all"]
)
def test_tests_named_on_the_page_pass(words, followed, run):
    clone, git = followed
    calls = PAGE.calls("./run_tests.sh")
    assert len(calls) == 2
    for arguments in calls:
        chosen = [] if "-k" in arguments else ["-k", words]
        assert re.search(r"\d+ passed", run_own_tests(clone, run, *arguments, *chosen))
    assert changed(git) == sorted({*PAGE.files} - {OWN})


@pytest.mark.slow  # they are collected: see the last test
def test_other_tests_that_look_at_all_sites_pass(followed, run):
    clone, _ = followed
    names = ("configuration/test_settings", "configuration/test_resolved", "test_golden")
    files = [f"tests/{each}.py" for each in names] + ["extras/completion/tests/test_completion.py"]
    chosen = "machine or jobs"
    assert re.search(r"\d+ passed", run_own_tests(clone, run, *files, "-k", chosen))


def test_site_is_in_the_tests_that_are_run(followed, run):
    clone, _ = followed
    files = [
        "tests/test_readmes.py",
        "tests/configuration/test_stacks.py",
        "tests/test_shellcheck.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    found = run([*command, *files], env=clone.environment, cwd=clone.root).stdout.splitlines()
    assert sum(FOLDER in each for each in found) >= 10
