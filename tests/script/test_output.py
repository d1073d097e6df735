"""Reports: sizes, widths and JSON, whatever the names."""

import json
import os
import sys

import pytest
from support.terminal import Terminal

from lib import ROOT
from lib.script.output import as_json, number, size_text


def test_any_text_is_read_back(hostile_arguments):
    words = [os.fsdecode(os.fsencode(each)) for each in hostile_arguments]
    text = as_json([{"word": each} for each in words]).text.encode()
    read = [each["word"] for each in json.loads(text)]
    assert read == [os.fsencode(each).decode(errors="replace") for each in words]


def test_nothing_is_an_empty_list():
    assert json.loads(as_json([]).text) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0", 0), ("-1.50", -1.5)]
    + [(each, None) for each in ("", "true", "01", "1K", "nan", "1\n", "NONE", "1.", "\u0661")],
)
def test_number_is_a_number_or_nothing(text, value):
    assert number(text) == value and type(number(text)) is type(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_400_000_000, "9.4 GB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_999, "1.0 MB"),
        (10**16, "10000 TB"),
    ],
)
def test_size_has_two_digits_at_least(size, text, run):
    assert size_text(size) == text


@pytest.mark.parametrize(("columns", "width"), [("120", "120"), ("0", "70"), ("", "70")])
def test_width_is_that_of_the_terminal(columns, width, clean_environment):
    command = [sys.executable, "-c", "from lib.script.output import columns; print(columns())"]
    environment = {**clean_environment, "COLUMNS": columns}
    with Terminal(command, env=environment, cwd=ROOT, columns=70) as terminal:
        terminal.end()
    assert terminal.said == f"{width}\r\n"


def test_nothing_is_cut_in_a_file(run):
    code = "from lib.script.output import columns; print(columns())"
    assert int(run([sys.executable, "-c", code], cwd=ROOT).stdout) > 1000
