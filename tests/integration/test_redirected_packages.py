"""Packages that an image or an installer has elsewhere than in the Python's own directory."""

from pathlib import Path

import pytest
from support import cache
from support.real import pack_image

SHOW = "import longship_tiny, ofimage, sys; print(longship_tiny.__file__, ofimage.__file__)"


def add_venv(folder):
    """Give the python3 on PATH a virtual environment with a package."""
    (version,) = (path.name for path in (folder / "usr/lib").glob("python3.*"))
    packages = folder / f"opt/venv/lib/{version}/site-packages"
    (packages / "ofimage-1.0.dist-info").mkdir(parents=True)
    (packages / "ofimage-1.0.dist-info/METADATA").write_text("Name: ofimage\nVersion: 1.0\n")
    (packages / "ofimage.py").touch()
    (folder / "opt/venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "opt/venv/bin").mkdir()
    for name in ("python3", "python"):
        (folder / f"opt/venv/bin/{name}").symlink_to("/usr/bin/python3")
    script = folder / ".singularity.d/env/91-venv.sh"
    script.parent.mkdir(parents=True)
    script.write_text("export PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv\n")


@pytest.fixture(scope="session")
def venv_image(base_image, base_tar, session_environment):
    """Give an image whose python3 is that of a virtual environment."""
    return cache.cached(
        f"{base_tar.stem}-venv.sif",
        lambda partial: pack_image(base_tar, partial, session_environment, add_venv),
    )


def test_packages_of_an_image_that_is_a_venv_are_seen_in_a_venv(
    venv_image, make_clone, wheels, tmp_path
):
    clone = make_clone(tmp_path, "apptainer", ["longship_tiny"], image=str(venv_image))
    clone.set_up("install", env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)})
    ours, of_image = clone.container_run("python", "-c", SHOW).stdout.split(" /")
    assert "/venvs/" in ours
    assert f"/{of_image}".startswith("/opt/venv/lib/")


def test_packages_of_an_image_that_is_a_venv_are_seen_in_an_overlay(
    venv_image, make_overlay_clone, tmp_path
):
    clone = make_overlay_clone(tmp_path, image=str(venv_image))
    clone.overlay()
    shown = clone.container_run("python", "-c", SHOW).stdout.split()
    assert shown[0].startswith("/user-software/") and shown[1].startswith("/opt/venv/lib/")


def write_pip_conf(clone, text):
    file = Path(clone.environment["HOME"], ".config/pip/pip.conf")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[global]\n{text}\n")


@pytest.mark.parametrize("variable", ["PIP_USER", "PIP_TARGET", "PIP_PREFIX", "pip.conf"])
def test_what_redirects_pip_is_ignored(variable, make_clone, wheels, tmp_path):
    clone = make_clone(tmp_path, "host", ["longship_tiny"])
    find = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    if variable == "pip.conf":
        write_pip_conf(clone, "user = true")
    else:
        find[variable] = "1" if variable == "PIP_USER" else str(tmp_path / "elsewhere")
    clone.set_up("install", env=find)
    assert clone.container_run("longship_tiny").stdout == "1.0\n"
    assert not (tmp_path / "elsewhere").exists()


def test_environment_without_its_requirements_is_not_activated(make_clone, wheels, tmp_path):
    clone = make_clone(tmp_path, "host", ["longship_tiny"])
    find = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    clone.set_up("install", env=find)
    before = [each.resolve() for each in clone.scratch.glob("venv_*")]
    write_pip_conf(clone, f"target = {tmp_path}/elsewhere")
    done = clone.set_up("install", "--force", env=find, check=False)
    lacks = f"the new environment lacks longship-tiny of {clone.root}/requirements/tiny.txt"
    assert f"error: {lacks}; the active one is unchanged\n" in done.stderr
    assert "Traceback" not in done.stderr and done.returncode == 1
    assert before == [each.resolve() for each in clone.scratch.glob("venv_*")]
    assert clone.container_run("longship_tiny").stdout == "1.0\n"
