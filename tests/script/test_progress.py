"""How far a long step is: shown on a terminal, in a line that goes away, and nowhere else."""

import hashlib
import os

import pytest
from support.terminal import Terminal

from lib.script.command import call
from lib.script.render import render

BIG = 1 << 20


@pytest.fixture
def fifo(tmp_path):
    """Make a program's input that the test ends: nothing here depends on the machine's speed."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def bash(*lines):
    return ["bash", "-c", render("x", ["set -e", *lines])]


def test_time_and_size_are_shown_until_it_ends(tmp_path, fifo, clean_environment):
    file, copy = tmp_path / "it's big", tmp_path / "to"
    file.write_bytes(b"x" * BIG)
    slow = f"slow() {{ head -c {BIG // 4} >\"$1\"; cat '{fifo}'; return 3; }}"
    line = f"{call('progress_run', copy, 'slow', copy)} <{call(file)}"
    with Terminal(
        bash(slow, f"{line} || echo code $?"), env=clean_environment, cwd=tmp_path
    ) as terminal:
        terminal.expect(" s, 262 kB")
        fifo.write_text("")
        assert terminal.end() == 0
    assert terminal.said.endswith("\r\x1b[Kcode 3\r\n")


def test_interrupt_ends_it(tmp_path, fifo, clean_environment):
    file = tmp_path / "file"
    file.write_bytes(b"x" * BIG)
    lines = [
        "on_interrupt again",
        f"sum=$(progress_run {file} cat {fifo} - <{file})",
        "echo on",
    ]
    with Terminal(bash(*lines), env=clean_environment, cwd=tmp_path) as terminal:
        terminal.expect(" s, 1.0 MB")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert "hint: no work is lost; resume with: again" in terminal.said


def test_checksum_and_copy_are_right_and_silent_in_a_file(tmp_path, run, clean_environment):
    file, copy = tmp_path / "it's a file", tmp_path / "copy"
    file.write_bytes(os.urandom(BIG))
    wanted = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    command = bash(call("file_checksum", file), call("image_copy", file, copy))
    done = run(command)
    assert (done.stdout, done.stderr) == (wanted, "")
    copy.unlink()
    with Terminal(command, env=clean_environment, cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    assert wanted in terminal.said
    assert copy.read_bytes() == file.read_bytes()


def test_missing_file_is_told(tmp_path, clean_environment):
    with Terminal(bash("file_checksum /no/such"), env=clean_environment, cwd=tmp_path) as terminal:
        assert terminal.end() == 1
    assert "error: cannot read /no/such\r\nhint: see the error above\r\n" in terminal.said
