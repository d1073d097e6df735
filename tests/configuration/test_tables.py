"""TOML files are read strictly, and a mistake is told with its place."""

import os

import pytest

from lib.configuration.tables import Key, check_table, check_value, read_toml
from lib.script.errors import LongshipError

KEYS = {
    "arch": Key("string", "the architecture", ("amd64", "arm64")),
    "gpu": Key("string"),
    "binds": Key("list"),
    "set": Key("string_table"),
    "more": Key("table"),
}


def check(text, tmp_path, prefix=""):
    path = tmp_path / "it.toml"
    path.write_text(text, encoding="utf-8")
    tables = read_toml(path, "it.toml")
    for name in filter(None, prefix.split(".")):
        tables = tables[name]
    return check_table(tables, KEYS, "it.toml", prefix)


def test_file_is_read_with_its_text(tmp_path):
    (tmp_path / "it.toml").write_text('a = "Jülich"\n', encoding="utf-8")
    assert read_toml(tmp_path / "it.toml", "x/it.toml") == {"a": "Jülich"}


def test_file_is_read_again_whatever_became_of_its_tables(tmp_path):
    (tmp_path / "a.toml").write_text("a = 1\n")
    for _ in range(2):
        tables = read_toml(tmp_path / "a.toml", "a.toml")
        assert tables.pop("a") == 1
    (tmp_path / "a.toml").write_text("a = 2\n")
    assert read_toml(tmp_path / "a.toml", "a.toml") == {"a": 2}


def test_missing_file_is_told(tmp_path):
    with pytest.raises(LongshipError, match="cannot read it.toml: No such file"):
        read_toml(tmp_path / "it.toml", "it.toml")


def test_file_that_is_no_utf8_is_told(tmp_path):
    (tmp_path / "it.toml").write_bytes(b'machine = "J\xfclich"')
    with pytest.raises(LongshipError, match="it.toml is not UTF-8 text"):
        read_toml(tmp_path / "it.toml", "it.toml")


@pytest.mark.parametrize("text", ["machine = jwb", '[a]\n[a]\nx = "1"', "x"])
def test_text_that_is_no_toml_is_told_with_its_line(text, tmp_path):
    with pytest.raises(
        LongshipError, match=r"invalid TOML in .*it.toml: .*(line \d|end of document)"
    ):
        check(text, tmp_path)


def test_table_that_stands_twice_has_a_hint_of_its_own(tmp_path):
    with pytest.raises(LongshipError) as error:
        check('[project]\nname = "a"\n[project]\naccount = "b"', tmp_path)
    assert "each table and key once" in error.value.hint


def test_every_kind_of_value_is_taken_and_lists_cannot_change(tmp_path):
    text = 'arch = "amd64"\nbinds = ["/a"]\nset = { A = "1" }\n[more]\nx = 1\n'
    assert check(text, tmp_path) == {
        "arch": "amd64",
        "binds": ("/a",),
        "set": {"A": "1"},
        "more": {"x": 1},
    }


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('\nach = "amd64"', 'it.toml: unknown key "ach"', 'did you mean "arch"?'),
        ('zzz = "x"', 'unknown key "zzz"', "valid values: arch, gpu, binds, set, more"),
        ('arch = "x86_64"', 'unknown value of arch: "x86_64"', "amd64, arm64"),
        ("arch = 3", "arch: expected", 'write arch = "...": the architecture'),
        ('binds = "/a"', "binds: expected a list of strings", 'write binds = ["..."'),
        ("binds = [1]", "binds: expected a list of strings", 'write binds = ["..."'),
        ("set = { A = 1 }", "set: expected a table of strings", "write set = {"),
        ("more = 3", "more: expected a table", "write [more]"),
    ],
)
def test_mistake_is_told(text, message, hint, tmp_path):
    with pytest.raises(LongshipError) as error:
        check(text, tmp_path)
    assert message in str(error.value)
    assert hint in error.value.hint


def test_table_in_a_table_is_named_whole(tmp_path):
    text = '[machines.x]\narch = "amd64"\ngpuu = "cuda"\n'
    with pytest.raises(LongshipError) as error:
        check(text, tmp_path, "machines.x")
    assert str(error.value) == 'it.toml: unknown key "machines.x.gpuu"'
    assert error.value.hint.startswith('did you mean "gpu"? valid values: arch')


def test_byte_order_mark_is_no_mistake(tmp_path):
    (tmp_path / "it.toml").write_bytes(b'\xef\xbb\xbfgpu = "cuda"\r\n')
    assert read_toml(tmp_path / "it.toml", "it.toml") == {"gpu": "cuda"}


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_not_waited_for(kind, tmp_path):
    if kind == "fifo":
        os.mkfifo(tmp_path / "it.toml")
    else:
        (tmp_path / "it.toml").symlink_to("/dev/zero")
    with pytest.raises(LongshipError, match="cannot read it.toml: it is not a regular file"):
        read_toml(tmp_path / "it.toml", "it.toml")


@pytest.mark.parametrize(
    "text",
    [
        f"gpu = {'9' * 5000}",
        f"gpu = 0x{'f' * 5000}",
        f"gpu = {'[' * 5000}{']' * 5000}",
        f"gpu = [{'1, ' * 5000}]",
        f"# {'x' * (1 << 22)}",
    ],
    ids=["number", "hexadecimal", "nested", "list", "comment"],
)
def test_what_is_too_large_is_told_in_two_short_lines(text, tmp_path):
    with pytest.raises(LongshipError) as error:
        check(text, tmp_path)
    assert len(str(error.value)) < 400 and "it.toml" in str(error.value)
    assert "\n" not in str(error.value) + error.value.hint and error.value.hint


def test_number_is_one_that_bash_counts_with(tmp_path):
    key = Key("integer")
    assert check_value("a", (1 << 63) - 1, key, "it") == (1 << 63) - 1
    with pytest.raises(LongshipError, match="a: expected an integer, got 9223372036854775808"):
        check_value("a", 1 << 63, key, "it")
