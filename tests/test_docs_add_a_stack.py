"""Adding a stack by docs/how-to/add_a_stack.md: one folder, no Python, and the tests pass."""

import re
import sys

import pytest
from support import processes
from support.walkthrough import Page, alone, changed, follow, run_own_tests

# The page's own tests are run, in a clone.
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("docs_add_a_stack")]

PAGE = Page("docs/how-to/add_a_stack.md")
NAME = "nanogpt"


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Give a clone with the files of the page, and its git; leave it as it is."""
    folder = tmp_path_factory.mktemp("followed")
    return follow(PAGE, folder / "clone", processes.make_environment(folder / "home"))


def test_page_has_one_folder_and_no_python():
    names = ("README.md", "pins.toml", "preprocess_data.sh", "requirements.txt", "run_training.sh")
    folder = [f"stacks/{NAME}/{each}" for each in (*names, "stack.toml")]
    assert sorted(PAGE.files) == folder


def test_commands_of_the_page_are_taken_and_change_nothing_else(followed, run):
    clone, git = followed
    assert ["export", f"LONGSHIP_STACK={NAME}"] in PAGE.commands
    environment = {**clone.environment, "LONGSHIP_STACK": NAME}
    calls = PAGE.calls("python3")
    assert len(calls) > 4
    for script, *arguments in calls:
        command = [sys.executable, script, "--dry-run", *arguments]
        said = run(command, env=environment, cwd=clone.root).stdout
        assert f"export LONGSHIP_STACK={NAME}" in said
        assert "/longship-data/scratch/text.txt" in said
    assert changed(git) == sorted(PAGE.files)


@pytest.mark.parametrize("machine", ["jwb", "lumi"])
def test_job_of_a_site_trains_it_where_there_is_an_image(machine, followed, run, tmp_path):
    clone, _ = followed
    configuration = tmp_path / "configuration.toml"
    configuration.write_text(f'stack = "{NAME}"\n[project]\naccount = "a"\n')
    environment = {**clone.environment, "LONGSHIP_CONFIGURATION": str(configuration)}
    folder = {"jwb": "jsc"}.get(machine, machine)
    job = [sys.executable, "submit.py", f"{folder}/run_training_{machine}.sbatch", "--dry-run"]
    done = run(job, env=environment, cwd=clone.root, check=False)
    if machine == "jwb":
        assert f"export LONGSHIP_STACK={NAME}" in done.stdout
    else:
        assert done.stderr.startswith(f"error: stack {NAME} has no image for")


@pytest.mark.parametrize(
    "words", [NAME, pytest.param(alone(NAME), marks=pytest.mark.slow)], ids=["own", "all"]
)
def test_tests_named_on_the_page_pass(words, followed, run):
    clone, git = followed
    calls = PAGE.calls("./run_tests.sh")
    assert len(calls) == 2
    for arguments in calls:
        chosen = [] if "-k" in arguments else ["-k", words]
        assert re.search(r"\d+ passed", run_own_tests(clone, run, *arguments, *chosen))
    assert changed(git) == sorted(PAGE.files)


@pytest.mark.slow  # they are collected: see the last test
def test_other_tests_that_look_at_all_stacks_pass(followed, run):
    clone, _ = followed
    files = [
        "tests/configuration/test_settings.py",
        "tests/test_golden.py",
        "tests/test_stack_pins.py",
    ]
    chosen = "not test_plans_are"  # they know nothing of other stacks
    assert re.search(r"\d+ passed", run_own_tests(clone, run, *files, "-k", chosen))


def test_stack_is_in_the_tests_that_are_run(followed, run):
    clone, _ = followed
    files = [
        "tests/test_readmes.py",
        "tests/configuration/test_stacks.py",
        "tests/test_shellcheck.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    found = run([*command, *files], env=clone.environment, cwd=clone.root).stdout.splitlines()
    assert sum(NAME in each for each in found) >= 14
