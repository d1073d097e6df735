"""What was made before Longship came is used as it is: an image, an overlay, a venv."""

import hashlib
import os
import shutil

import pytest
from support import processes
from support.lab import is_told
from support.overlays import OWN, TINY
from support.repository import toml

VENV = "python3 -m venv --system-site-packages --without-pip"  # TrustLLM's; Olivia's has a pip too
SHOW = "import longship_tiny, sys; print(longship_tiny.__file__, sys.prefix)"
# a console script as pip writes it into a venv
PROGRAM = "#!{python}\nimport longship_tiny\n\nlongship_tiny.main()\n"


def make_venv(clone, folder, image):
    """Make a venv as the ancestors did: by hand, in the image, at a path that only they know."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = ["apptainer", "--quiet", "exec", "--bind", folder.parent, image]
    processes.run([*inside, *VENV.split(), folder], env=clone.environment)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "longship_tiny.py").write_text("def main():\n    print('theirs')\n")
    program = folder / "bin/longship_tiny"
    program.write_text(PROGRAM.format(python=folder / "bin/python"))
    program.chmod(0o755)
    return folder


def pack(clone, folder, file):
    """Pack it with the words of the tutorial of Olivia's users."""
    file.parent.mkdir(parents=True, exist_ok=True)
    how = ["-noappend", "-comp", "xz", "-b", "1M", "-no-xattrs"]
    processes.run(["mksquashfs", f"{folder}/", file, *how], env=clone.environment)
    return file


@pytest.fixture(scope="module")
def their_venv(require, make_clone, base_image, tmp_path_factory):
    require("apptainer")
    folder = tmp_path_factory.mktemp("their")
    clone = make_clone(folder, "apptainer")
    return make_venv(clone, folder / "it's code/myenv", base_image)


@pytest.fixture(scope="module")
def their_overlay(require, make_clone, their_venv, tmp_path_factory):
    """Give an overlay, the venv that it was packed from is gone as in the tutorial."""
    require("mksquashfs")
    folder = tmp_path_factory.mktemp("overlay")
    clone = make_clone(folder, "apptainer")
    moved = shutil.copytree(their_venv, folder / "myenv", symlinks=True)
    program = moved / "bin/longship_tiny"
    program.write_text(PROGRAM.format(python=moved / "bin/python"))
    pack(clone, moved, folder / "overlays/theirs.sqsh")
    shutil.rmtree(moved)
    return folder / "overlays/theirs.sqsh"


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def put(clone, file):
    """Lay a link to it where the overlay is looked for, as the page for Olivia's users says."""
    link = clone.link()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(file)
    return link


# --- an overlay


def test_overlay_is_taken_over_as_it_is(fresh, their_overlay):
    before = digest(their_overlay)
    link = put(fresh, their_overlay)
    assert link.name == f"myenv_{digest(fresh.root / 'requirements/tiny.txt')[:12]}_{OWN}.sqsh"
    is_told(
        fresh.container_run("true", check=False),
        "overlay not found, or its record: ",
        "python3 build_overlay.py",
    )
    said = fresh.overlay().stderr
    assert "[1/1] Checking" in said and "used unchanged" in said, said
    shown = fresh.container_run("python", "-c", SHOW).stdout
    assert shown.startswith("/user-software/lib/python3") and shown.endswith(" /user-software\n")
    assert fresh.container_run("python", "-c", "import yaml").returncode == 0  # the image's
    assert digest(their_overlay) == before and not fresh.left()
    # nothing is looked at or built again
    again = fresh.overlay().stderr
    assert "[1/1]" not in again and "used unchanged" in again
    listed = fresh.overlay("--list").stdout
    assert f"not built by Longship: {their_overlay}" in listed and "  active" in listed, listed
    assert TINY in listed


def test_overlay_that_lies_there_is_kept_when_one_is_built(fresh, their_overlay):
    link = fresh.link()
    link.parent.mkdir(parents=True)
    shutil.copy(their_overlay, link)  # the old project's folder is the new one
    fresh.overlay()
    (theirs,) = fresh.versions()
    assert fresh.container_run("python", "-m", "longship_tiny").returncode == 0
    fresh.overlay("--force")
    assert "1.0" in fresh.container_run("longship_tiny").stdout
    assert theirs in fresh.versions() and os.readlink(link) != f"versions/{theirs}"
    assert digest(link.parent / "versions" / theirs) == digest(their_overlay)


