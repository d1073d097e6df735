"""The frame: packages of lib/, one place that starts processes, old Pythons."""

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path

import pytest
from support import processes
from support.emitted import emit, environment_of
from support.repository import copy_tree

from lib.configuration.layers import Settings
from lib.runtimes.environment import Environment

ROOT = Path(__file__).resolve().parents[1]
LIB = ROOT / "lib"
ENTRIES = sorted(path for path in ROOT.glob("*.py") if "lib.start(main)" in path.read_text())

# What each package of lib/ may import, besides itself: dependencies point one way.
BASE = ("script", "configuration", "runtimes")
MAY_IMPORT = {
    "script": (),
    "configuration": ("script",),
    "runtimes": ("script", "configuration"),
    "store": BASE,
    "images": (*BASE, "store"),
    "repositories": BASE,
    "assets": BASE,
    "packages": (*BASE, "store", "images", "repositories", "assets"),
    "jobs": (*BASE, "images", "packages", "repositories", "assets"),
    "doctor": (*BASE, "store", "images", "packages", "repositories", "assets", "jobs"),
}
MAY_IMPORT["commands"] = tuple(MAY_IMPORT)

# They run inside the environment, not on the host, and are not part of the core.
INSIDE = sorted([*LIB.glob("*/inside/*.py"), *ROOT.glob("extras/*/inside/*.py")])
CORE = sorted(path for path in LIB.rglob("*.py") if path.parent.name != "inside")
HOST = [*CORE, *sorted(ROOT.glob("extras/*/*.py"))]
OWN_PYTHON = [*HOST, *ENTRIES, *INSIDE]


