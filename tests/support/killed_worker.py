"""Runs a Python program, and kills it before one of the things that it changes.

    python3 killed_worker.py NUMBER PROGRAM [ARGUMENT...]

Audit events are counted: files that it writes, moves or removes, and processes that it starts. At
the chosen one its process group ends, and so does the process $LONGSHIP_KILLED. Nothing is timed.
"""

import os
import runpy
import signal
import sys

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.utime", "os.chmod"}
READING = {"rev-parse", "ls-files", "diff-tree", "cat-file", "describe", "rev-list", "merge-base"}
READING |= {"diff", "diff-index", "diff-files", "log", "symbolic-ref", "var"}

left = int(sys.argv[1])
sys.argv = sys.argv[2:]


def changes(event, arguments):
    """Tell whether something is changed."""
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    if event == "subprocess.Popen":
        return not READING & set(map(str, arguments[1]))
    return event in CHANGES


def count(event, arguments):
    """Kill everything before the chosen change."""
    global left
    if changes(event, arguments):
        left -= 1
        if left == 0:
            os.kill(int(os.environ["LONGSHIP_KILLED"]), signal.SIGKILL)
            os.kill(0, signal.SIGKILL)


sys.addaudithook(count)
runpy.run_path(sys.argv[0], run_name="__main__")
