"""What scripts print for programs: JSON, whatever the names."""

import json
import os

from lib.script.render import render


def test_any_text_is_read_back(run, hostile_arguments):
    script = render("x", ['json_list "one two" "$@"'])
    words = [*hostile_arguments, *([""] * (len(hostile_arguments) % 2))]
    done = run(["bash", "-c", script, "x", *words])
    read = [value for each in json.loads(done.stdout) for value in (each["one"], each["two"])]
    assert read == [os.fsencode(each).decode(errors="replace") for each in words]


def test_nothing_is_an_empty_list(run):
    assert json.loads(run(["bash", "-c", render("x", ["json_list 'a b'"])]).stdout) == []
