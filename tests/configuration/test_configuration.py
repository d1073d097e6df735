"""What a file may say is checked strictly: where, what was found, what is allowed."""

import re

import pytest

from lib.configuration.schema import KEYS, Configuration, Layer, check_layer, combine
from lib.configuration.tables import read_toml
from lib.script.errors import LongshipError


def check(text, tmp_path):
    """Read a file's text as `load_settings` does."""
    path = tmp_path / "configuration.toml"
    path.write_text(text, encoding="utf-8")
    return check_layer(read_toml(path, "configuration.toml"), "configuration.toml")


def test_paths_are_set_by_removing_the_marks_that_the_tutorial_names(root, tmp_path):
    text = (root / "configuration.toml").read_text(encoding="utf-8")
    before, mark, after = text.partition("# [paths]")
    assert before.splitlines()[-4:][0] == "[project]"
    first, second, third, rest = (mark + after).split("\n", 3)
    lines = [each.replace("# ", "", 1) for each in (first, second, third)]
    layer = check("\n".join([before, *lines, rest]), tmp_path)
    assert {name for name in layer.values if name.startswith("paths.")} == {
        "paths.project_dir",
        "paths.scratch_dir",
    }


def test_nothing_said_gives_the_defaults():
    configuration, origins = combine([])
    assert configuration == Configuration()
    assert set(origins) == set(KEYS) and set(origins.values()) == {"default"}


def test_checked_in_configuration_changes_no_default(root):
    layer = check_layer(
        read_toml(root / "configuration.toml", "configuration.toml"), "configuration.toml"
    )
    assert combine([layer])[0] == Configuration()


def test_checked_in_configuration_shows_every_key(root):
    lines = (root / "configuration.toml").read_text(encoding="utf-8").splitlines()
    shown = {re.split("[=#]", line.lstrip("# "))[0].strip(" []") for line in lines}
    hidden = {"token_files"}  # a site's business
    assert {dotted.rpartition(".")[2] for dotted in KEYS} - shown == hidden


def test_every_kind_of_value_is_taken(tmp_path):
    layer = check(
        'machine = "jwb"\n'
        '[container]\nbinds = ["/data", "/data2:/inside:ro"]\n'
        '[environment]\nset = { A = "1", B = "x, \\"y\\"" }\n',
        tmp_path,
    )
    assert layer.values == {
        "machine": "jwb",
        "container.binds": ("/data", "/data2:/inside:ro"),
        "environment.set": {"A": "1", "B": 'x, "y"'},
    }
    assert layer.origin == "configuration.toml"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('machne = "jwb"', 'configuration.toml: unknown key "machne"', '"machine"'),
        ('\n[contaner]\nimage = "x"', 'unknown table "contaner"', '"container"'),
        ('account = "me"', 'unknown key "account"', "write project.account = ..."),
        ("[paths]\nx = 1\n[project]\n", 'unknown key "paths.x"', "valid values: "),
        ("machine = \u201cjwb\u201d", "invalid TOML in configuration.toml", "straight quotes"),
        ('[container]\n\nimge = "x"', 'unknown key "container.imge"', '"image"'),
        ('container.imge = "x"', 'unknown key "container.imge"', '"image"'),
        ('container = { imge = "x" }', ': unknown key "container.imge"', '"image"'),
        ('[container]\n"imge" = "x"', 'unknown key "container.imge"', '"image"'),
        (
            "[paths.scratch_dir]\nx = 1",
            "paths.scratch_dir: expected a string",
            'write scratch_dir = "',
        ),
        (
            "[container]\nruntime = 3",
            "container.runtime: expected a string",
            'write runtime = "',
        ),
        ("machine = true", "machine: expected a string", 'write machine = "'),
        (
            '[container]\nbinds = "/data"',
            "container.binds: expected a list of strings",
            "write binds = [",
        ),
        (
            "[container]\nbinds = [1]",
            "container.binds: expected a list of strings",
            "write binds = [",
        ),
        (
            '[environment]\nset = ["A=1"]',
            "environment.set: expected a table of strings",
            "write set = {",
        ),
        (
            "[environment]\nset = { A = 8 }",
            "environment.set: expected a table of strings",
            "write set = {",
        ),
        (
            "[environment.set]\nA = 8",
            "environment.set: expected a table of strings",
            "write set = {",
        ),
        (
            '[container]\nruntime = "aptainer"',
            'unknown value of container.runtime: "aptainer"',
            "did you",
        ),
        (
            '[packages]\ninstaller = "conda"',
            "unknown value of packages.installer",
            "valid values: uv, pip",
        ),
    ],
)
def test_mistake_is_told_with_its_place_and_what_is_allowed(text, message, hint, tmp_path):
    with pytest.raises(LongshipError) as error:
        check(text, tmp_path)
    assert message in str(error.value)
    assert hint in error.value.hint


