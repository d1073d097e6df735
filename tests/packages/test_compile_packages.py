"""Packages are byte-compiled once: their bytecode is kept by the content of their sources."""

import os
import subprocess
import sys
import time

import pytest

PACKAGES = "lib/python3/site-packages"
SOURCES = {
    "one/__init__.py": "VERSION = 1\n",
    "one/deep/er.py": "def name(value='text'):\n    return {value, 'a', 'b'}\n",
    "one/tests/test_it.py": "",
    "two.py": "raise SystemExit\n",
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
        os.utime(path, (315532800, 315532800))
    return folder


@pytest.fixture
def kept(tmp_path):
    """Give a directory for bytecode."""
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


@pytest.fixture
def compile_all(root, tree, kept):
    """Give ``compile_all()``, which compiles everything as in a new tree.

    It returns which modules it has compiled, and the content of all compiled files.
    """

    def compile_all(directory=kept, processes=0, new=True):
        for path in compiled_files(tree) if new else ():
            path.unlink()
        inside = root / "lib/packages/inside"
        arguments = ("compile_packages.compile_all", tree / "lib", str(processes), directory)
        command = [sys.executable, inside, *arguments]
        env = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        names = [os.path.relpath(each, tree / PACKAGES) for each in done.stdout.splitlines()]
        return names, {path: path.read_bytes() for path in compiled_files(tree)}

    return compile_all


def compiled_files(tree):
    """Return all compiled files below a directory."""
    return sorted(tree.rglob("*.pyc"))


def test_everything_but_tests_and_templates_is_compiled(compile_all):
    found = compile_all("", 1), compile_all("", 3)
    assert found[0][1] == found[1][1]
    for names, files in found:
        assert sorted(names) == sorted([f"{each}.py" for each in COMPILED] + ["three/template.py"])
        tag = sys.implementation.cache_tag
        assert sorted(f"{each.parent.parent.name}/{each.name}" for each in files) == [
            f"deep/er.{tag}.pyc",
            f"one/__init__.{tag}.pyc",
            f"site-packages/two.{tag}.pyc",
        ]


def test_second_time_nothing_is_compiled_and_the_bytes_are_the_same(compile_all):
    names, files = compile_all()
    assert len(names) == len(SOURCES) - 1
    assert compile_all() == ([], files)
    assert compile_all("") == (names, files)


def test_changed_package_is_compiled_again(compile_all, tree):
    _, before = compile_all()
    (tree / PACKAGES / "one/deep/er.py").write_text("NEW = 1\n")
    names, files = compile_all()
    assert sorted(names) == ["one/__init__.py", "one/deep/er.py"]
    changed = [path.name.partition(".")[0] for path in files if files[path] != before[path]]
    assert changed == ["er"]


def test_other_time_of_a_source_is_another_bytecode(compile_all, tree):
    compile_all()
    os.utime(tree / PACKAGES / "two.py", (1, 1))
    assert compile_all()[0] == ["two.py"]


@pytest.mark.parametrize("damage", ["shorter", "other"])
def test_damaged_bytecode_is_not_used(damage, compile_all, kept):
    _, files = compile_all()
    (file,) = kept.glob("modules-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content if damage == "other" else content[:-1])
    assert compile_all() == (["two.py"], files)
    assert compile_all() == ([], files)


def test_file_of_a_wheel_is_replaced_and_not_written_to(compile_all, tmp_path):
    """It can be a link to the installer's cache."""
    _, files = compile_all()
    for number, path in enumerate(files):
        path.write_text("a wheel's")
        os.link(path, tmp_path / f"cached{number}")
    assert compile_all(new=False) == ([], files)
    assert {path.read_text() for path in tmp_path.glob("cached*")} == {"a wheel's"}


def test_bytecode_that_nobody_has_used_is_deleted(compile_all, kept, tree):
    compile_all()
    long_ago = time.time() - 61 * 24 * 3600
    for each in kept.iterdir():
        os.utime(each, (long_ago, long_ago))
    (tree / PACKAGES / "two.py").unlink()
    compile_all()
    assert sorted(each.name.partition("-")[0] for each in kept.iterdir()) == ["one", "three"]


def test_file_that_cannot_be_written_is_told_in_one_line(compile_all, tree, capfd):
    (tree / PACKAGES / "one/__pycache__").write_text("")
    with pytest.raises(subprocess.CalledProcessError):
        compile_all()
    (line,) = capfd.readouterr().err.splitlines()
    assert "one/__pycache__" in line