def shown(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_by(tree):
    """Give the modules of lib that are imported anywhere in a file, in functions too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports say where from"
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    parts = [name.split(".") for name in names if name.startswith("lib.")]
    return {".".join(each[1:3]) for each in parts if Path(LIB, each[1]).is_dir()}


def test_every_package_is_in_the_list():
    packages = {path.parent.name for path in LIB.glob("*/__init__.py")}
    assert packages == set(MAY_IMPORT)


@pytest.mark.parametrize("path", [each for each in CORE if each.parent != LIB], ids=shown)
def test_module_imports_from_listed_packages_only(path):
    own = path.parent.name
    imported = {name.split(".")[0] for name in imported_by(tree_of(path))}
    assert imported - {own} <= set(MAY_IMPORT[own])


def test_modules_of_a_package_import_each_other_in_one_direction():
    arrows = {}
    for path in CORE:
        if path.parent != LIB and path.name != "__init__.py":
            own = f"{path.parent.name}.{path.stem}"
            arrows[own] = imported_by(tree_of(path)) - {own}
    graphlib.TopologicalSorter(arrows).prepare()  # raises a CycleError


def test_worker_for_repositories_needs_the_standard_library_alone(run):
    """And nothing of the core but its messages; the core does not import it."""
    imports = [f"lib.repositories.{name}" for name in sorted(WORKER)]
    text = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(imports)}\n"
        "print(*(name for name in sys.modules if name.startswith('lib.')))"
    )
    found = set(run([sys.executable, "-I", "-S", "-c", text]).stdout.split())
    used = {"lib.script", "lib.script.errors", "lib.script.worker"}
    assert found == {*imports, "lib.repositories", *used}
    for path in CORE:
        if path not in CODE and (path.stem not in WORKER or path.parent.name != "repositories"):
            used = imported_by(tree_of(path))
            assert not used & {f"repositories.{name}" for name in WORKER}, shown(path)


def test_worker_that_records_code_needs_the_standard_library_alone(run):
    run([sys.executable, "-I", "-S", LIB / "jobs/record_worker.py", "record", "."])


def test_first_file_of_lib_imports_nothing_of_lib():
    assert imported_by(tree_of(LIB / "__init__.py")) == set()


def test_every_module_is_imported(run):
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in HOST]
    text = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    names = [name.removesuffix(".__init__") for name in names]
    run([sys.executable, "-W", "error", "-c", text, *names], cwd=ROOT)


@pytest.mark.parametrize("path", HOST, ids=shown)
def test_text_is_read_in_no_encoding_of_a_locale(path):
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {keyword.arg for keyword in node.keywords}
            if node.func.attr in ("read_text", "write_text") and "encoding" not in named:
                found.append(node.lineno)
    assert not found, f"{shown(path)}: an encoding is missing in the lines {found}"


def receivers_of(kind, function, *arguments):
    """Give the functions that get a value of a kind as an argument during a call."""
    found = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith((str(LIB), f"{ROOT}/extras")):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), kind) for name in names):
                found.add(f"{shown(Path(code.co_filename))}: {code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("configuration", ["configuration", "overlay"])
@pytest.mark.parametrize(("kind", "most"), [("container_run", 9), ("submit", 15)])
def test_settings_make_few_stops(kind, most, configuration):
    """Values are resolved once: what renders them gets them, not what they are resolved from."""
    file = ROOT / f"tests/golden/{configuration}.toml"
    for machine, runtime in (("jwb", "apptainer"), ("lumi", "singularity")):
        stops = receivers_of(Settings, emit, kind, environment_of(machine, runtime, file))
        assert "lib/runtimes/image.py: image_source" in stops
        assert len(stops) <= most, stops


@pytest.mark.parametrize(
    ("kind", "name", "first", "most"),
    [
        ("submit", "configuration", "jobs/submit.py: request_of", 15),
        ("build_overlay", "overlay", "packages/overlay.py: overlay_build_lines", 12),
    ],
)
def test_environment_makes_few_stops(kind, name, first, most):
    """What a job requests is complete when it is made: nothing after it asks the settings again."""
    env = environment_of("jwb", "apptainer", ROOT / f"tests/golden/{name}.toml")
    stops = receivers_of(Environment, emit, kind, env)
    stops = [each for each in stops if not each.startswith("lib/runtimes/environment.py")]
    assert f"lib/{first}" in stops
    assert len(stops) <= most, stops


# What starts or becomes a process: modules, and functions of os.
STARTING_MODULES = {
    *("subprocess", "pty", "multiprocessing", "asyncio", "concurrent", "_posixsubprocess"),
}
STARTING_FUNCTIONS = re.compile(r"(exec|spawn|posix_spawn|fork)\w*|system|popen|startfile")


def starts_processes(tree):
    """Give the places of a file where a process could be started."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {alias.name.split(".")[0] for alias in node.names}
            found += [f"line {node.lineno}: import" for _ in roots & STARTING_MODULES]
        elif isinstance(node, ast.ImportFrom):
            root = node.module.split(".")[0] if node.module else ""
            names = [alias.name for alias in node.names]
            if root in STARTING_MODULES or (
                root in ("os", "posix") and any(map(STARTING_FUNCTIONS.fullmatch, names))
            ):
                found.append(f"line {node.lineno}: from {root}")
        elif isinstance(node, ast.Attribute) and STARTING_FUNCTIONS.fullmatch(node.attr):
            if isinstance(node.value, ast.Name) and node.value.id in ("os", "posix"):
                found.append(f"line {node.lineno}: os.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec", "__import__"):
            found.append(f"line {node.lineno}: {node.id}")
    return found


# Who may start processes: one file of the core, and those that emitted scripts start: the workers
# for repositories and for bundles, and the sampler of a node.
STARTING = {LIB / "script/execute.py", LIB / "script/worker.py"}
STARTING |= {LIB / "repositories/git.py", LIB / "repositories/worker.py"}
STARTING |= {ROOT / "extras/bundle/pack.py", ROOT / "extras/usage/sampler.py"}
WORKER = {path.stem for path in LIB.glob("repositories/*.py")} - {"__init__", "repositories"}
# The worker that records the code of jobs uses that of the repositories.
CODE = {LIB / "jobs/working_tree.py", LIB / "jobs/record_worker.py"}


@pytest.mark.parametrize("path", [*HOST, *ENTRIES], ids=shown)
def test_only_listed_modules_start_processes(path):
    found = starts_processes(tree_of(path))
    if path in STARTING:
        assert found
    elif path == LIB / "__init__.py":
        # an old Python becomes the one of .venv, before lib/script/execute.py can even be read
        assert [place.split(": ")[1] for place in found] == ["os.execv"]
    else:
        assert not found


def test_start_of_a_process_is_seen():
    for text in (
        *("import subprocess", "def f():\n    import subprocess as s", "import concurrent.futures"),
        *("from subprocess import run", "from os import execv", "eval('x')"),
        *("import os\nos.system('x')", "os.posix_spawn('x')"),
    ):
        assert starts_processes(ast.parse(text)), text


def test_sites_and_stacks_are_named_in_no_python():
    """Adding one needs no Python: no module knows the name of one."""
    names = {
        path.parent.name for path in [*ROOT.glob("*/site.toml"), *ROOT.glob("stacks/*/*.toml")]
    }
    names -= {"local", "pytorch"}  # the defaults
    assert names
    for path in [*HOST, *ENTRIES]:
        constants = {
            node.value
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not constants & names, shown(path)


def test_python_is_no_newer_than_3_9(run):
    """Hold syntax and standard library: vermin knows since when each is there."""
    # By its Python: pip's console scripts cannot find it where the path holds quotes.
    vermin = [sys.executable, processes.program("vermin")]
    command = [*vermin, "--quiet", "--no-tips", "--target=3.9-", "--violations"]
    payload = [ROOT / "train.py", ROOT / "preprocess_data.py", *ROOT.glob("training/*.py")]
    # tomllib is asked for first, and tomli taken where it is not there
    done = run([*command, "--exclude", "tomllib", *OWN_PYTHON, *payload], check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", [LIB / "__init__.py", *ENTRIES], ids=shown)
def test_file_that_an_old_python_meets_is_read_by_it(path):
    """Or the user meets a SyntaxError where the file has a sentence to say."""
    text = path.read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "from __future__ import annotations" not in text  # since 3.7


# There is no Python 3.6 to be had here: a newer one says that it is 3.6, before lib is imported.
AS_OLD_PYTHON = """
import runpy, sys
sys.version_info = (3, 6, 8, "final", 0)
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_as_old_python(clone, run, script, *arguments):
    command = [sys.executable, "-c", AS_OLD_PYTHON, clone / script, *arguments]
    return run(command, check=False)


def test_old_python_faked_is_told_what_is_needed(root, run, tmp_path):
    clone = copy_tree(root, tmp_path / "it's a clone")
    error, hint = run_as_old_python(clone, run, "set_up.py", "true").stderr.splitlines()
    assert error == f"error: Longship needs Python 3.9 or newer; {sys.executable} is 3.6"
    assert hint.startswith("hint: ") and "python3" in hint
    (clone / "here").mkdir()
    site = f'newer_python = "module load python"\n[machines.here]\nrecognise.path = "{tmp_path}"\n'
    (clone / "here/site.toml").write_text(site)
    done = run_as_old_python(clone, run, "container_run.py", "true")
    assert done.returncode == 1
    assert "hint: run: module load python; then run the command again" in done.stderr


def test_old_python_faked_becomes_the_one_of_the_clone(root, run, tmp_path):
    clone = copy_tree(root, tmp_path / "clone")
    own = clone / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    own.chmod(0o755)
    done = run_as_old_python(clone, run, "container_run.py", "a b", "")
    assert done.stdout == f"{clone}/container_run.py\na b\n\n"
    own.write_bytes(b"\x7fELF of another architecture")
    done = run_as_old_python(clone, run, "container_run.py", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("error: Longship needs Python 3.9 or newer; ")
