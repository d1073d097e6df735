"""What build_overlay.py --list says of overlays."""

import json
import os

import pytest

from lib.packages import list as overlay_list
from lib.runtimes.environment import Environment

IMAGES = "/images/a.sif\n/images/b.sif"


@pytest.fixture
def folder(tmp_path):
    """Give the directory of overlays."""
    (tmp_path / "overlays/versions").mkdir(parents=True)
    (tmp_path / "overlays/pins").mkdir()
    return tmp_path / "overlays"


@pytest.fixture
def listed(repository, folder, monkeypatch):
    """Give a function that lists them in some columns; without, it gives the data."""
    repository.write("requirements.txt", "numpy\n")
    repository.write(
        "configuration.toml",
        f'[paths]\nscratch_dir = "{folder.parent}"\n'
        '[packages]\noverlay = "myenv"\nrequirements = "requirements.txt"\n',
    )
    given = Environment(*repository.settings_and_paths(arch="amd64"), "host")

    def show(columns=0):
        if not columns:
            return json.loads(overlay_list.overlays_as_json(given).text)
        monkeypatch.setattr(overlay_list, "columns", lambda: columns)
        return overlay_list.list_overlays(given)

    show.link = overlay_list.overlay_link(given.packages)
    return show


@pytest.fixture
def overlay(folder, listed):
    """Make the active overlay; give its path."""
    facts = {"date": "2026-01-02T03:04:05Z", "requirements": "numpy " * 30, "base": IMAGES}
    file = folder / f"versions/{listed.link.stem}_0123456789ab.sqsh"
    file.write_text("x")
    file.with_name(f"{file.name}.json").write_text(json.dumps(facts, indent=2))
    listed.link.symlink_to(f"versions/{file.name}")
    return file


def test_overlays_are_read_by_programs(overlay, listed):
    (read,) = listed()
    assert read == {
        "overlay": overlay.stem,
        "file": str(overlay),
        "bytes": 1,
        "in_use": True,
        "last_use": "",
        "built": "2026-01-02T03:04:05Z",
        "requirements": "numpy " * 30,
        "images": IMAGES,
    }


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_list_fits_a_terminal(columns, overlay, listed):
    lines = listed(columns).text.splitlines()
    lines = [line for line in lines if "another image" not in line]
    assert len(lines) > 1
    assert [line for line in lines if len(line) > columns] == []


def test_overlay_for_another_image_is_told(overlay, listed):
    text, following = listed(200)
    assert text.splitlines()[1].startswith(f"* {overlay.stem} ")
    assert text.endswith("but for another image: /images/a.sif, /images/b.sif\n")
    assert following == ""
    record = overlay.with_name(f"{overlay.name}.json")
    record.write_text(record.read_text().replace("/images/b.sif", "host"))
    assert listed(200).text.endswith("\n  active\n")


def test_last_use_is_that_of_a_launch_or_of_a_launcher(overlay, folder, listed):
    def use(file, time):
        os.utime(file, (time, time))
        return listed()[0]["last_use"]

    used = overlay.with_name(f"{overlay.name}.used")
    used.touch()
    assert use(used, 1_700_000_000) == "2023-11-14"
    pin = folder / "pins/4711-x"
    pin.write_text(f"/other/name/versions/{overlay.name}\n4711\n/l\n")
    assert use(pin, 1_800_000_000) == "2027-01-15"
    assert use(pin, 1_600_000_000) == "2023-11-14"
    pin.write_text("/other.sqsh\n")
    os.mkfifo(folder / "pins/waits")
    assert use(pin, 1_800_000_000) == "2023-11-14"


@pytest.mark.parametrize("record", ["", '{\n  "date": "\x1b[31m"', None])
def test_damaged_records_are_listed(record, overlay, listed):
    file = overlay.with_name(f"{overlay.name}.json")
    file.unlink()
    if record is not None:
        file.write_text(record)
    assert listed()[0]["requirements"] == ""
    text = listed(200).text
    assert "  for the current requirements, but for another image: \n" in text
    assert all(each.isprintable() for each in text.splitlines())


def test_foreign_overlay_is_told(overlay, listed, tmp_path):
    elsewhere = tmp_path / "users.sqsh"
    overlay.rename(elsewhere)
    overlay.symlink_to(elsewhere)
    overlay.with_name(f"{overlay.name}.json").write_text('{\n  "wanted": "taken over"\n}\n')
    assert f"\n  not built by Longship: {elsewhere}\n" in listed(200).text


def test_missing_overlay_names_the_command_that_builds_it(listed):
    text = f"not built yet for the current requirements: {listed.link}\n"
    assert listed(200) == (text, "python3 build_overlay.py")
