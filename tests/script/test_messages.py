"""Messages: two lines, the same from Python and bash, in colour on a terminal that shows some."""

import sys

import pytest
from support.terminal import Terminal

from lib import ROOT
from lib.script.render import render

ANY_BYTES = "it's \udcff 100%\\n"
PYTHON = f"""
import sys
sys.path.insert(0, {ROOT!r})
from lib.script.errors import LongshipError, print_messages
print_messages(note="read", warning="worn", next="go")
LongshipError(sys.argv[1], "mend it").print()
"""
BASH = render("x", ["note read", "warn_of worn 'oil it'", "next_step go", 'fail "$1" "mend it"'])
COMMANDS = {
    "python": [sys.executable, "-c", PYTHON, ANY_BYTES],
    "bash": ["bash", "-c", BASH, "x", ANY_BYTES],
}


def kinds(text):
    return [line.partition(" ")[0] for line in text.splitlines()]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_file_gets_no_colour(command, run):
    done = run(command, check=False)
    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    assert kinds(done.stderr)[0] == "note:" and kinds(done.stderr)[-2:] == ["error:", "hint:"]
    assert f"error: {ANY_BYTES}\nhint: mend it\n" in done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("term", "no_colour", "coloured"),
    [("xterm", "", True), ("xterm", "0", False), ("dumb", "", False)],
)
def test_colour_is_for_terminals(command, term, no_colour, coloured, clean_environment, tmp_path):
    environment = {**clean_environment, "NO_COLOR": no_colour}
    with Terminal(command, env=environment, cwd=tmp_path, term=term) as terminal:
        terminal.end()
    codes = {"note:": 1, "warning:": 33, "next:": 36, "error:": 31, "hint:": 36}
    for kind, code in codes.items():
        shown = f"\x1b[{code}m{kind}\x1b[0m " if coloured else f"{kind} "
        assert f"\n{shown}" in f"\n{terminal.said}"
    assert ("\x1b" in terminal.said) == coloured


def test_step_is_bold(clean_environment, tmp_path):
    command = ["bash", "-c", render("x", ["step 1/2 'do it'"])]
    with Terminal(command, env=clean_environment, cwd=tmp_path, term="xterm") as terminal:
        terminal.end()
    assert terminal.said == "\x1b[1m[1/2] do it\x1b[0m\r\n"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_interruption_names_step_and_command(term, clean_environment, tmp_path):
    # A program that says that it begins: bash loses a Ctrl-C that comes while it starts a program.
    program = "sh -c 'echo it begins; exec sleep 600'"
    lines = ["on_interrupt 'the same command'", "step 1/2 'do it'", program]
    command = ["bash", "-c", render("x", lines)]
    with Terminal(command, env=clean_environment, cwd=tmp_path, term=term) as terminal:
        terminal.expect("it begins")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert " interrupted in step 1/2, do it\r\n" in terminal.said
    assert " no work is lost; resume with: the same command\r\n" in terminal.said
