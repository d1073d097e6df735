"""Checksums of many files."""

import hashlib
import os

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

        (folder / "-n").unlink()
        os.mkfifo(folder / "-n")

    assert check(FILES, damage) == ["-n", "a b.txt", "it's/$HOME.txt"]


def test_directory_that_does_not_exist_is_an_error(run, tmp_path):
    script = render("a test", [call("checksums_check", tmp_path / "none")])
    assert run(["bash", "-c", script], input="", check=False).returncode == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", ""),
        ("# 3 files in all\n", "", "is truncated"),
        (f"{hashlib.sha256(b'1').hexdigest()}  two\n", "", "is truncated"),
        ("2", "3", "is truncated or damaged: its checksum does not match"),
        ("  two", "  gone", "gone is missing"),
        ("  two", "  ../two", "lists files outside of its directory"),
        ("  two", "  /two", "lists files outside of its directory"),
    ],
)
def test_list_must_be_complete_and_match(old, new, message, run, tmp_path):
    lines = []
    for number, name in enumerate(("one", "two", "a b")):
        (tmp_path / name).write_text(str(number))
        lines.append(f"{hashlib.sha256(str(number).encode()).hexdigest()}  {name}\n")
    text = "".join([*lines, "# 3 files in all\n"])
    (tmp_path / "list").write_text(text.replace(old, new, 1))
    verify = call("checksums_verify", tmp_path / "list", tmp_path, "copy it again")
    done = run(["bash", "-c", render("a test", [verify])], check=False)
    assert (done.returncode, message in done.stderr) == (1 if message else 0, True), done.stderr


def test_long_list_that_leads_outside_is_refused(run, tmp_path):
    """Its first file leads outside: what reads a list must not stop there, and call it good."""
    names = ["../../home/me/.bashrc", *(f"file-{number}" for number in range(20000))]
    lines = [f"{'0' * 64}  {name}\n" for name in names]
    (tmp_path / "list").write_text(f"{''.join(lines)}# {len(names)} files in all\n")
    verify = call("checksums_verify", tmp_path / "list", tmp_path, "copy it again")
    done = run(["bash", "-c", render("a test", [verify])], check=False)
    assert done.returncode == 1 and "lists files outside of its directory" in done.stderr
