"""What is quoted is read back by a real shell as exactly the same bytes."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import processes

from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, name, word

SHELLS = (["bash", "-c"], ["bash", "--posix", "-c"], ["sh", "-c"])
LOCALES = ("C", "C.UTF-8")
ARGUMENTS = st.lists(st.binary().map(lambda some: os.fsdecode(some.replace(b"\0", b""))))


def read_back(shell, words, locale="C.UTF-8"):
    script = "printf '%s\\0' " + " ".join(words)
    done = processes.run([*shell, script], env={"PATH": processes.PATH, "LC_ALL": locale}, cwd="/")
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_hostile_words_are_read_back_as_they_are(shell, locale, hostile_arguments):
    words = [word(each) for each in hostile_arguments]
    assert read_back(shell, words, locale) == hostile_arguments


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@given(arguments=ARGUMENTS.filter(bool))
def test_any_words_are_read_back_as_they_are(shell, arguments):
    assert read_back(shell, [word(each) for each in arguments]) == arguments


def test_path_is_quoted_like_its_text():
    assert word(Path("/a b")) == word("/a b") == "'/a b'"


def test_expansion_stays_shell_source():
    assert word(Expansion('"$@"')) == '"$@"'


def test_nul_byte_is_refused():
    with pytest.raises(LongshipError, match="NUL byte"):
        word("a\0b")


@pytest.mark.parametrize("good", ["A", "_", "a1_B", "CONDA_PREFIX"])
def test_name_of_a_variable_is_passed_through(good):
    assert name(good) == good


@pytest.mark.parametrize(
    "bad", ["", "1A", "A-B", "A B", "A\n", "A;touch x", "A[$(touch x)]", "Ä", "A=B", "*", "A*"]
)
def test_what_cannot_name_a_variable_is_refused(bad):
    with pytest.raises(LongshipError, match="is not a valid name of an environment variable"):
        name(bad)
