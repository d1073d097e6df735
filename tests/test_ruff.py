"""The linter and the formatter are content with every Python file."""

import subprocess

import pytest
from support import processes


@pytest.fixture(scope="module")
def python_files(root):
    """Give the Python files of the repository, without what .gitignore names."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    listing = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    names = [name for name in listing.stdout.split("\0") if name and (root / name).is_file()]
    assert names
    return names


@pytest.mark.parametrize("check", [["check"], ["format", "--diff"]], ids=" ".join)
def test_ruff_is_content(check, python_files, root, run):
    run([processes.program("ruff"), *check, "--no-cache", *python_files], cwd=root)
