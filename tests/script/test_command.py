"""Builders of lines: a real shell reads back what went in."""

import pytest
from support import processes

from lib.script.command import array, assign, call, comment, export, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion


def shell_prints(script, *arguments, shell="bash"):
    """Give what a script prints, split at NUL."""
    command = [shell, "-c", script, shell, *arguments]
    done = processes.run(command, env={"PATH": processes.PATH, "LC_ALL": "C.UTF-8"}, cwd="/")
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("build", [call, wrapped])
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_words_of_a_call_arrive_as_they_are(build, shell, hostile_arguments):
    line = build("printf", "%s\\0", *hostile_arguments)
    assert shell_prints(line, shell=shell) == hostile_arguments


@pytest.mark.parametrize("build", [call, wrapped])
def test_expansion_in_a_call_is_expanded(build, hostile_arguments):
    line = build("printf", "%s\\0", Expansion('"$@"'))
    assert shell_prints(line, *hostile_arguments) == hostile_arguments


def test_wrapped_lines_fit_a_screen():
    lines = wrapped("unset", *(f"SOME_VARIABLE_{number}" for number in range(40))).splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("build", [assign, export])
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_assigned_value_is_the_one_given(build, shell, hostile_arguments):
    script = "\n".join(
        line
        for value in hostile_arguments
        for line in (build("value", value), "printf '%s\\0' \"$value\"")
    )
    assert shell_prints(script, shell=shell) == hostile_arguments


def test_exported_value_reaches_a_program():
    assert shell_prints(export("VALUE", "a b") + '\nsh -c \'printf "%s\\0" "$VALUE"\'') == ["a b"]


def test_array_holds_the_words_given(hostile_arguments):
    script = array("words", hostile_arguments) + "\nprintf '%s\\0' \"${words[@]}\""
    assert shell_prints(script) == hostile_arguments


def test_array_of_a_string_is_refused():
    with pytest.raises(TypeError, match="not the string"):
        array("words", "one string")


@pytest.mark.parametrize("build", [assign, export, lambda name, value: array(name, [value])])
def test_bad_name_of_a_variable_is_refused(build):
    with pytest.raises(LongshipError):
        build("x;touch y", "value")


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_comment_is_skipped_whatever_it_holds(shell, hostile_arguments):
    text = "\n".join([*hostile_arguments, "printf 'not a comment\\0'", "\r", "\v", "\f", "\x85"])
    assert "\n" not in comment(text)
    assert shell_prints(f"{comment(text)}\nprintf 'end\\0'", shell=shell) == ["end"]
