"""tests/promises.txt: each promise has one test, which .ci/run does not leave to the night."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.extras

TEXT = Path(__file__).with_name("promises.txt").read_text(encoding="utf-8")
PAGES = re.findall(r"^[^ #\n].*", TEXT, re.MULTILINE)
ROWS = re.findall(r"^  (.*): (\S+)\.py::(\S+)$", TEXT, re.MULTILINE)


def is_slow(marks):
    return "slow" in [each.name for each in marks]


def test_every_line_is_a_page_or_a_promise(root):
    lines = [each for each in TEXT.splitlines() if not each.startswith("#")]
    assert len(lines) == len(PAGES) + len(ROWS) <= 90
    for page in ", ".join(PAGES).split(", "):
        assert (root / page).is_file(), page


def test_no_promise_and_no_test_is_there_twice():
    promises, tests = [each[0] for each in ROWS], [each[1:] for each in ROWS]
    assert len(set(promises)) == len(promises) and len(set(tests)) == len(tests)


def function_of(root, file, name):
    """Give a test of tests/ or of an extra; those without a folder are real."""
    ending = f"{file if '/' in file else f'integration/{file}'}.py"
    (path,) = [*root.glob(f"tests/{ending}"), *root.glob(f"extras/*/tests/{ending}")]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_each_test_runs_in_each_round(root):
    for _, file, name in ROWS:
        marks = getattr(function_of(root, file, name), "pytestmark", [])
        assert not is_slow(marks), name
        for each in marks:
            if each.name == "parametrize":
                rows = [getattr(row, "marks", ()) for row in each.args[1]]
                assert not all(map(is_slow, rows)), name
