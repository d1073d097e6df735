"""Packages are byte-compiled: for the time that their sources have or will have, or for any."""

import os
import subprocess
import sys

import pytest

PACKAGES = "lib/python3/site-packages"
SOURCES = {
    "one/__init__.py": "VERSION = 1\n",
    "one/deep/er.py": "def name(value='text'):\n    return {value, 'a', 'b'}\n",
    "one/tests/test_it.py": "",
    "two.py": "print('two')\n",
    "three/template.py": "{% not Python %}\n",
}
COMPILED = ["one/__init__", "one/deep/er", "two"]


@pytest.fixture
def tree(tmp_path):
    """Give a directory with packages."""
    folder = tmp_path / "it's a tree"
    for name, text in SOURCES.items():
        path = folder / PACKAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def compile_all(root, tree):
    """Give ``compile_all()``: return the modules, and the content of all compiled files."""

    def compile_all(processes=0, time=""):
        inside = root / "lib/packages/inside"
        arguments = ("compile_packages.compile_all", tree / "lib", str(processes), time)
        command = [sys.executable, inside, *arguments]
        env = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        names = [os.path.relpath(each, tree / PACKAGES) for each in done.stdout.splitlines()]
        return sorted(names), {path: path.read_bytes() for path in sorted(tree.rglob("*.pyc"))}

    return compile_all


def test_everything_but_tests_and_templates_is_compiled(compile_all):
    found = compile_all(1), compile_all(3)
    assert found[0] == found[1]
    names, files = found[0]
    assert names == sorted([f"{each}.py" for each in COMPILED] + ["three/template.py"])
    tag = sys.implementation.cache_tag
    assert sorted(f"{each.parent.parent.name}/{each.name}" for each in files) == [
        f"deep/er.{tag}.pyc",
        f"one/__init__.{tag}.pyc",
        f"site-packages/two.{tag}.pyc",
    ]


@pytest.mark.parametrize("time", ["", "315532800", "any"])
def test_sources_keep_their_times_and_python_takes_the_bytecode(time, compile_all, tree):
    source = tree / PACKAGES / "two.py"
    os.utime(source, (1e9, 1e9))
    compile_all(time=time)
    assert source.stat().st_mtime == 1e9
    if time:  # of a mount, or of the moment in which it is unpacked
        os.utime(source, (315532800 if time != "any" else 2e9,) * 2)
    verbose = [sys.executable, "-v", "-c", "import two"]
    done = subprocess.run(verbose, cwd=source.parent, stderr=subprocess.PIPE, text=True, check=True)
    assert "two" in done.stderr and "# wrote" not in done.stderr
    matches = [each for each in done.stderr.splitlines() if "matches" in each and "two" in each]
    assert len(matches) == 1


def test_file_of_a_wheel_is_replaced_and_not_written_to(compile_all, tmp_path):
    """It can be a link to the installer's cache."""
    _, files = compile_all(time="315532800")
    for number, path in enumerate(files):
        path.write_text("a wheel's")
        os.link(path, tmp_path / f"cached{number}")
    assert compile_all(time="315532800")[1] == files
    assert {path.read_text() for path in tmp_path.glob("cached*")} == {"a wheel's"}


def test_file_that_cannot_be_written_is_told_in_one_line(compile_all, tree, capfd):
    (tree / PACKAGES / "one/__pycache__").write_text("")
    with pytest.raises(subprocess.CalledProcessError):
        compile_all()
    (line,) = capfd.readouterr().err.splitlines()
    assert "one/__pycache__" in line
