"""What cleans up at the end of a script: all of it, in order, and without another exit code."""

import pytest

from lib.script.render import render

SHOW = 'show() { echo "$at_exit_code: $*"; }'


@pytest.fixture
def end(run):
    """Give a function that runs lines as a script; it returns the output and the exit code."""

    def run_lines(*lines):
        done = run(["bash", "-c", render("a test", [SHOW, *lines])], check=False)
        return done.stdout.splitlines(), done.returncode

    return run_lines


def test_functions_are_called_the_last_one_first_with_their_arguments(end):
    calls = ["at_exit show one", "at_exit show 'two  words' '' '*'", "at_exit show", "exit 7"]
    assert end(*calls) == (["7: ", "7: two  words  *", "7: one"], 7)


def test_function_that_fails_keeps_neither_the_others_nor_the_exit_code(end):
    assert end("at_exit show one", "at_exit false", "true") == (["0: one"], 0)


def test_child_calls_its_own_alone(end):
    """Also one that is ended at once, or that takes a lock."""
    child = "(at_exit show child; lock_run a_lock :; exit 3) || :"
    assert end("at_exit show parent", child, "(exit 4) || :") == (["3: child", "0: parent"], 0)


def test_lock_of_the_parent_stays_when_a_child_ends(end):
    lines = ["lock_hold a_lock", "(lock_run another :)", "ls -d a_lock.lock another.lock || :"]
    assert end(*lines, "at_exit ls -d a_lock.lock") == (["a_lock.lock", "a_lock.lock"], 0)


def test_what_was_added_before_a_lock_is_called_after_it(end):
    assert end("at_exit show one", "lock_run a_lock show in", "exit 2") == (["0: in", "2: one"], 2)


# of a job script: its lines before start_job and after, what these print, and the exit codes: the
# script's, and the one with which its trap ends it
OWN_TRAPS = [
    ("trap 'echo before' EXIT", "exit 3", ["before"], 3, 3),
    ("", "trap 'echo \"mine $? $1\"' EXIT\nexit 3", ["mine 3 a word"], 3, 3),
    ("trap 'echo before' EXIT", "trap \"echo 'my own'\" 0\nexit 3", ["my own"], 3, 3),
    ("", "trap 'echo mine; exit 0' EXIT\nexit 3", ["mine"], 3, 0),
    ("", "f() { trap 'false; echo not' EXIT; exit 3; }\nset -e; f", [], 3, 1),
    ("trap 'echo before' EXIT", "trap - EXIT\nexit 3", [], 3, 3),
    ("", "trap '' EXIT\ntrap x NONE || exit 3", [], 3, 3),
    ("trap 'echo x' EXIT", 'old=$(trap -p EXIT)\ntrap y EXIT\neval "$old"', ["x"], 0, 0),
    ("", "trap 'echo mine' EXIT USR1 ERR\nkill -USR1 $$\nfalse\nexit 3", ["mine"] * 3, 3, 3),
    ("trap 'exit 4' TERM", "trap 'echo mine' EXIT\nkill $$", ["mine"], 4, 4),
    ("", "trap 'echo mine' EXIT\n(trap 'echo child' EXIT)\nexit 3", ["child", "mine"], 3, 3),
    ("trap 'echo before' EXIT", "(at_exit show child)\n(exit 5)", ["0: child", "before"], 5, 5),
]


@pytest.mark.parametrize(("before", "after", "told", "code", "last"), OWN_TRAPS)
def test_script_of_the_user_keeps_its_own_traps(before, after, told, code, last, run, tmp_path):
    functions = render("a test", [SHOW, "at_exit show end", "at_exit_chain"])
    (tmp_path / "functions").write_text(functions)
    (tmp_path / "job").write_text(f"{before}\nsource {tmp_path}/functions\nset +eu\n{after}\n")
    done = run(["bash", tmp_path / "job", "a word"], check=False)
    lines = [each for each in done.stdout.splitlines() if each != f"{code}: end"]
    assert (lines, done.returncode) == (told, last), done.stderr
    assert done.stdout.count(": end\n") == 1
