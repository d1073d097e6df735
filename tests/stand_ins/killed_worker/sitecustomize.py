"""Kills a worker, and the script that it belongs to, before one of the things that it changes.

Python imports it when the directory is in PYTHONPATH. Audit events are counted: files that the
worker writes, moves or removes, and processes that it starts. Before event $LONGSHIP_KILLED_AT its
process group ends, and so does the process $LONGSHIP_KILLED. Nothing is timed.
"""

import os
import signal
import sys

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.utime", "os.chmod"}
READING = {"rev-parse", "ls-files", "diff-tree", "cat-file", "describe", "rev-list", "merge-base"}
READING |= {"diff", "diff-index", "diff-files", "log", "symbolic-ref", "var"}

left = int(os.environ["LONGSHIP_KILLED_AT"])


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
    if sys.argv[0].endswith("repositories/worker.py") and changes(event, arguments):
        left -= 1
        if left == 0:
            os.kill(int(os.environ["LONGSHIP_KILLED"]), signal.SIGKILL)
            os.kill(0, signal.SIGKILL)


sys.addaudithook(count)
