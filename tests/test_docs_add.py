"""Adding a site or a stack by its page in docs/: one folder, no Python, and the tests pass."""

import re
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from support import processes
from support.documentation import all_blocks, read
from support.git import Repository
from support.repository import Clone

from lib.configuration.sites import load_machines

# The page's own tests are run, in a clone.
pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[1]
SITE, STACK = "skald", "nanogpt"
OWN = "configuration.local.toml"  # git does not track it
# The first line of a block that is a file, or the second one of a script, in a comment.
NAMED = re.compile(r"(?:#!.*\n)?(?:#|<!--) ([\w./-]+\.\w+)(?: -->)?\n")
FILES = {
    SITE: [
        OWN,
        *(f"{SITE}/{each}" for each in ("README.md", "interactive.salloc", "jupyter.sbatch")),
        f"{SITE}/preprocess_data_parallel_{SITE}.sbatch",
        f"{SITE}/preprocess_data_{SITE}.sbatch",
        f"{SITE}/run_training_{SITE}.sbatch",
        f"{SITE}/site.toml",
    ],
    STACK: [
        *(f"stacks/{STACK}/{each}" for each in ("README.md", "pins.toml", "preprocess_data.sh")),
        *(f"stacks/{STACK}/{each}" for each in ("requirements.txt", "run_training.sh")),
        f"stacks/{STACK}/stack.toml",
    ],
}
# Tests that look at all of them, but those that the page names; the rest of the plans knows none.
OTHERS = {
    SITE: (
        "extras/completion/tests/test_completion tests/configuration/test_resolved",
        "machine or jobs",
    ),
    STACK: ("tests/test_stack_pins", "not test_plans_are"),
}


class Followed:
    """A page, and a new clone with its files, which is committed without them."""

    def __init__(self, name, page, folder):
        self.name, self.files, typed = name, {}, ""
        for kind, body in all_blocks(read(page)):
            if named := NAMED.match(body):
                assert named[1] not in self.files, "said twice"
                self.files[named[1]] = body
            elif kind == "bash":
                typed += body
        lines = typed.replace("\\\n", " ").splitlines()
        self.commands = [words for line in lines if (words := shlex.split(line, comments=True))]
        self.clone = Clone(ROOT, folder / "clone", processes.make_environment(folder / "home"))
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        for each in ("tests", "benchmarks", ".ci"):
            shutil.copytree(ROOT / each, self.clone.root / each, ignore=ignore)
        shutil.copy(ROOT / ".gitignore", self.clone.root)
        self.git = Repository(self.clone.root, self.clone.environment)
        self.git.git("init", "--quiet")
        self.git.commit("as it was")
        for each, text in self.files.items():
            assert not (self.clone.root / each).exists(), f"{each} is there already"
            self.git.write(each, text)

    def calls(self, program):
        """Give the words behind each call of a program on the page, without a redirection."""
        calls = [words[1:] for words in self.commands if words[0] == program]
        found = [[word for word in words if not word.startswith(">")] for words in calls]
        assert len(found) > 1
        return found

    def type(self, *words, env=(), **options):
        """Run a command of the page in the clone."""
        environment = {**self.clone.environment, **dict(env)}
        command = [sys.executable, *words]
        return processes.run(command, env=environment, cwd=self.clone.root, **options)

    def pytest(self, *words):
        """Run the clone's own tests; return what is printed."""
        return self.type("-m", "pytest", "-q", "-p", "no:cacheprovider", *words, timeout=800).stdout

    def has_changed_its_files_alone(self):
        shown = self.git.git("status", "--porcelain", "--untracked-files=all", "-z")
        return sorted(each[3:] for each in shown.split("\0") if each) == sorted(
            {*self.files} - {OWN}
        )


