"""The module index: Python imports, inspects and lists the same with it and without."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lib import ROOT

INDEXER = Path(ROOT) / "extras/overlay_speed/inside/module_index.py"
PROGRAMS = Path(ROOT) / "lib/packages/inside"
PACKAGES = (
    "click",
    "_pytest",
    "iniconfig",
    "packaging",
    "pluggy",
    "yaml",
)  # yaml has an extension module
FILES = {
    "wide/one.py": "VALUE = 1\n",  # a namespace package, which a second directory adds to
    "wide/deep/two.py": "VALUE = 2\n",
    "longer/__init__.py": "import os\n__path__.append(os.environ['MORE'] + '/longer')\n",
    "longer/data/table.txt": "text\n",
    "longer/own.py": "def f():\n    return 'source'\n\n\nclass C:\n    pass\n",
    "plain.py": "VALUE = {'b', 'c'}\n",
    "template.py": "this is {{ no Python\n",
    "a-b.py": "VALUE = 3\n",
    "both/__init__.py": "",
    "both.py": "raise ImportError('the package wins')\n",
    "sourceless.py": "VALUE = 4\n",
    "unchecked.py": "VALUE = 5\n",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
}

# A process that takes the directory for a read-only one, as a mounted overlay is.
BEGIN = """\
import json, os, site, sys, types
real = os.statvfs
os.statvfs = lambda path: types.SimpleNamespace(f_flag=os.ST_RDONLY)
site.addsitedir({packages!r})
os.statvfs = real
"""
# Everything that programs ask about modules, without the addresses of objects.
LOOK = """
import importlib, importlib.metadata, importlib.resources, importlib.util, inspect, linecache
import pickle, pkgutil

def look(name):
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        return [type(error).__name__, str(error)]
    spec, loader = module.__spec__, module.__loader__
    asked = ("__file__", "__cached__", "__package__", "__doc__")
    found = {each: getattr(module, each, None) for each in asked}
    found["names"] = sorted(vars(module))
    found["path"] = list(getattr(module, "__path__", ()))
    found["spec"] = [spec.name, spec.origin, spec.cached, spec.has_location, spec.parent]
    found["spec"].append(list(spec.submodule_search_locations or ()))
    kinds = importlib.machinery.SourceFileLoader, importlib.machinery.ExtensionFileLoader
    found["loader"] = [isinstance(loader, each) for each in kinds]
    if spec.origin:
        found["of loader"] = [loader.name, loader.path, loader.is_package(name)]
        found["source"] = loader.get_source(name)
        code = loader.get_code(name)
        found["code"] = code and [code.co_filename, code.co_code.hex(), repr(code.co_names)]
        assert pickle.loads(pickle.dumps(loader)) == loader
    if hasattr(loader, "path_stats"):
        found["stats"] = loader.path_stats(loader.path)
        found["data"] = loader.get_data(spec.cached).hex() if os.path.exists(spec.cached) else ""
        found["start"] = loader.get_data(spec.origin)[:100].hex()
    for each in vars(module).values():
        if inspect.isfunction(each) and each.__module__ == name:
            try:
                found.setdefault("functions", []).append(inspect.getsource(each))
            except OSError as error:
                found.setdefault("functions", []).append(str(error))
    if hasattr(module, "__path__"):
        below = pkgutil.iter_modules(module.__path__)
        found["below"] = sorted((each.name, each.ispkg) for each in below)
    return found

