"""The linter and the formatter are content with every Python file."""

import pytest
from support import processes
from support.tree import own_files


@pytest.fixture(scope="module")
def python_files(root):
    names = [path.relative_to(root) for path in own_files(root) if path.suffix == ".py"]
    assert names
    return names


@pytest.mark.parametrize("check", [["check"], ["format", "--diff"]], ids=" ".join)
def test_ruff_is_content(check, python_files, root, run):
    run([processes.program("ruff"), *check, "--no-cache", *python_files], cwd=root)
