"""Workers of emitted scripts: steps, interruptions, and work in parallel."""

import os
import sys

import pytest
from support.terminal import Terminal

from lib import ROOT
from lib.script.command import call
from lib.script.render import render

WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lib.script.worker import Steps, in_parallel
Steps("2/3", "do it again")("Doing it")
"""
PARALLEL = """
def work(number):
    return number == 2 and open("fifo").read()
print(*(each.result() for each in in_parallel(work, range(5), 2, "done")))
"""


@pytest.fixture
def worker(tmp_path, clean_environment):
    """Give a function that starts a script with a worker on a terminal."""

    def start(text):
        lines = [
            call("on_interrupt", "again"),
            call("worker_run", sys.executable, "-c", WORKER + text, ROOT),
            "echo end",
        ]
        command = ["bash", "-c", render("x", lines)]
        return Terminal(command, env=clean_environment, cwd=tmp_path)

    return start


def test_work_in_parallel_is_counted(worker, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with worker(PARALLEL) as terminal:
        terminal.expect("4 of 5 done")
        (tmp_path / "fifo").write_text("text")
        assert terminal.end() == 0
    assert terminal.said.endswith("\r\x1b[KFalse False text False False\r\nend\r\n")


def test_interrupted_worker_names_its_step(worker, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with worker("time.sleep(300)") as terminal:
        terminal.expect("Doing it")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert "error: interrupted in step 2/3, Doing it\r\n" in terminal.said
    assert "hint: no work is lost; resume with: do it again\r\n" in terminal.said


def test_signal_amid_a_write_of_the_worker_is_reported_too(worker):
    """The stream of standard error refuses a second write while its first goes on."""
    amid = """
class Raw(io.FileIO):
    def write(self, data):
        signal.raise_signal(signal.SIGINT)
        return super().write(data)
sys.stderr = io.TextIOWrapper(io.BufferedWriter(Raw(2, "w", closefd=False)))
print("text", file=sys.stderr, flush=True)
"""
    with worker(f"import io, signal\n{amid}") as terminal:
        assert terminal.end() == 130
    assert "error: interrupted in step 2/3, Doing it\r\n" in terminal.said
    assert "Traceback" not in terminal.said
