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
