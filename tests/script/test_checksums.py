"""Checksums of many files."""

import hashlib

import pytest

from lib.script.command import call
from lib.script.render import render


@pytest.fixture
def check(run, tmp_path):
    """Give a function that checks files, written and then changed, and returns those reported."""

    def reported(files, change=lambda folder: None):
        folder = tmp_path / "it's here"
        lines = []
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            lines.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n")
        change(folder)
        script = render("a test", [call("checksums_check", folder)])
        return sorted(run(["bash", "-c", script], input="".join(lines)).stdout.splitlines())

    return reported


FILES = {"a b.txt": "1", "it's/$HOME.txt": "2", "-n": "3", **{f"{n}": str(n) for n in range(50)}}


def test_unchanged_files_are_not_reported(check):
    assert check(FILES) == [] and check({"a": ""}) == []


def test_missing_and_damaged_files_are_reported(check):
    def damage(folder):
        (folder / "a b.txt").write_text("one")
        (folder / "it's/$HOME.txt").unlink()

    assert check(FILES, damage) == ["a b.txt", "it's/$HOME.txt"]


def test_directory_that_does_not_exist_is_an_error(run, tmp_path):
    script = render("a test", [call("checksums_check", tmp_path / "none")])
    assert run(["bash", "-c", script], input="", check=False).returncode == 1
