"""What scripts print for programs: JSON, whatever the names."""

import json
import os

import pytest

from lib.script.render import render


def test_any_text_is_read_back(run, hostile_arguments):
    script = render("x", ['json_list "one two" "$@"'])
    words = [*hostile_arguments, *([""] * (len(hostile_arguments) % 2))]
    done = run(["bash", "-c", script, "x", *words])
    read = [value for each in json.loads(done.stdout) for value in (each["one"], each["two"])]
    assert read == [os.fsencode(each).decode(errors="replace") for each in words]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0", 0), ("-1.50", -1.5), ("true", True), ("false", False), ("", None)]
    + [(each, None) for each in ("01", "1K", "nan", "1\n", "UNLIMITED", "1.")],
)
def test_number_is_a_number_or_null(text, value, run):
    done = run(["bash", "-c", render("x", ["json_list 'a b#' c \"$1\""]), "x", text])
    (read,) = json.loads(done.stdout)
    assert read == {"a": "c", "b": value} and type(read["b"]) is type(value)


def test_nothing_is_an_empty_list(run):
    assert json.loads(run(["bash", "-c", render("x", ["json_list 'a b'"])]).stdout) == []
