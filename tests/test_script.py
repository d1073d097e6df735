"""An emitted script holds the functions that it uses, and needs no other file."""

import re

import pytest
from support import processes

from lib.command import call
from lib.script import definitions, render, shell_files


def test_every_function_of_the_shell_files_is_found():
    pattern = re.compile(r"^\s*(?:function\s+)?([A-Za-z_]\w*)\s*\(\)", re.MULTILINE)
    written = [name for path in shell_files() for name in pattern.findall(path.read_text())]
    assert written
    assert sorted(written) == sorted(set(written)), "two functions of one name"
    assert set(written) <= set(definitions())


def test_every_constant_of_the_shell_files_is_found():
    pattern = re.compile(r"^(?:readonly|declare -A) (\w+)=", re.MULTILINE)
    written = [name for path in shell_files() for name in pattern.findall(path.read_text())]
    assert written
    assert set(written) <= set(definitions())


def test_definition_is_whole_with_the_comment_above_it():
    text = definitions()["locked"]
    assert text.startswith("# locked PATH FUNCTION")
    assert text.endswith("\n}")
    assert "acquire_lock" in text and "\nacquire_lock() {" not in text


@pytest.mark.parametrize("name", sorted(definitions()))
def test_each_definition_is_bash_by_itself(name, run):
    run(["bash", "-n", "-c", definitions()[name]])


def test_script_holds_what_it_uses_and_nothing_else():
    script = render("x", [call("locked", "/x", "next_step", "y")])
    for name in ("locked", "acquire_lock", "lock_is_stale", "LOCK_PATIENCE", "fail", "next_step"):
        assert definitions()[name] in script
    for name in ("install_venv", "check_sif", "take_command"):
        assert definitions()[name] not in script


def test_script_without_functions_is_short():
    assert render("a title", ["true"]) == (
        "#!/usr/bin/env bash\n# a title\nset -euo pipefail\n\ntrue\n"
    )


def test_title_cannot_become_a_command(run):
    script = render("two\nlines\rand more; touch x", ["echo end"])
    assert run(["bash", "-c", script]).stdout == "end\n"


def test_script_runs_where_the_repository_is_not(run, tmp_path):
    script = render("x", [call("next_step", "it's $this"), call("fail", "a", "b")])
    done = run(["bash", "-c", script], env={"PATH": processes.PATH}, cwd="/", check=False)
    assert done.returncode == 1
    assert done.stderr == "next: it's $this\nerror: a\nhint: b\n"


def test_no_name_is_defined_twice():
    text = "".join(path.read_text() for path in shell_files())
    names = re.findall(r"^(?:(\w+)\(\) \{|(?:readonly|declare -[aA]) (\w+)=)", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(definitions())


def test_same_input_gives_the_same_script():
    lines = [call("locked", "/x", "install_venv")]
    assert render("x", lines) == render("x", lines)
