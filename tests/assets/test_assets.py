"""Which assets the configuration names, and what is not taken for one."""

import pytest

from lib.assets.assets import (
    asset_download_lines,
    asset_install_lines,
    asset_offline_lines,
    configured_assets,
)
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


def configured(repository, text):
    repository.write("configuration.toml", text)
    return configured_assets(repository.settings())


def test_nothing_configured_is_nothing_to_do(repository):
    settings, paths = repository.settings_and_paths()
    for lines in (asset_install_lines, asset_download_lines, asset_offline_lines):
        assert lines(settings, paths) == []


def test_asset_is_read_with_its_defaults(repository):
    (asset,) = configured(repository, '[[assets]]\nrepo = "openai-community/gpt2"\n')
    assert asset.kind == "model" and asset.revision == "main" and asset.include == ()
    assert asset.directory == "models--openai-community--gpt2"


def test_later_layer_changes_the_asset_of_the_stack(repository):
    stack = '[images]\ncpu = "docker://x.org/a:1"\n[[configuration.assets]]\nrepo = "lab/a"\n'
    repository.write("stacks/pytorch/stack.toml", stack + 'include = ["*.json"]\n')
    text = f'[[assets]]\nrepo = "lab/a"\nrevision = "{COMMIT}"\n[[assets]]\nrepo = "lab/b"\n'
    first, second = configured(repository, text)
    assert (first.repo, first.revision, first.include) == ("lab/a", COMMIT, ("*.json",))
    assert second.repo == "lab/b"


def test_two_of_one_repo_have_names_and_records_of_their_own(repository):
    text = (
        '[[assets]]\nname = "tokenizer"\nrepo = "lab/a"\ninclude = ["*.json"]\n'
        f'[[assets]]\nname = "weights"\nrepo = "lab/a"\nrevision = "{COMMIT}"\n'
    )
    first, second = configured(repository, text)
    assert first.directory == second.directory and first.record != second.record


def test_name_alone_leads_to_the_first_of_a_repo(repository):
    text = (
        f'[[assets]]\nname = "a"\nrepo = "lab/a"\nrevision = "{COMMIT}"\n'
        '[[assets]]\nname = "b"\nrepo = "lab/a"\nrevision = "v2"\n'
    )
    first, second = configured(repository, text)
    named = [
        line for line in asset_install_lines(*repository.settings_and_paths()) if "_set_ref" in line
    ]
    assert sorted(named) == sorted(
        [
            f"asset_set_ref {first.record} models--lab--a main",
            f"asset_set_ref {second.record} models--lab--a v2",
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"', 'repo of asset "x" is not a name on the hub: ""'),
        ('repo = "../x"', 'repo of asset "../x" is not a name on the hub: "../x"'),
        ('repo = "a/b/c"', 'on the hub: "a/b/c"'),
        ('repo = "https://huggingface.co/a/b"', "is"),
        ('repo = "a/b"\nrevision = "--x"', 'revision of asset a/b is not valid: "--x"'),
        ('repo = "a/b"\nrevision = "../x"', 'revision of asset a/b is not valid: "../x"'),
        ('repo = "a/b"\nrevision = ""', 'revision of asset a/b is not valid: ""'),
    ],
)
def test_what_the_hub_cannot_have_is_told(text, message, repository):
    with pytest.raises(LongshipError) as error:
        configured(repository, f"[[assets]]\n{text}\n")
    assert message in str(error.value) and "configuration.toml" in str(error.value)


def test_mistyped_kind_has_a_near_miss(repository):
    with pytest.raises(LongshipError) as error:
        configured(repository, '[[assets]]\nrepo = "a/b"\nkind = "dataste"\n')
    assert "dataset" in error.value.hint


def test_own_cache_of_the_environment_is_used(repository):
    text = '[environment.set]\nHF_HOME = "/group/hf"\n[[assets]]\nrepo = "a/b"\n'
    repository.write("configuration.toml", text)
    settings, paths = repository.settings_and_paths()
    assert "assets_begin /group/hf" in asset_install_lines(settings, paths)


def test_metric_of_another_user_is_used(run, tmp_path):
    commit, name = "a" * 40, "spaces--evaluate-metric--accuracy"
    files = tmp_path / f"hub/{name}/snapshots/{commit}"
    files.mkdir(parents=True)
    (files / "accuracy.py").touch()
    (tmp_path / "longship").mkdir()
    (tmp_path / "longship/record.asset").write_text(f"# {commit}\n")
    lines = [
        "touch() { echo 'touch: Permission denied' >&2; return 1; }",
        call("assets_begin", tmp_path),
        call("asset_add_metric", "record", name, tmp_path),
    ]
    assert run(["bash", "-c", render("a test", lines)]).stderr == ""
    assert list(tmp_path.glob("modules/evaluate_modules/metrics/*/*/accuracy.py"))


def test_damaged_file_is_removed_from_the_cache_alone(run, tmp_path):
    """Another member of the group can write links and records."""
    cache, commit = tmp_path / "cache", "a" * 40
    files = cache / f"hub/models--lab--a/snapshots/{commit}"
    files.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (files / "link").symlink_to(mine)
    (cache / "longship").mkdir()
    for name in ("link", "../../../../../mine"):
        text = f"# {commit}\n# size 1 {name}\n{'0' * 64}  models--lab--a/{commit}/{name}\n"
        (cache / "longship/record.asset").write_text(text)
        words = ("asset_remove_bad", "record", files.parent)
        lines = [call("assets_begin", cache), call(*words)]
        done = run(["bash", "-c", render("a test", lines)], check=False)
        assert "error: cannot remove the damaged file" in done.stderr, done.stderr
        assert mine.read_text() == "mine"


def test_download_uses_the_cache_of_the_machine_at_hand(repository):
    text = '[environment.set]\nHF_HOME = "/group/hf"\n[[assets]]\nrepo = "a/b"\n'
    repository.write("configuration.toml", text)
    settings, here = repository.settings_and_paths()
    lines = asset_download_lines(settings, here)
    assert f"assets_begin {here.hub}" in lines
    assert not any("/group/hf" in line for line in lines)
