"""The tests of tests/directories.txt: .ci/run runs them when their directories changed.

It passes `--changed-since COMMIT`, with the commit in .ci/green: the last one on which all of them
passed. The nightly run, and whoever passes no such option, run them all. So does .ci/run where git
does not know the commit, as in a shallow clone, and after a change of what all tests build on.
"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def read_table():
    """Give the tests of `tests/directories.txt` with their paths, and the paths of all tests."""
    table = {}
    text = (ROOT / "tests/directories.txt").read_text(encoding="utf-8")
    rows = re.findall(r"((?:^[^ #\n].*\n)+)((?:^ .*\n)+)", text, re.MULTILINE)
    for tests, paths in rows:
        table.update({test: [test, *paths.split()] for test in tests.split()})
    return table, table.pop("*")[1:]


TABLE, EVERYTHING = read_table()


def pytest_addoption(parser):
    parser.addoption(
        "--changed-since",
        metavar="COMMIT",
        help="leave the tests of tests/directories.txt out whose directories are as then",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    out = unchanged(config.getoption("changed_since"))
    left = [item for item in items if str(item.path.relative_to(ROOT)) in out]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter, config):
    commit = config.getoption("changed_since")
    out = unchanged(commit)
    if out:
        terminalreporter.write_line(f"left out, as nothing that they cover changed since {commit}:")
        terminalreporter.write_line(f"  {' '.join(sorted(out))}")


def unchanged(commit):
    """Give the tests of the table whose directories are as they were in a commit."""
    if not commit:
        return set()
    command = ["git", "diff", "--name-only", "--no-renames", "-z", commit, "--"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        return set()
    return tests_left_out(done.stdout.split("\0")[:-1])


def tests_left_out(changed):
    """Give the tests of the table that a change of these files does not concern."""

    def concerned(paths):
        return any(
            name == path or name.startswith(f"{path}/") for name in changed for path in paths
        )

    if concerned(EVERYTHING):
        return set()
    return {test for test, paths in TABLE.items() if not concerned(paths)}