@pytest.mark.parametrize("table", ["project", "container", "environment"])
def test_value_where_a_table_belongs_is_not_called_unknown(table, tmp_path):
    with pytest.raises(LongshipError) as error:
        check(f'{table} = "x"', tmp_path)
    assert "table" in f"{error.value} {error.value.hint}"
    assert f'did you mean "{table}"' not in error.value.hint


def test_later_layers_win_and_their_origin_is_kept():
    layers = [
        Layer("site", {"paths.scratch_dir": "/site", "container.image": "a"}),
        Layer("file", {"paths.scratch_dir": "/file"}),
    ]
    configuration, origins = combine(layers)
    assert configuration.paths.scratch_dir == "/file"
    assert configuration.container.image == "a"
    assert origins["paths.scratch_dir"] == "file"
    assert origins["container.image"] == "site"
    assert origins["machine"] == "default"


_HUB = "hf_" + "aB3" * 12  # no token, but looks like one
_HEX = "c0ffee" * 6 + "1234"  # as Weights & Biases'


@pytest.mark.parametrize("token", [_HUB, _HEX])
@pytest.mark.parametrize(
    "line",
    [
        'secrets = ["HF_TOKEN", "{}"]',
        'secrets = ["HF_TOKEN={}"]',
        'unset = ["{}"]',
        'set = {{ {} = "1" }}',
        'token_files = {{ {} = "/x" }}',
        'token_files = {{ HF_TOKEN = "{}" }}',
    ],
)
def test_token_where_a_name_belongs_is_refused_and_not_shown(line, token, tmp_path):
    key = line.partition(" ")[0]
    with pytest.raises(LongshipError, match=f"environment.{key} contains a token") as error:
        check(f"[environment]\n{line.format(token)}\n", tmp_path)
    assert token not in str(error.value) + error.value.hint and "revoke it" in error.value.hint


def test_secret_that_is_no_name_is_refused(tmp_path):
    with pytest.raises(LongshipError, match="is not a valid name"):
        check('[environment]\nsecrets = ["MY-TOKEN"]\n', tmp_path)
    with pytest.raises(LongshipError, match="expected a list of strings") as error:
        check(f'[environment]\nsecrets = "{_HUB}"\n', tmp_path)
    assert _HUB not in str(error.value)


def test_variables_are_merged_name_by_name_and_lists_are_replaced():
    layers = [
        Layer("site", {"environment.set": {"A": "1", "B": "1"}, "container.binds": ("/a",)}),
        Layer("file", {"environment.set": {"B": "2", "C": "2"}, "container.binds": ("/b",)}),
    ]
    configuration, _ = combine(layers)
    assert configuration.environment.set == {"A": "1", "B": "2", "C": "2"}
    assert configuration.container.binds == ("/b",)


def test_layers_are_not_changed_by_putting_them_together():
    layers = [Layer("a", {"environment.set": {"A": "1"}}), Layer("b", {"environment.set": {}})]
    first = combine(layers)
    assert combine(layers) == first
    assert layers[0].values == {"environment.set": {"A": "1"}}


def test_configuration_cannot_be_changed():
    configuration, _ = combine([])
    with pytest.raises(AttributeError):
        configuration.machine = "jwb"
