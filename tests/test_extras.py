"""The core uses nothing of extras/, and no extra uses another one: each can be deleted."""

import ast
import contextlib
import difflib
import json
import re
import sys
from pathlib import Path

import pytest
from support import processes
from support.repository import copy_tree

from lib.script.render import definitions_of, shell_files

ROOT = Path(__file__).resolve().parents[1]
LIB = ROOT / "lib"
PYTHON = sorted(
    path for path in [*ROOT.glob("lib/**/*.py"), *ROOT.glob("extras/**/*.py")] if path.is_file()
)


def owner(path):
    """Name the extra that a file belongs to; "" for the core."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "extras" else ""


def imported(path):
    """Give the extras that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [each.name for each in getattr(node, "names", ()) if isinstance(each, ast.alias)]
        for name in [f"{getattr(node, 'module', None) or ''}.{each}" for each in names]:
            parts = name.strip(".").split(".")
            if parts[0] == "extras":
                yield parts[1] if len(parts) > 1 else "*"


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_imports_of_no_other_extra(path):
    assert set(imported(path)) <= {owner(path)} - {""}


@pytest.mark.parametrize("path", shell_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_bash_calls_functions_of_no_other_extra(path):
    foreign = {
        name: owner(each)
        for each in shell_files()
        if owner(each) not in ("", owner(path))
        for name in definitions_of(each)
    }
    code = re.sub(r"^ *#.*", "", path.read_text(encoding="utf-8"), flags=re.M)
    assert {foreign[word] for word in re.findall(r"\w+", code) if word in foreign} == set()


# The packages of lib/, the lowest first: a floor calls functions of its own and of those below.
FLOORS = [
    *({"script"}, {"configuration"}, {"runtimes"}, {"store"}),
    {"images", "packages", "repositories", "assets"},
    *({"jobs", "shell"}, {"doctor"}, {"commands"}),
]


def floor(path):
    """Give the number of the floor that a file is on; extras are above all."""
    package = path.relative_to(ROOT).parts[1]
    if owner(path):
        return len(FLOORS)
    return next(number for number, each in enumerate(FLOORS) if package in each)


FLOOR_OF = {name: floor(path) for path in shell_files() for name in definitions_of(path)}
OF_CORE = [path for path in [*shell_files(), *PYTHON] if not owner(path) and path.parent != LIB]


@pytest.mark.parametrize("path", OF_CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_of_bash_are_called_from_their_floor_or_above(path):
    """By bash, and by the lines of a plan: there a name is the first word of a call."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        values = [getattr(node, "value", "") for node in ast.walk(ast.parse(text))]
        words = [each for each in values if isinstance(each, str)]
    else:
        words = re.findall(r"\w+", re.sub(r"^ *#.*", "", text, flags=re.M))
    assert {each for each in words if FLOOR_OF.get(each, 0) > floor(path)} == set()


# What the core prints, as its plans: each command in a clone of its own, without an extra.
COMMANDS = [
    "container_run.py true",
    *(f"build_container.py {mode}" for mode in ("online", "download", "offline")),
    *("move_built_container_to_active.py", "move_built_container_to_active.py --rollback"),
    *(f"build_overlay.py {mode}" for mode in ("online", "download", "offline", "--prune")),
    *(f"set_up.py {mode}" for mode in ("install", "update", "download", "offline", "save-patches")),
    *("submit.py local/run_training_local.sbatch --nodes=2", "doctor.py --json"),
]
# All of them in one Python, which takes a second.
RUNNER = """
import contextlib, io, json, runpy, sys
sys.path[0] = sys.argv[1]
found = []
for words in map(str.split, json.load(sys.stdin)):
    sys.argv = [f"{sys.path[0]}/{words[0]}", *words[1:]]
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        assert not end.code, (words, end.code)
    found.append(said.buffer.getvalue().decode())
json.dump(found, sys.stdout)
"""
CONFIGURATION = """
project = { name = "p", account = "a" }
container = { runtime = "apptainer", image = "docker://example.org/lab/base:1" }
packages.overlay = "mine"
[[assets]]
repo = "lab/tiny"
[[repositories]]
url = "https://example.org/one.git"
"""


class Core:
    """A clone, and the scripts that its commands would run."""

    def __init__(self, folder):
        self.folder = folder
        self.clone = copy_tree(ROOT, folder / "it's a clone", compiled=True)
        (self.clone / "configuration.toml").write_text(CONFIGURATION)
        self.environment = processes.make_environment(folder / "home")
        self.with_extras = self.scripts()

    def scripts(self):
        """Give what each command prints."""
        words = [each.replace(".py", ".py --dry-run", 1) for each in COMMANDS]
        command = [sys.executable, "-c", RUNNER, self.clone]
        given = {"env": self.environment, "cwd": self.clone, "input": json.dumps(words)}
        return json.loads(processes.run(command, **given).stdout)

    @contextlib.contextmanager
    def without(self, extra=""):
        """Remove an extra, or all of them, for a while."""
        removed = self.clone / "extras" / extra
        removed.rename(self.folder / "removed")
        try:
            yield
        finally:
            (self.folder / "removed").rename(removed)


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    return Core(tmp_path_factory.mktemp("core"))


# Files of the core that only these extras use: they have not moved yet.
IN_LIB = {"restarts": "watcher"}


def own_words(extra):
    """Give the words that make a line of a plan an extra's: functions, and texts of its hooks."""
    files = [
        each for each in shell_files() if owner(each) == extra or each.stem == IN_LIB.get(extra)
    ]
    words = {name for each in files for name in definitions_of(each)}
    for file in [ROOT / f"extras/{extra}/{each}.py" for each in ("job", "overlay")]:
        if not file.exists():
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.update(re.findall(r"\w+", node.value))
    return words


def differences(script, other, extras):
    """Give the lines in which two scripts differ above their functions, but those of the extras."""
    own = set().union(*map(own_words, extras))
    plans = [each.partition("\n\n# ---------- ")[0] for each in (script, other)]
    lines = [re.sub(r" \\\n +", " ", plan).splitlines() for plan in plans]  # a call on each
    found = [each for each in difflib.ndiff(*lines) if each[0] in "-+"]
    return [each for each in found if each[2:] and not own & {*re.findall(r"\w+", each)}]


EXTRAS = sorted({owner(path) for path in PYTHON} - {"", "__init__.py"})


@pytest.mark.extras
@pytest.mark.parametrize("extra", [*EXTRAS, ""])
def test_without_an_extra_the_core_prints_the_same_plans(extra, core):
    """And without all."""
    with core.without(extra):
        scripts = core.scripts()
    for command, script, other in zip(COMMANDS, core.with_extras, scripts):
        assert differences(script, other, [extra] if extra else EXTRAS) == [], command


@pytest.mark.extras
def test_script_of_a_removed_extra_says_so(core, run):
    with core.without():
        done = run([sys.executable, core.clone / "bundle.py", "pack", "x"], check=False)
    error, hint = done.stderr.splitlines()
    assert error == "error: bundle.py belongs to an extra that this clone does not have"
    assert hint.startswith("hint: restore its directory: ")


A_CHECK = """
from lib.script.output import warning
def findings(settings):
    yield warning("mine", settings.machine.name, "fix it")
"""
A_VERB = """
import click
@click.command()
def greet():
    \"\"\"Greet.\"\"\"
    click.echo("hello")
"""


@pytest.mark.extras
def test_extra_of_which_a_file_is_missing_is_told(core, run):
    file = core.clone / "extras/usage/usage.py"
    file.rename(core.folder / "removed")
    words = ["submit.py", "local/run_training_local.sbatch", "--dry-run"]
    done = run([sys.executable, core.clone / words[0], *words[1:]], cwd=core.clone, check=False)
    (core.folder / "removed").rename(file)
    error, hint = done.stderr.splitlines()
    assert error == "error: extras/usage is incomplete: no module extras.usage.usage"
    assert hint.startswith("hint: restore it: git checkout -- extras/usage; or remove all of it: r")


@pytest.mark.extras
def test_files_of_a_new_extra_are_found(core, run):
    folder = core.clone / "extras/mine"
    folder.mkdir()
    (folder / "check.py").write_text(A_CHECK)
    (folder / "doctor_greet.py").write_text(A_VERB)
    doctor = [sys.executable, core.clone / "doctor.py"]
    assert run([*doctor, "greet"]).stdout == run([*doctor, "--greet"]).stdout == "hello\n"
    found = json.loads(run([*doctor, "--json"], check=False).stdout)["findings"]
    assert [each["fix"] for each in found if each["topic"] == "mine"] == ["fix it"]
