"""The reference: it is what the code says, and holds what its writers do not take from the code."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.documentation import read
from support.repository import SITES, copy_tree
from support.stacks import SHIPPED
from writers.commands import WITHOUT, click_commands, verbs_of

from lib.script.render import shell_files

pytestmark = pytest.mark.extras

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs/reference"
COMMANDS = click_commands()
OPTION = re.compile(r"--[a-z][a-z-]*")


def section(page, heading):
    """Give the text below a heading, up to the next one of its kind."""
    text = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", read(page), re.DOTALL | re.M)
    assert text, heading
    return text[1]


def rows(text):
    """Give the names in the first column of the tables of a text."""
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


def written(run, root, folder):
    """Give what a repository's code says, by the name of the page."""
    run([sys.executable, root / "docs/write_reference.py", folder])
    return texts(folder)


def texts(folder):
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_reference_is_what_the_code_says(run, tmp_path):
    """After a change that is meant: python3 docs/write_reference.py; read the diff.

    A group's own sites and stacks can be in it, and need not be.
    """
    ours = copy_tree(ROOT, tmp_path / "ours")
    for path in (*ours.glob("*/site.toml"), *ours.glob("stacks/*/stack.toml")):
        if path.parent.name not in (*SITES, *SHIPPED):
            shutil.rmtree(path.parent)
    found = texts(REFERENCE)
    if found != written(run, ROOT, tmp_path / "all"):
        assert found == written(run, ours, tmp_path / "of ours")


def test_every_entry_script_is_in_the_reference():
    starting = {path.name for path in ROOT.glob("*.py") if "lib.start(main)" in path.read_text()}
    assert starting == COMMANDS.keys()


def options(heading):
    """Give the options in the tables below a heading."""
    found = map(OPTION.match, rows(section("docs/reference/commands.md", heading)))
    return {each[0] for each in found if each}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_help_are_those_of_the_reference(name):
    commands = [COMMANDS[name], *(verb for _, verb in verbs_of(name, COMMANDS[name]))]
    texts = [CliRunner().invoke(each, ["--help"]).output for each in commands]
    shown = "".join(each.partition("\nOptions:\n")[2] for each in texts)
    told = {each[0] for each in map(OPTION.match, re.findall(r"^  (\S+)", shown, re.M)) if each}
    alone = WITHOUT in section("docs/reference/commands.md", name)
    common = {"--version"} if alone else options("Options of every Python script")
    assert told - {"--help"} == options(name) | common


def test_verbs_of_verbs_are_in_the_reference():
    assert "\n### submit.py scale report\n" in read("docs/reference/commands.md")


def test_every_row_says_what_it_is():
    for page in REFERENCE.glob("*_toml.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not (line.startswith("| `") and line.endswith("|  |")), line


def named_in_code(pattern):
    """Give what a pattern finds in all bash files."""
    code = "".join(path.read_text() for path in shell_files())
    return set(re.findall(pattern, code))


def test_each_file_of_a_run_is_told():
    told = ", ".join(rows(section("docs/reference/files.md", "Runs"))).split(", ")
    names = named_in_code(r'\$(?:RUN_DIR|run)/([a-z.]+?)(?:\.partial)?[" ]')
    assert len(names) > 8
    assert names - {"packages", "job."} <= {each.rstrip("/") for each in told}


def test_each_reference_of_git_is_told():
    told = rows(section("docs/reference/files.md", "Repositories"))
    code = "".join(path.read_text() for path in ROOT.glob("lib/repositories/*.py"))
    found = set(re.findall(r"refs/longship/([a-z-]+)", code)) | {"patched"}  # made of its name
    assert found == {each.split("/")[2] for each in told}