def test_pruning_leaves_what_a_link_leads_to(fresh, their_overlay):
    put(fresh, their_overlay)
    fresh.overlay()
    fresh.require(TINY, "# another file has another name")
    fresh.overlay("--prune", "--yes")
    assert fresh.versions() == [] and their_overlay.exists()


def test_job_pins_the_overlay_that_was_taken_over(fresh, their_overlay, tmp_path, run):
    put(fresh, their_overlay)
    fresh.overlay()
    launcher = tmp_path / "launcher"
    fresh.container_run("--launcher", launcher)
    assert "theirs" in run([launcher, "python", "-c", "import longship_tiny as x; x.main()"]).stdout
    fresh.require(TINY, "# another one")
    assert "kept" in fresh.overlay("--prune", "--yes").stderr
    assert len(fresh.versions()) == 1


OTHERS = {
    # the folder of its packages, and its Python
    "another Python": ("lib/python3.5/site-packages", "/usr/bin/python3"),
    "another image": ("lib/python3.5/site-packages", "/opt/conda/bin/python"),
    "no venv": (".", ""),  # as pip install --target leaves it
}


@pytest.mark.parametrize("kind", OTHERS)
def test_overlay_of_something_else_is_refused(kind, fresh, their_venv, tmp_path):
    packages, python = OTHERS[kind]
    made = tmp_path / "made"
    (made / packages).mkdir(parents=True)
    (made / packages / "longship_tiny.py").write_text("")
    if python:
        (made / "bin").mkdir()
        (made / "bin/python").symlink_to(python)
        shutil.copy(their_venv / "pyvenv.cfg", made)
    link = put(fresh, pack(fresh, made, tmp_path / "other.sqsh"))
    is_told(fresh.overlay(check=False), "contains no venv for Python 3.", "container.image")
    assert not fresh.left() and link.is_symlink()
    is_told(
        fresh.container_run("true", check=False),
        "overlay not found, or its record: ",
        "python3 build_overlay.py",
    )


def test_file_that_is_no_overlay_is_refused(fresh, tmp_path):
    (tmp_path / "page.sqsh").write_text("<html>404</html>\n" * 100)
    put(fresh, tmp_path / "page.sqsh")
    is_told(fresh.overlay(check=False), "contains no venv for Python 3.", "--force")


def test_overlay_goes_on_with_another_image_of_the_same_python(
    fresh, their_overlay, base_image, tmp_path
):
    put(fresh, their_overlay)
    fresh.overlay()
    other = tmp_path / "other.sif"
    shutil.copy(base_image, other)
    fresh.change(f"image = {toml(str(base_image))}", f"image = {toml(str(other))}")
    is_told(fresh.container_run("true", check=False), "was built for", "python3 build_overlay.py")
    fresh.overlay()
    assert "user-software" in fresh.container_run("python", "-c", SHOW).stdout


# --- a venv


@pytest.fixture
def with_venv(make_clone, their_venv, tmp_path):
    """Give a clone with a link to their venv in the place of its own."""
    clone = make_clone(tmp_path, "apptainer", [TINY])
    link = clone.scratch / f"venv_pytorch_{OWN}"
    link.parent.mkdir(parents=True)
    link.symlink_to(their_venv)
    clone.venv = link
    return clone


def test_venv_is_used_as_it_is(with_venv, their_venv, tmp_path, run):
    shown = with_venv.container_run("python", "-c", SHOW).stdout
    assert shown.startswith(f"{their_venv}/lib/") and shown.endswith(f" {their_venv}\n")
    # a job names the venv itself, so that a new one does not reach it
    launcher = tmp_path / "launcher"
    with_venv.container_run("--launcher", launcher)
    with_venv.venv.unlink()
    assert f"{their_venv}/" in run([launcher, "python", "-c", SHOW]).stdout