names = [each.name for each in pkgutil.walk_packages([packages], onerror=lambda name: None)]
names += ["wide", "wide.one", "wide.deep.two", "wide.more", "longer.more", "longer.data", "a-b"]
names += ["sourceless", "no", "click.no", "longer.data.no", "click.__init__", "click.__pycache__"]
result = {name: look(name) for name in names if not name.endswith("__main__")}
result["version"] = importlib.metadata.version("tiny")
result["resource"] = importlib.resources.files("longer").joinpath("data/table.txt").read_text()
result["pkgutil"] = pkgutil.get_data("longer", "data/table.txt").decode()
result["lines"] = linecache.getlines(sys.modules["longer.own"].__file__)
result["found"] = importlib.util.find_spec("click.core").origin
print(json.dumps(result, sort_keys=True, default=repr))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Make a directory of packages with an index, and one with further parts of some of them."""
    folder = tmp_path_factory.mktemp("index") / "it's a site-packages"
    for name in PACKAGES:
        parent = Path(click.__file__).parent.parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(parent / name, folder / name, ignore=ignored)
    for name, text in FILES.items():
        write(folder / name, text)
    for name in ("wide/more.py", "longer/more.py"):
        write(folder.parent / "more" / name, "VALUE = 'more'\n")
    shutil.copy(INDEXER, folder / "longship_module_index.py")
    (folder / "linked").symlink_to("click")
    for path in folder.rglob("*"):
        os.utime(path, (315532800, 315532800), follow_symlinks=False)  # as in an overlay
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder], check=False)
    os.replace(py_compile.compile(folder / "sourceless.py"), folder / "sourceless.pyc")
    (folder / "sourceless.py").unlink()
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(folder / "unchecked.py", invalidation_mode=unchecked)
    index(folder)
    return folder


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def index(folder, **environ):
    command = [sys.executable, PROGRAMS, INDEXER.with_name("module_index.write"), folder]
    subprocess.run(command, check=True, env={**os.environ, **environ})


def python(packages, code, *options, before=(), **environ):
    """Run code in a Python that has the packages; return its output."""
    text = BEGIN.format(packages=str(packages)) + f"packages = {str(packages)!r}\n" + code
    command = [sys.executable, "-S", *options, "-c", text]
    more = str(packages.parent / "more")
    path = os.pathsep.join(map(str, [*before, more]))
    environ = {**os.environ, "PYTHONPATH": path, "MORE": more, **environ}
    environ.update(PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, env=environ, cwd="/", stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    return done.stdout


SHOW = "import {0}; print({0}.VALUE, type({0}.__loader__).__name__)"
WITH, WITHOUT = "IndexedLoader", "SourceFileLoader"


@pytest.mark.parametrize("options", [(), ("-I",)])
def test_everything_is_the_same_with_and_without_it(packages, options):
    with_it = json.loads(python(packages, LOOK, *options))
    without = json.loads(python(packages, LOOK, *options, LONGSHIP_MODULE_INDEX="0"))
    assert len(with_it) > 150
    assert sum("of loader" in each for each in with_it.values() if isinstance(each, dict)) > 90
    for name, found in with_it.items():
        assert found == without[name], name


def test_it_is_used_and_switched_off_by_a_variable(packages):
    show = SHOW.format("plain")
    found = python(packages, show).split()
    assert found[-1] == WITH
    for options, environ in (
        ((), {"LONGSHIP_MODULE_INDEX": "0"}),
        (("-O",), {}),
        (("-X", "pycache_prefix=/nowhere"), {}),
    ):
        assert python(packages, show, *options, **environ).split()[-1] == WITHOUT


def test_it_makes_few_requests(packages, tmp_path):
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    counts = []
    for value in ("1", "0"):
        trace = tmp_path / value
        code = (
            BEGIN.format(packages=str(packages)) + "import click.testing, packaging.metadata, yaml"
        )
        command = [
            "strace",
            "-f",
            "-e",
            "trace=%file",
            "-o",
            trace,
            sys.executable,
            "-S",
            "-c",
            code,
        ]
        environ = {**os.environ, "LONGSHIP_MODULE_INDEX": value}
        subprocess.run(command, env=environ, check=True)
        counts.append(trace.read_text(errors="replace").count(str(packages)))
    assert counts[0] < 20 and counts[1] > 10 * counts[0]


def test_what_comes_before_it_on_the_path_wins(packages, tmp_path):
    """A venv above, a repository on PYTHONPATH, and the directory of the program."""
    write(tmp_path / "plain.py", "VALUE = 'newer'\n")
    write(tmp_path / "wide/one.py", "VALUE = 'first'\n")
    assert python(packages, SHOW.format("plain"), before=[tmp_path]) == f"newer {WITHOUT}\n"
    show = "import wide.one, wide.deep.two; print(wide.one.VALUE, wide.deep.two.VALUE)"
    assert python(packages, show, before=[tmp_path]) == "first 2\n"
    # changed while the program runs
    code = f"""
import importlib, plain
assert plain.VALUE == {{"b", "c"}}
sys.path.insert(0, {str(tmp_path)!r})
importlib.invalidate_caches()
print(importlib.reload(plain).VALUE)
"""
    assert python(packages, code) == "newer\n"


def test_directory_that_can_change_is_read_by_pythons_own_finder(packages):
    code = f"import site; site.addsitedir({str(packages)!r}); {SHOW.format('plain')}"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.stdout.split()[-1] == WITHOUT


def test_file_that_is_mounted_over_one_of_it_is_seen(packages, monkeypatch):
    """All directories are searched as always then."""
    mounted = f"36 35 98:0 / {packages}/plain.py ro - squashfs /dev/loop0 ro\\n"
    code = f"""
import builtins, io
real_open = builtins.open
sys.modules.pop("longship_module_index")
def fake(path, *more, **options):
    if path == "/proc/self/mountinfo":
        return io.StringIO({mounted!r})
    return real_open(path, *more, **options)
import longship_module_index
os.statvfs = lambda path: types.SimpleNamespace(f_flag=os.ST_RDONLY)
print(longship_module_index.can_change(packages))
builtins.open = fake
print(longship_module_index.can_change(packages))
"""
    assert python(packages, code) == "False\nTrue\n"


@pytest.mark.parametrize("damage", ["missing", "empty", "other"])
def test_index_that_cannot_be_used_is_ignored(packages, tmp_path, damage):
    """Missing, empty, or of another Python."""
    copy = tmp_path / "packages"
    shutil.copytree(packages, copy, symlinks=True)
    file = copy / "longship_module_index.bin"
    if damage == "missing":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        tag = sys.implementation.cache_tag.encode()
        content = file.read_bytes()
        at = content.rindex(tag)
        file.write_bytes(content[:at] + tag[::-1] + content[at + len(tag) :])
    assert python(copy, SHOW.format("plain")).split()[-1] == WITHOUT


def test_its_bytes_depend_on_the_packages_alone(packages):
    file = packages / "longship_module_index.bin"
    before = file.read_bytes()
    index(packages, PYTHONHASHSEED="7")
    assert file.read_bytes() == before


def test_program_that_closes_all_files_can_import(packages):
    code = f"os.closerange(3, 64); fd = os.open('/dev/zero', 0); {SHOW.format('plain')}"
    assert python(packages, code).split()[-1] == WITH
