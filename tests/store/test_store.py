"""lib/store/store.bash: the active version, its history, and what a prune keeps."""

import os

import pytest

from lib.script.command import call
from lib.script.render import render


@pytest.fixture
def bash(run):
    """Give a function that runs lines as a script and returns its CompletedProcess."""

    def run_lines(*lines, **options):
        return run(["bash", "-c", render("a test", lines)], **options)

    return run_lines


@pytest.fixture
def store(tmp_path):
    """Make a store with three versions, of which the first is active; give its link."""
    directory = tmp_path / "it's a & store"
    (directory / "versions").mkdir(parents=True)
    (directory / "pins").mkdir()
    for name in "abc":
        (directory / f"versions/{name}.sif").write_text(name * 10)
        (directory / f"versions/{name}.sif.json").write_text("{}")
    (directory / "base.sif").symlink_to("versions/a.sif")
    return directory / "base.sif"


DELETE = 'delete() { REPLY=$(stat -c %s -- "$1"); rm -- "$1"; }'


def versions(store):
    return [each for name in "abc" if os.path.exists(each := store.parent / f"versions/{name}.sif")]


def left(store):
    return {each.name for each in (store.parent / "versions").iterdir()}


def test_prune_deletes_neither_what_is_active_nor_what_is_pinned(bash, store):
    launcher = store.parent / "launcher"
    launcher.touch()
    (store.parent / "pins/x").write_text(f"/another/path/b.sif\n\n{launcher}\n")
    find = call("store_find_unused", store, *versions(store))
    done = bash(DELETE, find, "store_delete delete", "store_print_freed")
    assert done.stderr == f"note: kept, pinned by {launcher}: b.sif\ndeleted: c.sif\nfreed: 10 B\n"
    assert left(store) == {"a.sif", "a.sif.json", "b.sif", "b.sif.json"}


def test_prune_keeps_what_was_pinned_while_it_asked(bash, store):
    launcher = store.parent / "launcher"
    launcher.touch()
    pin = call("printf", f"c.sif\n\n{launcher}\n")
    lines = [
        call("store_find_unused", store, *versions(store)),
        f"{pin} >{call(store.parent)}/pins/x",
    ]
    done = bash(DELETE, *lines, "store_delete delete")
    assert done.stderr == "deleted: b.sif\n"
    assert left(store) == {"a.sif", "a.sif.json", "c.sif", "c.sif.json"}


def test_version_that_cannot_be_deleted_keeps_its_record(bash, store):
    find = call("store_find_unused", store, *versions(store))
    done = bash("delete() { return 1; }", find, "store_delete delete", "store_print_freed")
    assert done.stderr == "freed: 0 B\n"
    assert len(left(store)) == 6


def test_version_before_is_the_one_that_was_activated_before(bash, store):
    activated = [
        *(
            call("store_activate", store, store.parent / f"versions/{name}.sif", "use")
            for name in "bc"
        ),
        call("store_activate", store, store.parent / "versions/b.sif", "rollback"),
    ]
    previous = [call("store_previous", store), 'echo "$REPLY"']
    assert bash(*activated, *previous).stdout == "a.sif\n"
    assert os.readlink(store) == "versions/b.sif"


def test_files_of_the_user_become_versions_and_none_is_lost(bash, tmp_path):
    """Also two of the same second, as `cp -p` makes them, and a link, whose target stays."""
    active, target = tmp_path / "base_1_amd64.sif", tmp_path / "theirs.sif"
    (tmp_path / "versions").mkdir()
    for text in ("first", "second"):
        active.unlink(missing_ok=True)
        active.write_text(text)
        os.utime(active, (0, 0))
        for _ in range(2):  # a version is left as it is
            bash(call("store_keep_foreign", active))
    target.write_text("third")
    active.unlink()
    active.symlink_to(target)
    bash(call("store_keep_foreign", active))
    versions = sorted((tmp_path / "versions").iterdir())
    assert [path.read_text() for path in versions] == ["second", "first", "third"]
    assert {path.name[-15:] for path in versions} == {"_unrecorded.sif"}
    assert versions[-1].is_symlink() and os.readlink(active) == f"versions/{versions[-1].name}"


def test_history_that_cannot_be_read_is_kept(bash, tmp_path):
    version = tmp_path / "versions/base_amd64_1_2.sif"
    version.parent.mkdir()
    version.write_text("an image")
    history = version.with_name("base_amd64.sif.history")
    history.write_text("what was active\n\0")
    activate = call("store_activate", tmp_path / "base_amd64.sif", version, "use")
    done = bash(activate, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot read {history}\n")
    assert history.read_text() == "what was active\n\0"
    assert not os.path.lexists(tmp_path / "base_amd64.sif")
