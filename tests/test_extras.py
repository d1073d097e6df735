"""The core uses nothing of extras/, and no extra uses another one: each can be deleted."""

import ast
import re
from pathlib import Path

import pytest

from lib.script.render import definitions_of, shell_files

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sorted(
    path for path in [*ROOT.glob("lib/**/*.py"), *ROOT.glob("extras/**/*.py")] if path.is_file()
)


def owner(path):
    """Name the extra that a file belongs to; "" for the core."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "extras" else ""


def imported(path):
    """Give the extras that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [each.name for each in getattr(node, "names", ()) if isinstance(each, ast.alias)]
        for name in [f"{getattr(node, 'module', None) or ''}.{each}" for each in names]:
            parts = name.strip(".").split(".")
            if parts[0] == "extras":
                yield parts[1] if len(parts) > 1 else "*"


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_imports_of_no_other_extra(path):
    assert set(imported(path)) <= {owner(path)} - {""}


@pytest.mark.parametrize("path", shell_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_bash_calls_functions_of_no_other_extra(path):
    foreign = {
        name: owner(each)
        for each in shell_files()
        if owner(each) not in ("", owner(path))
        for name in definitions_of(each)
    }
    code = re.sub(r"^ *#.*", "", path.read_text(encoding="utf-8"), flags=re.M)
    assert {foreign[word] for word in re.findall(r"\w+", code) if word in foreign} == set()
