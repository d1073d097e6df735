"""For any list of arguments the program inside receives exactly those, in every runtime."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import processes
from support.lab import is_told

# A real program that shows its arguments; a shell's own printf would not be a program.
SHOW = ["sh", "-c", 'for word do printf "%s\\0" "$word"; done', "show"]

BYTES = st.binary(max_size=60).map(lambda some: some.replace(b"\0", b""))
SHELLISH = st.text("\"'`$(){}[]<>|&;\\*?!~#%=,: \t\n\r-Aé世🚢", max_size=30).map(str.encode)
LISTS = st.lists(BYTES | SHELLISH, max_size=12).map(lambda each: list(map(os.fsdecode, each)))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
TEXTS = st.lists(TEXT | SHELLISH.map(os.fsdecode), max_size=12)


def received(clone, arguments):
    return clone.container_run(*SHOW, *arguments).stdout.split("\0")[:-1]


@pytest.mark.root
@settings(max_examples=20)
@given(arguments=LISTS)
def test_any_arguments_arrive_on_the_host(prepared, arguments):
    assert received(prepared("host"), arguments) == arguments


@pytest.mark.slow  # on the host above, and through a launcher below
@settings(max_examples=100)
@given(arguments=TEXTS)
def test_any_text_arrives_under_apptainer(prepared, arguments):
    assert received(prepared("apptainer"), arguments) == arguments


@pytest.fixture(scope="module")
def launchers(prepared, tmp_path_factory):
    """Give the launcher of a runtime, written once."""
    written = {}

    def launcher(runtime):
        if runtime not in written:
            written[runtime] = tmp_path_factory.mktemp("launchers") / f"it's {runtime}"
            prepared(runtime).container_run("--launcher", written[runtime])
        return written[runtime]

    return launcher


@pytest.mark.parametrize("runtime", ["host", "apptainer"])
@settings(max_examples=25)
@given(arguments=TEXTS)
def test_any_text_arrives_through_a_launcher(prepared, launchers, runtime, arguments):
    command = [launchers(runtime), *SHOW, *arguments]
    done = processes.run(command, env=prepared(runtime).environment, cwd="/tmp")
    assert done.stdout.split("\0")[:-1] == arguments


def test_hostile_arguments_arrive(clone, hostile_arguments):
    assert received(clone, hostile_arguments) == hostile_arguments


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [""],
        ["", "", ""],
        ["--"],
        ["-", "--help", "--rm", "-it"],
        ["\n", "a\n\n", "\r\n"],
        ["".join(map(chr, range(1, 256)))],
        [chr(number) for number in range(1, 256)],
    ],
    ids=lambda arguments: f"{len(arguments)} {ascii(arguments)[:20]}",
)
def test_lists_that_are_easily_broken_arrive(clone, arguments):
    assert received(clone, arguments) == arguments


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "ü" * 50_000, "\\\n" * 50_000],
    ids=["ASCII", "UTF-8", "backslashes and newlines"],
)
def test_argument_as_long_as_the_kernel_takes_arrives(clone, text):
    assert received(clone, [text]) == [text]


def test_thousands_of_arguments_arrive(clone):
    arguments = [f"argument {number}" for number in range(5000)]
    assert received(clone, arguments) == arguments


def test_argument_that_is_not_utf8_is_refused(prepared):
    """Apptainer would give the program another argument."""
    done = prepared("apptainer").container_run(*SHOW, os.fsdecode(b"a \xff"), check=False)
    assert done.stdout == ""
    is_told(done, r"argument is not UTF-8, which containers cannot pass on: $'a \377'", "rename")
