"""What scripts print for programs: JSON, whatever the names; and the same lists on a terminal."""

import json
import os

import pytest
from support.terminal import Terminal

from lib.script.command import assign, call
from lib.script.render import render

NAME = "base_1_amd64_20260102T030405Z_0123456789ab"
ODD = 'docker://example.org/a "lab"/it\'s\\here/' + "long/" * 20 + "image:1"
OVERLAY = "myenv_0123456789ab_amd64"


def test_any_text_is_read_back(run, hostile_arguments):
    script = render("x", ['json_list "one two" "$@"'])
    words = [*hostile_arguments, *([""] * (len(hostile_arguments) % 2))]
    done = run(["bash", "-c", script, "x", *words])
    read = [value for each in json.loads(done.stdout) for value in (each["one"], each["two"])]
    assert read == [os.fsencode(each).decode(errors="replace") for each in words]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0", 0), ("-1.50", -1.5), ("true", True), ("false", False), ("", None)]
    + [(each, None) for each in ("01", "1K", "nan", "1\n", "UNLIMITED", "1.")],
)
def test_number_is_a_number_or_null(text, value, run):
    done = run(["bash", "-c", render("x", ["json_list 'a b#' c \"$1\""]), "x", text])
    (read,) = json.loads(done.stdout)
    assert read == {"a": "c", "b": value} and type(read["b"]) is type(value)


def test_nothing_is_an_empty_list(run):
    assert json.loads(run(["bash", "-c", render("x", ["json_list 'a b'"])]).stdout) == []


@pytest.fixture
def folder(tmp_path):
    """Make a folder with versions of an image, one in use, and one that waits; and an overlay."""
    folder = tmp_path / 'it\'s "here"'
    for part in ("versions", "build"):
        (folder / part).mkdir(parents=True)
    facts = {"date": "2026-01-02T03:04:05Z", "bytes": "9400000000", "digest": "sha256:" + "1" * 64}
    facts |= {"sha256": "sha256:" + "a" * 64, "source": ODD, "requirements": "numpy " * 30}
    facts |= {"base": "/images/a.sif\n/images/b.sif"}
    files = [f"versions/{NAME}.sif", "build/base_1_amd64.sif", f"versions/{OVERLAY}.sqsh"]
    for file in files:
        (folder / file).write_text("x")
        # a value on each line, as bash writes and reads them
        (folder / f"{file}.json").write_text(json.dumps(facts, indent=2))
    (folder / "base_1_amd64.sif").symlink_to(files[0])
    (folder / f"{OVERLAY}.sqsh").symlink_to(files[2])
    history = f"2026-02-03T00:00:00Z use - {NAME}.sif\n"
    (folder / "versions/base_1_amd64.sif.history").write_text(history)
    return folder


def versions(folder, show):
    image = folder / "build/base_1_amd64.sif"
    names = (
        assign("arch", "amd64"),
        assign("active", folder / image.name),
        assign("image", image),
    )
    return ["bash", "-c", render("x", [*names, 'record="$image".json', call(show)])]


def overlays(folder, *show):
    lines = [assign("active", folder / f"{OVERLAY}.sqsh"), call(*show)]
    return ["bash", "-c", render("x", lines)]


def test_versions_are_read_by_programs(folder, run):
    done = run(versions(folder, "versions_as_json"))
    used, waiting = json.loads(done.stdout)
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


def test_image_that_was_put_there_is_read_by_programs(folder, run):
    active = folder / "base_1_amd64.sif"
    active.unlink()
    active.write_text("twelve bytes")
    read = json.loads(run(versions(folder, "versions_as_json")).stdout)
    (used,) = [each for each in read if each["in_use"]]
    assert (used["file"], used["bytes"]) == (str(active), 12)


def test_overlays_are_read_by_programs(folder, run):
    (read,) = json.loads(run(overlays(folder, "overlays_as_json")).stdout)
    assert read == {
        "overlay": OVERLAY,
        "file": str(folder / f"versions/{OVERLAY}.sqsh"),
        "bytes": 1,
        "in_use": True,
        "last_use": "",
        "built": "2026-01-02T03:04:05Z",
        "requirements": "numpy " * 30,
        "images": "/images/a.sif\n/images/b.sif",
    }


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_lists_fit_a_terminal(columns, folder, clean_environment, tmp_path):
    for command in (versions(folder, "list_versions"), overlays(folder, "list_overlays", "host")):
        with Terminal(command, env=clean_environment, cwd=tmp_path, columns=columns) as terminal:
            assert terminal.end() == 0
        lines = terminal.said.splitlines()
        lines = [line for line in lines if "another image" not in line and "next: " not in line]
        assert len(lines) > 1
        assert [line for line in lines if len(line) > columns] == []


def test_list_in_a_file_is_whole(folder, run):
    done = run(versions(folder, "list_versions"))
    source = json.dumps(ODD)[1:-1]
    assert f"2026-01-02T03:04:05Z   9.4 GB  sha256:111111111111  {source}\n" in done.stdout