@pytest.fixture(scope="module")
def follow(tmp_path_factory):
    made = {}

    def give(name):
        """Give what follows a page; leave it as it is."""
        page = f"docs/how-to/add_a_{'site' if name == SITE else 'stack'}.md"
        if name not in made:
            made[name] = Followed(name, page, tmp_path_factory.mktemp(name))
        return made[name]

    return give


@pytest.fixture(
    params=[pytest.param(each, marks=pytest.mark.xdist_group(f"add_{each}")) for each in FILES]
)
def followed(request, follow):
    return follow(request.param)


def test_commands_of_the_page_are_taken_and_change_nothing_else(followed):
    assert sorted(followed.files) == FILES[followed.name]
    if followed.name == SITE:  # as it is recognised there
        variables, said = {"LONGSHIP_MACHINE": SITE}, [f"machine {SITE} ({SITE}/site.toml)"]
    else:
        assert ["export", f"LONGSHIP_STACK={STACK}"] in followed.commands
        variables = {"LONGSHIP_STACK": STACK}
        said = [f"export LONGSHIP_STACK={STACK}", "/longship-data/scratch/text.txt"]
    for script, *arguments in followed.calls("python3"):
        if script != "--version":
            out = followed.type(script, "--dry-run", *arguments, env=variables).stdout
            assert all(each in out for each in said) or script == "doctor.py"
    assert followed.has_changed_its_files_alone()


@pytest.mark.xdist_group(f"add_{SITE}")
def test_price_and_limits_are_those_of_the_page(follow):
    job = [f"{SITE}/run_training_{SITE}.sbatch", "--dry-run", "--machine", SITE]
    printed = follow(SITE).type("submit.py", *job).stdout
    assert "at most 8.0 GPU-hours" in printed  # two nodes, four GPUs each, an hour
    limits = f"partition gpu has at most 64 nodes, 2-00:00:00 ({SITE}/site.toml)"
    assert f"submission_test '{limits}' " in printed  # Slurm compares


@pytest.mark.xdist_group(f"add_{STACK}")
def test_job_of_a_site_trains_the_stack_where_there_is_an_image(follow, tmp_path):
    configuration = tmp_path / "configuration.toml"
    configuration.write_text(f'stack = "{STACK}"\n[project]\naccount = "a"\n')
    variables = {"LONGSHIP_CONFIGURATION": str(configuration)}
    submit = partial(follow(STACK).type, "submit.py", "--dry-run", env=variables, check=False)
    assert f"export LONGSHIP_STACK={STACK}" in submit("jsc/run_training_jwb.sbatch").stdout
    refused = submit("lumi/run_training_lumi.sbatch").stderr
    assert refused.startswith(f"error: stack {STACK} has no image for")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tests_named_on_the_page_pass(every, followed):
    """But for those that only repeat a test for another site or stack, as this repository does."""
    names = {
        path.parent.name for path in (*ROOT.glob("*/site.toml"), *ROOT.glob("stacks/*/*.toml"))
    }
    others = " or ".join(sorted({*names, *load_machines(ROOT)} - {"local", "pytorch"}))
    words = f"{followed.name} or not ({others})" if every else followed.name
    for arguments in followed.calls("./run_tests.sh"):
        chosen = [] if "-k" in arguments else ["-k", words]
        assert re.search(r"\d+ passed", followed.pytest(*arguments, *chosen))
    assert followed.has_changed_its_files_alone()


@pytest.mark.slow  # they are collected: see the last test
def test_other_tests_that_look_at_all_of_them_pass(followed):
    names, chosen = OTHERS[followed.name]
    names = f"tests/configuration/test_settings tests/test_golden {names}".split()
    files = [f"{each}.py" for each in names]
    assert re.search(r"\d+ passed", followed.pytest(*files, "-k", chosen))


def test_it_is_in_the_tests_that_are_run(followed):
    files = ("test_readmes", "configuration/test_stacks", "test_shellcheck")
    found = followed.pytest("--collect-only", *(f"tests/{each}.py" for each in files))
    assert sum(followed.name in line for line in found.splitlines()) >= 10
