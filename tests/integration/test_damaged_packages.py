"""Damaged overlays and venvs: never called up to date, and mended by the command that is named."""

import hashlib
import json
import os
import re
import shutil
import time

import pytest
from support.tiers import slow

pytestmark = pytest.mark.needs("mksquashfs")
LATER = 1e6  # seconds


def record_of(overlay):
    return overlay.with_name(f"{overlay.name}.json")


def flip(path):
    """Change a byte in the middle, and not the size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


OVERLAY_DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: os.truncate(path, 0),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "other content": flip,
    "foreign": lambda path: path.write_text("not an overlay"),
    "from the future": lambda path: os.utime(path, (time.time() + LATER,) * 2),
    "no record": lambda path: record_of(path).unlink(),
    "empty record": lambda path: os.truncate(record_of(path), 0),
    "truncated record": lambda path: os.truncate(record_of(path), 100),
    "wrong record": lambda path: record_of(path).write_text(
        re.sub(r'("sha256": "sha256:|"modified": ")\w+', r"\g<1>0", record_of(path).read_text())
    ),
}


def mostly_slow(damages, real):
    return [each if each == real else slow(each) for each in damages]


@pytest.mark.parametrize("damage", mostly_slow(OVERLAY_DAMAGES, "other content"))
def test_damaged_overlay_is_built_again(damage, fresh):
    fresh.overlay()
    overlay = fresh.link().resolve()
    right = hashlib.sha256(overlay.read_bytes()).hexdigest()
    OVERLAY_DAMAGES[damage](overlay)
    if "record" in damage and damage != "wrong record":
        done = fresh.container_run("true", check=False)
        assert "hint: run: python3 build_overlay.py" in done.stderr
    if damage != "missing":
        report = json.loads(fresh.type("doctor.py", "--json", check=False).stdout)
        (fix,) = {each["fix"] for each in report["findings"] if each["topic"] == "overlay"}
        assert "python3 build_overlay.py" in fix
    fresh.overlay()
    overlay = fresh.link().resolve()
    assert hashlib.sha256(overlay.read_bytes()).hexdigest() == right
    assert json.loads(record_of(overlay).read_text())["sha256"] == f"sha256:{right}"
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"
    assert "up to date" in fresh.overlay().stderr


def files_of(folder):
    return {path: path.lstat() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("overlay", [True, slow(False)])
def test_damaged_cache_of_uv_is_not_installed_and_not_changed(overlay, request):
    """A file that is changed, and one that is gone, as sites delete old files one by one."""
    clone = request.getfixturevalue("fresh" if overlay else "on_host")
    if overlay:
        build, force = clone.overlay, ("--force",)
    else:
        clone.change('overlay = "myenv"\n', "")
        build, force = clone.set_up, ("install", "--force")
    env = clone.find
    build(*force, env=env)
    cache = clone.scratch / "cache/uv"
    assert min(each.st_mtime for each in files_of(cache).values()) > time.time() - 3600
    flip(next(cache.rglob("longship_tiny.py")))
    done = build(*force, env=env)
    assert "installing again without uv's cache: longship_tiny\n" in done.stderr
    assert clone.container_run("longship_tiny").stdout == "1.0\n"
    next(cache.rglob("longship_tiny.py")).unlink()
    done = build(*force, env=env)
    assert "installing again without uv's cache" in done.stderr
    assert clone.container_run("longship_tiny").stdout == "1.0\n"


@pytest.mark.parametrize("force", [False, slow(True)])
@pytest.mark.parametrize("damage", mostly_slow(["gone", "shorter", "list"], "gone"))
def test_damaged_unpacked_overlay_is_unpacked_again(damage, force, on_host):
    on_host.overlay()
    (unpacked,) = on_host.folder.glob("unpacked/*")
    module = next(unpacked.rglob("longship_tiny.py"))
    if damage == "shorter":
        os.truncate(module, 1)
    else:
        (module if damage == "gone" else unpacked / "longship-files").unlink()
    lost = "its list of files" if damage == "list" else module.relative_to(unpacked)
    done = on_host.overlay(*["--force"] * force)
    assert f"the unpacked overlay {unpacked} lacks {lost}: unpacking it again" in done.stderr
    assert on_host.container_run("longship_tiny").stdout == "1.0\n"
    assert on_host.left() == []
    # a site that deletes old files does not begin with these
    assert min(each.st_mtime for each in files_of(unpacked).values()) > time.time() - 3600
    # and their bytecode is used
    done = on_host.container_run("python", "-v", "-c", "import longship_tiny")
    assert re.search(r"longship_tiny\.\S+\.pyc matches", done.stderr)
    assert "lacks" not in on_host.overlay().stderr


def test_image_from_the_future_has_an_overlay(fresh, base_image, tmp_path):
    copy = tmp_path / "later.sif"
    shutil.copy(base_image, copy)
    os.utime(copy, (time.time() + LATER,) * 2)
    fresh.change(json.dumps(str(base_image)), json.dumps(str(copy)))
    fresh.overlay()
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"


def packages_of(venv):
    (folder,) = venv.glob("lib/python*/site-packages")
    return folder


VENV_DAMAGES = {
    "python": lambda venv: (venv / "bin/python").unlink(),
    "python that is gone": lambda venv: (
        (venv / "bin/python").unlink(),
        (venv / "bin/python").symlink_to("/none/python3"),
    ),
    "package": lambda venv: next(packages_of(venv).glob("longship_tiny*.py")).unlink(),
    "cut module": lambda venv: os.truncate(next(packages_of(venv).glob("longship_tiny*.py")), 3),
    "emptied metadata": lambda venv: os.truncate(
        next(packages_of(venv).glob("longship_tiny*.dist-info/METADATA")), 0
    ),
    "pyvenv.cfg": lambda venv: (venv / "pyvenv.cfg").unlink(),
    "list": lambda venv: os.truncate(venv / "longship-files", 0),
    "program": lambda venv: (venv / "bin/longship_tiny").unlink(),
    "all packages": lambda venv: shutil.rmtree(packages_of(venv)),
}


@pytest.mark.parametrize("damage", mostly_slow(VENV_DAMAGES, "cut module"))
def test_damaged_venv_is_made_again(damage, on_host):
    on_host.change('overlay = "myenv"\n', "")
    on_host.set_up("install", env=on_host.find)
    (venv,) = on_host.scratch.glob("venv_*")
    before = venv.resolve()
    VENV_DAMAGES[damage](venv)
    report = json.loads(on_host.type("doctor.py", "--json", check=False).stdout)
    fixes = [each["fix"] for each in report["findings"] if each["topic"] == "packages"]
    assert fixes == ["run: python3 set_up.py install"]
    done = on_host.set_up("install", env=on_host.find)
    assert "lacks" in done.stderr and venv.resolve() != before
    assert on_host.container_run("longship_tiny").stdout == "1.0\n"
    assert "up to date" in on_host.set_up("install", env=on_host.find).stderr


def test_venv_is_made_again_by_force(on_host):
    on_host.change('overlay = "myenv"\n', "")
    on_host.set_up("install", env=on_host.find)
    (venv,) = on_host.scratch.glob("venv_*")
    before = venv.resolve()
    on_host.set_up("install", "--force", env=on_host.find)
    assert venv.resolve() != before
    done = on_host.set_up("update", "--force", check=False)
    assert done.returncode == 2 and "--force only with install or offline" in done.stderr
