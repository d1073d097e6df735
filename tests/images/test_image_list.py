"""What move_built_container_to_active.py --list says of versions."""

import json

import pytest

from lib.images import list as image_list
from lib.runtimes.environment import Environment
from lib.script.errors import LongshipError
from lib.script.execute import Output

NAME = "base_1_amd64_20260102T030405Z_0123456789ab"
ODD = 'docker://example.org/a "lab"/it\'s\\here/' + "long/" * 20 + "image:1"
WAITS = "  20260102T030405_aaaaaaaaaaaa"


@pytest.fixture
def folder(tmp_path):
    """Make a directory with an active version of an image, and a new image."""
    folder = tmp_path / 'it\'s "here"' / "containers"
    for part in ("versions", "build"):
        (folder / part).mkdir(parents=True)
    facts = {"date": "2026-01-02T03:04:05Z", "bytes": "9400000000", "digest": "sha256:" + "1" * 64}
    facts |= {"sha256": "sha256:" + "a" * 64, "source": ODD}
    files = [f"versions/{NAME}.sif", "build/base_1_amd64.sif"]
    for file in files:
        (folder / file).write_text("x")
        # a value on each line, as bash writes and reads them
        (folder / f"{file}.json").write_text(json.dumps(facts, indent=2))
    (folder / "base_1_amd64.sif").symlink_to(files[0])
    history = f"2026-02-03T00:00:00Z use - {NAME}.sif\n"
    (folder / "versions/base_1_amd64.sif.history").write_text(history)
    return folder


@pytest.fixture
def listed(repository, folder, monkeypatch):
    """Give a function that lists them in some columns; without, it gives the data."""
    text = f"[paths]\nscratch_dir = {json.dumps(str(folder.parent))}\n"
    repository.write("configuration.toml", text)
    env = Environment(*repository.settings_and_paths(arch="amd64"), "apptainer")

    def show(columns=0):
        if not columns:
            return json.loads(image_list.images_as_json(env).text)
        monkeypatch.setattr(image_list, "columns", lambda: columns)
        return image_list.list_images(env)

    return show


def test_versions_are_read_by_programs(folder, listed):
    used, waiting = listed()
    assert used == {
        "image": "base_1_amd64.sif",
        "version": "20260102T030405Z_0123456789ab",
        "file": str(folder / f"versions/{NAME}.sif"),
        "built": "2026-01-02T03:04:05Z",
        "bytes": 9400000000,
        "digest": "sha256:" + "1" * 64,
        "source": ODD,
        "in_use": True,
        "since": "2026-02-03T00:00:00Z",
    }
    assert waiting["file"] == str(folder / "build/base_1_amd64.sif")
    assert waiting["version"] == "20260102T030405_aaaaaaaaaaaa"
    assert (waiting["in_use"], waiting["since"]) == (False, "")


def test_image_that_was_put_there_is_read_by_programs(folder, listed):
    active = folder / "base_1_amd64.sif"
    active.unlink()
    active.write_text("twelve bytes")
    (used,) = [each for each in listed() if each["in_use"]]
    assert (used["file"], used["bytes"]) == (str(active), 12)
    shown = listed(200).text.splitlines()
    assert shown[3] == f"active: {active}, not built by Longship"


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_list_fits_a_terminal(columns, listed):
    lines = listed(columns).text.splitlines()
    assert len(lines) > 1
    assert [line for line in lines if len(line) > columns] == []


def test_list_in_a_file_is_whole(listed):
    text, following = listed(10000)
    head, used, since, damaged, heading, new = text.splitlines()
    assert head.split() == ["VERSION", "BUILT", "SIZE", "DIGEST", "SOURCE"]
    assert used.startswith("* 20260102T030405Z_0123456789ab ")
    assert used.endswith(f" 2026-01-02T03:04:05Z   9.4 GB  sha256:111111111111  {ODD}")
    assert since == "  active since 2026-02-03T00:00:00Z"
    assert damaged == "  damaged: 1 bytes, recorded: 9400000000"
    assert heading == "new image, not yet active:"
    assert new.startswith("+ 20260102T030405_aaaaaaaaaaaa ")
    assert following == "python3 move_built_container_to_active.py"


@pytest.mark.parametrize("record", ["", "{", '{\n  "date": "\x1b[31m\\u0000\\"\n', "[]\n", None])
def test_damaged_records_are_listed(record, folder, listed):
    file = folder / f"versions/{NAME}.sif.json"
    file.unlink()
    if record is not None:
        file.write_text(record)
    used, _ = listed()
    assert (used["bytes"], used["digest"], used["source"]) == (1, "", "")
    text = listed(200).text
    assert "  damaged: the record is missing or damaged\n" in text
    assert all(each.isprintable() for each in text.splitlines())


def test_images_that_cannot_be_checked_are_listed(listed, monkeypatch):
    """Docker can hang: what is known of the others is kept."""
    monkeypatch.setattr(image_list, "read_output", lambda *_: Output("damage: \n", 124))
    assert "damaged" not in listed(200).text
    monkeypatch.setattr(image_list, "read_output", lambda *_: Output("bash: a warning\n", 124))
    assert "  damaged: the image cannot be checked\n" in listed(200).text


def test_missing_images_name_the_command_that_helps(folder, listed):
    (folder / "build/base_1_amd64.sif").unlink()
    (folder / f"versions/{NAME}.sif").unlink()
    text, following = listed(200)
    assert text == f"active: {NAME}.sif, which is missing\n"
    assert following.startswith("python3 move_built_container_to_active.py --use VERSION")
    (folder / "base_1_amd64.sif").unlink()
    assert listed(200) == ("no active image\n", "python3 build_container.py")


def test_images_of_other_names_follow(folder, listed):
    (folder / "versions/other_2_amd64_20250101T000000_abcdef012345.sif").write_text("x")
    (folder / "versions/other_2_arm64_20250101T000000_abcdef012345.sif").write_text("x")
    assert [each["image"] for each in listed()] == ["base_1_amd64.sif"] * 2 + ["other_2_amd64.sif"]
    rest = listed(200).text.partition("\nnot configured: other_2_amd64.sif\n")[2].splitlines()
    assert rest[0].startswith("  20250101T000000_abcdef012345 ")
    assert rest[-1] == "no active image"


def test_image_of_another_runtime_is_refused(repository, tmp_path):
    repository.write("configuration.toml", '[container]\nimage = "/x.sqsh"\n')
    with pytest.raises(LongshipError, match="apptainer cannot build from"):
        image_list.list_images(Environment(*repository.settings_and_paths(), "apptainer"))
