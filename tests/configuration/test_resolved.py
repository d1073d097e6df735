"""The configuration as one file, read again, is the same configuration."""

import json

import pytest
from support.repository import shared_configuration, toml

from lib.configuration.layers import load_settings
from lib.configuration.schema import KEYS, TABLES
from lib.configuration.sites import load_machines
from lib.configuration.snapshot import resolved
from lib.script.errors import LongshipError

# JSON is UTF-8 here: bytes that are none, which come as surrogate escapes, are in no configuration.
HOSTILE = (
    "",
    '"',
    "'''",
    '"""',
    "\\",
    "\\u0041",
    "a\nb\r\n\t",
    "\x00\x01\x1f\x7f\x80",
    "Grüße, 世界 🚢\u2028",
    "# no comment",
    "[table]",
    "a.b = 1",
)


def read_again(settings, folder, **environ):
    """Read what `resolved` writes as a job does: with --configuration, on its own."""
    (folder / "again.json").write_text(resolved(settings), encoding="utf-8")
    options = {"configuration": str(folder / "again.json")}
    return load_settings(settings.root, options, {"HOME": "/h", "PATH": "", **environ})


def same(one, other):
    """Compare, but for machine and stack, which are said where they were found."""
    named = {"machine": other.machine.name, "stack": other.stack.name}
    return one.configuration._replace(**named) == other.configuration


def test_every_machine_of_the_repository_is_read_again(root, tmp_path):
    machines = load_machines(root)
    assert len(machines) >= 7
    configuration = shared_configuration(tmp_path)
    for name in machines:
        options = {"machine": name, "configuration": configuration}
        settings = load_settings(root, options, {"HOME": "/h", "PATH": ""})
        again = read_again(settings, tmp_path)
        assert (again.machine, again.stack) == (settings.machine, settings.stack)
        assert same(settings, again), name


def test_every_key_stands_in_it(root, tmp_path):
    options = {"machine": "lumi", "configuration": shared_configuration(tmp_path)}
    text = resolved(load_settings(root, options, {"HOME": "/h", "PATH": ""}))
    tables = json.loads(text)
    found = {key for key in tables if key not in TABLES}
    found.update(f"{name}.{key}" for name in TABLES for key in tables[name])
    assert found == set(KEYS)


@pytest.fixture
def full(repository):
    """Give a repository whose every layer says something, with hostile texts."""
    texts = [toml(text).replace("\x7f", "\\u007f") for text in HOSTILE]
    named = ", ".join(f"{toml(number)} = {text}, {text} = ''" for number, text in enumerate(texts))
    listed = f"binds = [{', '.join(texts)}]\npatched_files = {{ {named} }}\n"
    repository.write("configuration.toml", f"[container]\n{listed}")
    repository.write(
        "configuration.local.toml",
        'assets = [{ repo = "a/b", include = ["*.json"] }, { repo = "c/d", kind = "dataset" }]\n'
        '[[repositories]]\nurl = "https://example.org/one.git"\nextras = ["x", "y"]\n'
        '[[repositories]]\nurl = "two"\nname = "b"\n[jobs]\nask_above = 7\n'
        "[machines.other]\npackages.processors = 3\n",
    )
    repository.write(
        "other/site.toml", "[machines.other.configuration]\npaths.scratch_dir = '/o'\n"
    )
    repository.write("stacks/pytorch/stack.toml", "[configuration.environment.set]\nA = '$B'\n")
    return repository


def test_every_layer_is_in_it_and_none_is_added_twice(full, tmp_path):
    settings = full.settings(machine="other")
    again = read_again(settings, tmp_path)
    assert same(settings, again)
    assert again.configuration.container.binds == HOSTILE
    assert again.configuration.packages.processors == 3
    assert again.configuration.paths.scratch_dir == "/o"
    assert [each.get("extras") for each in again.configuration.repositories] == [("x", "y"), None]
    assert resolved(again) == resolved(settings)


def test_what_was_changed_since_does_not_reach_it(full, tmp_path):
    settings = full.settings(machine="other")
    before = resolved(settings)
    full.write("configuration.toml", "[jobs]\nask_above = 8\n[container]\nruntime = 'host'\n")
    full.write("configuration.local.toml", "")
    (tmp_path / "run").mkdir()
    again = read_again(settings, tmp_path / "run")
    assert resolved(again) == before


@pytest.mark.parametrize(
    "text", ["", "{", '{"jobs": [', "[]", '{"jobs": NaN}', '{"container": {"a": 1}}']
)
def test_damaged_file_is_told(text, root, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(LongshipError, match=r"a\.json") as error:
        load_settings(root, {"configuration": str(tmp_path / "a.json")}, {"HOME": "/h", "PATH": ""})
    assert error.value.hint