def test_programs_of_a_venv_start_where_the_path_has_no_space(
    make_clone, base_image, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("plain")
    clone = make_clone(folder, "apptainer", [TINY])
    venv = make_venv(clone, folder / "env_x86_64", base_image)
    clone.scratch.mkdir(parents=True, exist_ok=True)
    (clone.scratch / f"venv_pytorch_{OWN}").symlink_to(venv)
    assert clone.container_run("longship_tiny").stdout == "theirs\n"


def test_new_venv_is_built_beside_the_old_one(with_venv, their_venv, wheels):
    before = sorted((path, path.lstat().st_mtime_ns) for path in their_venv.rglob("*"))
    find = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    said = with_venv.set_up("install", env=find).stderr
    assert f"not built by Longship: {their_venv}" in said, said
    assert os.readlink(with_venv.venv).startswith("venvs/")
    assert with_venv.container_run("longship_tiny").stdout == "1.0\n"
    assert before == sorted((path, path.lstat().st_mtime_ns) for path in their_venv.rglob("*"))


def test_folder_in_the_place_of_the_link_is_left_alone(with_venv, base_image):
    with_venv.venv.unlink()
    make_venv(with_venv, with_venv.venv, base_image)
    assert f"{with_venv.venv}/lib" in with_venv.container_run("python", "-c", SHOW).stdout
    done = with_venv.set_up("install", check=False)
    is_told(done, "is a directory that Longship did not create", "mv ")
    assert (with_venv.venv / "pyvenv.cfg").exists()


def doctor(clone):
    return clone.type("doctor.py", check=False)


@pytest.mark.slow  # test_doctor.py finds the other ones
def test_doctor_looks_whether_a_venv_fits_the_image(with_venv, their_venv, tmp_path):
    with_venv.container_run("true")  # makes the folders
    found = " ".join(doctor(with_venv).stdout.split())
    assert f"{their_venv}, which is not Longship's" in found, found
    other = tmp_path / "other"
    shutil.copytree(their_venv, other, symlinks=True)
    (packages,) = other.glob("lib/python3.*")
    packages.rename(other / "lib/python3.5")
    with_venv.venv.unlink()
    with_venv.venv.symlink_to(other)
    found = doctor(with_venv)
    assert found.returncode == 1
    told = " ".join(found.stdout.split())
    assert f"the venv {other} has no packages for Python 3." in told, told


# --- an image


def test_image_without_a_record_is_used_where_it_lies(make_clone, base_image, tmp_path):
    image = tmp_path / "apptainers/torchtitan_pytorch_25.06-py3_x86_64.sif"
    image.parent.mkdir()
    image.symlink_to(base_image)
    clone = make_clone(tmp_path, "apptainer", image=image)
    clone.container_run("python3", "-c", "import yaml")
    clone.container_run("--launcher", tmp_path / "launcher")
    assert [path.name for path in image.parent.iterdir()] == [image.name]


# --- a repository


def test_clone_made_by_hand_keeps_its_changes_through_an_update(make_clone, tmp_path, run):
    def git(folder, *words):
        identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        return run(["git", "-C", folder, *identity, *words]).stdout

    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet")
    for version in ("v1", "v2"):
        (origin / f"{version}.py").write_text("")
        git(origin, "add", ".")
        git(origin, "commit", "--quiet", "--message", version)
        git(origin, "tag", version)
    clone = make_clone(tmp_path, "host")
    theirs = tmp_path / "the project/repos/origin"
    theirs.parent.mkdir(parents=True)
    run(["git", "clone", "--quiet", "--branch=v1", origin, theirs])
    (theirs / "mine.py").write_text("committed\n")
    git(theirs, "add", ".")
    git(theirs, "commit", "--quiet", "--message=mine")
    (theirs / "v1.py").write_text("changed\n")
    text = (clone.root / "configuration.toml").read_text()
    table = f'[[repositories]]\nurl = {toml(str(origin))}\nref = "v2"\ninstall = "none"\n'
    clone.configure(f"{text}\n{table}")
    before = git(theirs, "rev-parse", "HEAD"), git(theirs, "status", "--porcelain")
    clone.set_up("install")
    assert before == (git(theirs, "rev-parse", "HEAD"), git(theirs, "status", "--porcelain"))
    clone.set_up("update")
    assert (theirs / "v2.py").exists()
    assert (theirs / "mine.py").read_text() == "committed\n"
    assert (theirs / "v1.py").read_text() == "changed\n"
