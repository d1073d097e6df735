"""set_up.py download, offline and update with real pip and uv: pinned, fetched, installed."""

import hashlib
import os
import re
import shutil
import signal
import tarfile
import time
import zipfile

import pytest
from support import processes
from support.environments import write_wheel
from support.lab import fill, is_told
from support.packages import configured_repositories, write_packages, write_repositories
from support.repository import toml
from support.tiers import slow

from lib.configuration.sites import own_arch

OWN = own_arch()
OTHER = {"amd64": "arm64", "arm64": "amd64"}[OWN]
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}[OTHER]


def write_sdist(folder, name, version, extension=False):
    """Write a package that comes only as source; a wheel with an `extension` fits one machine."""
    module = f', ext_modules=[Extension("{name}_c", ["{name}.c"])]' if extension else ""
    files = {
        "setup.py": "from setuptools import Extension, setup\n"
        f'setup(name="{name}", version="{version}", py_modules=["{name}"]{module})\n',
        f"{name}.py": f'VERSION = "{version}"\n',
        f"{name}.c": "int nothing;\n",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n'
        'build-backend = "setuptools.build_meta"\n',
    }
    source = folder / f"{name}-{version}"
    source.mkdir()
    for each, text in files.items():
        (source / each).write_text(text)
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)


@pytest.fixture
def found(tmp_path):
    """Give the folder that packages are found in, besides the package index."""
    return write_packages(tmp_path / "it's found, here")


@pytest.fixture
def connected(make_clone, fetcher, found, tmp_path):
    """Give a function that makes a clone that can download; it has no packages of its own."""

    def make(
        requirements=("longship_tiny",), runtime="host", more="", repositories=False, pip=False
    ):
        servers = tmp_path / "it's a server"
        text = more + (configured_repositories(servers) if repositories else "")
        clone = make_clone(tmp_path, runtime, list(requirements), text)
        clone.find = {"PIP_FIND_LINKS": found.as_uri()}
        clone.repositories = write_repositories(clone, servers) if repositories else None
        (clone.scratch / f"tools_{OWN}").mkdir(parents=True)
        if not pip:
            use_uv(clone)
            (clone.scratch / f"tools_{OWN}/uv").symlink_to(fetcher / "bin/uv")
            write_wheel(found, "pip", "99.0")  # the real one takes seconds to be compiled
        (clone.scratch / f"tools_{OWN}/fetcher").symlink_to(fetcher)
        clone.wheelhouse = clone.scratch / "offline/pip"
        return clone

    return make


def add_machine(clone, python="3.12"):
    """Describe a machine of the other architecture, whose image is nowhere."""
    (clone.root / "there").mkdir()
    (clone.root / "there/site.toml").write_text(
        f'[machines.there]\narch = "{OTHER}"\nruntime = "apptainer"\ngpu = "cpu"\n'
    )
    text = (clone.root / "configuration.toml").read_text()
    text = text.replace('runtime = "host"\nimage = ""', 'image = "docker://example.org/lab/base:1"')
    text = text.replace("[packages]\n", f'[packages]\npython = "{python}"\n')
    clone.configure(text)


def use_uv(clone):
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace('installer = "pip"', 'installer = "uv"'))


def offline(clone, airgapped, **options):
    __tracebackhide__ = True
    command = airgapped(clone.command("set_up.py", "offline"))
    return processes.run(command, env=clone.environment, cwd=clone.root, **options)


def wheel(clone, name):
    (path,) = clone.wheelhouse.glob(f"{name}-*.whl")
    return path


def left_over(clone):
    found = [*clone.wheelhouse.glob("*.partial*"), *clone.scratch.rglob("*.lock.*")]
    return found + [path for path in clone.scratch.glob("venvs/*") if not (path / "bin").exists()]


@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.slow)])
def test_all_is_installed_without_network(installer, connected, airgapped):
    clone = connected(repositories=True, pip=installer == "pip")
    done = clone.set_up("download", env=clone.find)
    assert re.search(r"^\d+ packages, \d+\.\d MB$", done.stdout, re.MULTILINE)
    assert wheel(clone, "longship_listed")
    assert wheel(clone, "editables")  # for builds
    assert done.stderr.endswith("next: python3 set_up.py offline\n")
    assert not left_over(clone)
    if installer == "uv":
        (clone.scratch / f"tools_{OWN}/uv").unlink()  # it comes from its wheel
    done = offline(clone, airgapped)
    assert ("longship-tiny==1.0" in done.stderr) == (installer == "uv")  # uv's way to say it
    show = "import modern, classic, longship_tiny, longship_extra, longship_listed"
    show += "; print(modern.__file__, classic.__file__, sep='\\n')"
    modern, classic = clone.container_run("python", "-c", show).stdout.splitlines()
    venv = os.path.realpath(clone.scratch / f"venv_pytorch_{OWN}")
    assert modern.startswith(str(clone.repositories)) and classic.startswith(venv)
    with open(f"{venv}/script") as file:
        assert file.read() == f"{venv}/bin/python\n{clone.repositories}/modern\n"
    assert "up to date" in offline(clone, airgapped).stderr
    if installer == "pip":
        return
    (clone.repositories / "classic/classic.py").write_text("VALUE = 2\n")
    offline(clone, airgapped)  # `plain` copies the code: a change is installed anew
    show = ["python", "-c", "import classic; print(classic.VALUE)"]
    assert clone.container_run(*show).stdout == "2\n"
    (clone.repositories / "modern/src/modern/__init__.py").write_text("VALUE = 2\n")
    assert "up to date" in offline(clone, airgapped).stderr  # `editable` shows it already


def test_packages_are_fetched_for_another_architecture(connected, found):
    clone = connected(["markupsafe", "longship_source"])
    write_sdist(found, "longship_source", "1.0")
    add_machine(clone)
    done = clone.set_up("download", "--machine", "there", env=clone.find)
    assert "cp312-cp312" in wheel(clone, "markupsafe").name
    assert MACHINE in wheel(clone, "markupsafe").name
    assert MACHINE in wheel(clone, "uv").name
    assert wheel(clone, "longship_source").name.endswith("-none-any.whl")
    assert re.search(r"^\d+ packages, [\d.]+ MB$", done.stdout, re.M)
    assert "building from source, with the Python of this machine" in done.stderr
    assert "python3 set_up.py offline --machine=there\n" in done.stderr

    # again: nothing is fetched, and pip has kept what it built
    def found_there():
        wheels = clone.wheelhouse.glob("*.whl")
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in wheels}

    before = found_there()
    clone.set_up("download", "--machine", "there", env={**clone.find, "http_proxy": "http://x"})
    for name, (content, time_ns) in found_there().items():
        assert before[name][0] == content
        assert before[name][1] == time_ns or name.startswith("longship_source")


def test_package_without_a_wheel_for_the_target_is_told_where_the_network_is(connected, found):
    clone = connected(["longship_compiled"])
    write_sdist(found, "longship_compiled", "1.0", extension=True)
    add_machine(clone)
    done = clone.set_up("download", "--machine", "there", env=clone.find, check=False)
    is_told(done, f"no wheel for Python 3.12 on {OTHER}: longship-compiled 1.0", "versions")
    assert not list(clone.wheelhouse.glob("*.lock"))
    assert not left_over(clone)


@pytest.mark.slow  # for another above
def test_source_is_built_with_the_targets_python_where_it_runs_here(connected, found, airgapped):
    clone = connected(["longship_source"])
    write_sdist(found, "longship_source", "1.0")
    done = clone.set_up("download", env=clone.find)
    assert "building from source, with the Python of host: longship-source==1.0" in done.stderr
    offline(clone, airgapped)
    show = ["python", "-c", "import longship_source; print(longship_source.VERSION)"]
    assert clone.container_run(*show).stdout == "1.0\n"


def test_target_that_nothing_tells_about_is_an_error(connected):
    clone = connected()
    add_machine(clone, python="")
    done = clone.set_up("download", "--machine", "there", env=clone.find, check=False)
    is_told(done, "the Python version of there is unknown", 'packages.python = "3.12"')
    assert "python3 build_container.py download --machine there" in done.stderr


@pytest.mark.slow  # tests/packages/test_wheelhouse.py
def test_unreadable_archive_is_told(connected, found):
    clone = connected()
    add_machine(clone)
    archives = clone.scratch / "offline/containers"
    archives.mkdir(parents=True)
    (archives / f"base_1_{OTHER}.tar").write_text("not an archive")
    done = clone.set_up("download", "--machine", "there", env=clone.find, check=False)
    is_told(done, "cannot read the image archive", "build_container.py download --force")
    assert "not a docker archive: " in done.stderr


@pytest.fixture
def with_index(connected, tmp_path):
    """Give a clone whose requirements name an index of their own, and that option."""
    (tmp_path / "elsewhere").mkdir()
    write_wheel(tmp_path / "elsewhere", "longship_elsewhere", "1.0")
    index = tmp_path / "simple/longship-elsewhere"
    index.mkdir(parents=True)
    (made,) = (tmp_path / "elsewhere").iterdir()
    (index / "index.html").write_text(f'<a href="{made.as_uri()}">{made.name}</a>')
    option = f"--extra-index-url {index.parent.as_uri()}"
    return connected([option, "longship_elsewhere"]), option


def test_index_of_the_requirements_is_fetched_from_too(with_index, airgapped):
    """Versions are chosen from it, so they are fetched from it."""
    clone, _ = with_index
    clone.set_up("download", env=clone.find)
    assert wheel(clone, "longship_elsewhere")
    offline(clone, airgapped)
    assert clone.container_run("longship_elsewhere").stdout == "1.0\n"


@pytest.mark.slow
def test_index_of_the_requirements_is_in_the_lock(with_index):
    clone, option = with_index
    clone.set_up("update", env=clone.find)
    assert f"\n{option}\n" in lock_of(clone).read_text()
    clone.set_up("install", env=clone.find)
    assert clone.container_run("longship_elsewhere").stdout == "1.0\n"


def test_options_of_pip_reach_it(connected, found, tmp_path):
    clone = connected(["longship_other"])
    other = tmp_path / "other wheels"
    other.mkdir()
    write_wheel(other, "longship_other", "3.0")
    clone.set_up("download", "--", "--find-links", other, env=clone.find)
    assert wheel(clone, "longship_other").name.startswith("longship_other-3.0-")


@pytest.mark.parametrize("words", [["install", "x"], ["offline", "--", "-x"], ["download", "x"]])
def test_options_of_pip_are_for_download_alone(words, connected):
    done = connected().set_up(*words, check=False)
    assert done.returncode == 2 and "hint: pass pip options after --: " in done.stderr


@pytest.fixture
def downloaded(connected):
    """Give a clone that has downloaded one package."""
    clone = connected()
    clone.set_up("download", env=clone.find)
    return clone


def test_wheel_cut_short_is_named(downloaded, airgapped):
    path = wheel(downloaded, "longship_tiny")
    os.truncate(path, path.stat().st_size - 1)
    done = offline(downloaded, airgapped, check=False)
    is_told(done, f"{path} is truncated or damaged", "copy it again")
    assert not list(downloaded.scratch.glob("venv_*")) and not left_over(downloaded)
    # where it came from the next download fetches it again
    downloaded.set_up("download", env=downloaded.find)
    offline(downloaded, airgapped)


@pytest.mark.parametrize("kind", ["lock", slow("sha256")])
def test_list_cut_short_is_named(kind, downloaded, airgapped):
    """Or what it lacks would not be installed, and the installation called done."""
    path = downloaded.wheelhouse / lock_of(downloaded).with_suffix(f".{kind}").name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    done = offline(downloaded, airgapped, check=False)
    is_told(done, f"{path} is truncated", "python3 set_up.py download --machine local")
    assert not list(downloaded.scratch.glob("venv_*")) and not left_over(downloaded)
    downloaded.set_up("download", env=downloaded.find)
    offline(downloaded, airgapped)


@pytest.mark.slow  # as one that is cut short
def test_missing_wheel_is_named(downloaded, airgapped):
    path = wheel(downloaded, "longship_tiny")
    path.unlink()
    done = offline(downloaded, airgapped, check=False)
    is_told(done, f"{path} is missing", "python3 set_up.py download --machine local")


def test_download_for_other_requirements_is_told(downloaded, airgapped):
    (downloaded.root / "requirements/tiny.txt").write_text("longship_extra\n")
    done = offline(downloaded, airgapped, check=False)
    is_told(done, "downloaded for other requirements", "python3 set_up.py download --machine local")
    downloaded.set_up("download", env=downloaded.find)
    assert not list(downloaded.wheelhouse.glob("longship_tiny*"))  # nobody's any more
    offline(downloaded, airgapped)
    assert downloaded.container_run("longship_extra").stdout == "1.0\n"


@pytest.mark.slow  # as other requirements
def test_download_for_another_python_is_told_with_the_setting(downloaded, airgapped):
    """Without an image, a download is for the Python of the machine that downloads."""
    pins = downloaded.wheelhouse / lock_of(downloaded).name
    pins.write_text(re.sub("# python: .*", "# python: 3.7", pins.read_text()))
    done = offline(downloaded, airgapped, check=False)
    is_told(done, "is for Python 3.7, but host has 3.", 'set packages.python = "3.')


def test_nothing_downloaded_is_told(connected, airgapped):
    clone = connected()
    done = offline(clone, airgapped, check=False)
    is_told(done, "packages have not been downloaded", "download --machine local")


def test_repository_that_cannot_be_installed_is_told(connected, tmp_path):
    clone = connected(repositories=True)
    server = tmp_path / "it's a server/classic"
    (server / "setup.py").rename(server / "no-setup.py")
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    git = ["git", "-C", server, *identity, "commit", "--quiet", "-am", "without"]
    processes.run(git, env=clone.environment)
    done = clone.set_up("install", env=clone.find, check=False)
    is_told(done, "cannot install repository classic", "install =")


@pytest.mark.slow  # with an overlay: test_overlays.py
def test_repositories_are_installed_without_a_lock_too(connected):
    clone = connected(repositories=True)
    clone.set_up("install", env=clone.find)
    show = "import modern, classic, longship_tiny, longship_extra, longship_listed"
    clone.container_run("python", "-c", show)
    assert "up to date" in clone.set_up("install", env={"PIP_NO_INDEX": "1"}).stderr


@pytest.mark.slow  # an installation: test_set_up.py
@pytest.mark.parametrize("free", [64 << 10, 4 << 20])  # uv has more than the larger one
def test_full_disk_is_told_and_nothing_is_left(free, connected, small_disk):
    clone = connected()
    wheels = clone.wheelhouse
    wheels.parent.mkdir(parents=True)
    disk = small_disk(6)
    wheels.symlink_to(disk)
    fill(disk, free)
    done = clone.set_up("download", env=clone.find, check=False)
    is_told(done, "No space left on device", "free some space")
    assert "Traceback" not in done.stderr
    assert not left_over(clone) and not list(wheels.glob("*.lock"))


def test_ctrl_c_is_told_without_a_traceback(connected):
    clone = connected(["markupsafe", "psutil", "numpy"])
    process = clone.start("set_up.py", "download", cwd=clone.root, env=clone.find)
    errors = ""
    while "[3/4]" not in errors:
        line = process.stderr.readline()
        assert line, errors
        errors += line
    # not before: a Python that is just starting prints a traceback of its own
    while not any("--only-binary=:all:" in each for each in processes.session(process.pid)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    errors += process.communicate(timeout=processes.PATIENCE)[1]
    assert process.returncode == 130
    assert "error: interrupted in step 3/4, Downloading the wheels" in errors
    assert "resume with: python3 set_up.py download" in errors and "Traceback" not in errors
    assert not left_over(clone)


# The lock


def lock_of(clone):
    return clone.root / f"requirements/pytorch_{OWN}.lock"


def test_lock_pins_what_everybody_installs(connected, airgapped, found):
    clone = connected(repositories=True)
    clone.set_up("update", env=clone.find)
    first = lock_of(clone).read_text()
    names = re.findall(r"^([\w-]+)==", first, re.MULTILINE)
    assert names == ["longship-extra", "longship-listed", "longship-tiny", "pip"]
    assert first.count("--hash=sha256:") >= len(names)
    write_wheel(found, "longship_tiny", "2.0")
    clone.set_up("install", env=clone.find)
    assert clone.container_run("longship_tiny").stdout == "1.0\n"  # not the newest
    clone.container_run("python", "-c", "import modern, classic")
    done = clone.set_up("update", env=clone.find)
    assert done.stdout == "longship-tiny 1.0 -> 2.0\n"
    clone.set_up("install", env=clone.find)
    assert clone.container_run("longship_tiny").stdout == "2.0\n"
    assert clone.set_up("update", env=clone.find).stdout == "no changes: 4 packages\n"
    # a download takes the same versions
    write_wheel(found, "longship_tiny", "3.0")
    clone.set_up("download", env=clone.find)
    assert wheel(clone, "longship_tiny").name.startswith("longship_tiny-2.0-")
    assert "has changed since the download" not in offline(clone, airgapped).stderr
    clone.set_up("update", env=clone.find)
    assert f"{lock_of(clone)} has changed since the download" in offline(clone, airgapped).stderr


def test_lock_that_does_not_fit_is_told(connected):
    clone = connected()
    clone.set_up("update", env=clone.find)
    (clone.root / "requirements/tiny.txt").write_text("longship_extra\n")
    done = clone.set_up("install", env=clone.find, check=False)
    is_told(done, f"{lock_of(clone)} does not match", "python3 set_up.py update")
    done = clone.set_up("update", env=clone.find)
    assert done.stdout == "longship-extra 1.0 added\nlongship-tiny 1.0 removed\n"
    text = lock_of(clone).read_text()
    lock_of(clone).write_text(text.replace("longship-extra==", "#"))
    done = clone.set_up("install", env=clone.find, check=False)
    is_told(done, f"{lock_of(clone)} does not have all of its packages", "git checkout -- ")
    lock_of(clone).write_text(re.sub("# python: .*", "# python: 3.7", text))
    done = clone.set_up("install", env=clone.find, check=False)
    is_told(done, "is for Python 3.7, but host has 3.", "python3 set_up.py update")


def test_package_that_is_not_the_pinned_one_is_not_installed(connected, found):
    clone = connected()
    clone.set_up("update", env=clone.find)
    write_wheel(found, "longship_tiny", "1.0", payload=1)
    shutil.rmtree(clone.scratch / "cache")  # as another person has none
    done = clone.set_up("install", env=clone.find, check=False)
    assert done.returncode == 1 and "sha256" in done.stderr
    assert not list(clone.scratch.glob("venv_*"))


@pytest.mark.slow  # test_pytorch_of_the_image_stays
def test_lock_leaves_to_the_image_what_it_has(connected, airgapped, fetcher, found, tmp_path):
    write_wheel(found, "needs_torch", "1.0", requires="torch>=2")
    write_wheel(found, "torch", "2.5", requires="cuda_of_several_gigabytes")
    write_wheel(tmp_path, "torch", "2.1+image")
    with zipfile.ZipFile(tmp_path / "torch-2.1+image-py3-none-any.whl") as torch:
        torch.extractall(tmp_path / "in image")
    binds = [
        f"{path}:/usr/lib/python3/dist-packages/{path.name}:ro"
        for path in (tmp_path / "in image").iterdir()
    ]
    more = f"[machines.local]\ncontainer.binds = {toml(binds)}\n"
    clone = connected(["pyyaml", "longship_tiny", "needs_torch"], "apptainer", more)
    (clone.root / "requirements/torch.txt").write_text("torch==2.5\n")
    (clone.root / "stacks/pytorch/stack.toml").write_text('torch = "requirements/torch.txt"\n')
    (clone.scratch / f"tools_{OWN}/uv").unlink()  # not to be seen inside
    shutil.copy(fetcher / "bin/uv", clone.scratch / f"tools_{OWN}/uv")
    write_wheel(found, "pyyaml", "99.0")
    clone.set_up("update", env={**clone.find, "PIP_NO_INDEX": "1"})
    names = re.findall(r"^([\w-]+)==", lock_of(clone).read_text(), re.MULTILINE)
    assert names == ["longship-tiny", "needs-torch", "pip"]
    clone.set_up("download", env=clone.find)
    lock_of(clone).unlink()
    clone.set_up("download", env=clone.find)  # asks the image itself
    assert not [*clone.wheelhouse.glob("*yaml*"), *clone.wheelhouse.glob("torch*")]
    offline(clone, airgapped)
    lists, record = (clone.wheelhouse / f"pytorch_{OWN}.{kind}" for kind in ("lock", "sha256"))
    before = hashlib.sha256(lists.read_bytes()).hexdigest()
    lists.write_text(lists.read_text() + "torch==2.5 --hash=sha256:0\n")
    after = hashlib.sha256(lists.read_bytes()).hexdigest()
    record.write_text(record.read_text().replace(before, after))
    done = offline(clone, airgapped, check=False)
    is_told(done, f"{lists} contains a second PyTorch", "set_up.py download --machine local")
    show = "import yaml, needs_torch, torch; print(torch.VERSION, yaml.__file__)"
    own, path = clone.container_run("python", "-c", show).stdout.split()
    assert own == "2.1+image" and path.startswith("/usr/lib/python3/")


@pytest.mark.slow  # test_pytorch_of_the_image_stays
def test_unknown_image_with_gpus_gets_no_second_pytorch(connected, found):
    write_wheel(found, "needs_torch", "1.0", requires="torch>=2")
    write_wheel(found, "torch", "2.5", requires="cuda_of_several_gigabytes")
    clone = connected(["needs_torch"])
    add_machine(clone)
    site = clone.root / "there/site.toml"
    site.write_text(site.read_text().replace('gpu = "cpu"', 'gpu = "cuda"'))
    (clone.root / "requirements/torch.txt").write_text("torch==2.5\n")
    (clone.root / "stacks/pytorch/stack.toml").write_text('torch = "requirements/torch.txt"\n')
    done = clone.set_up("download", "--machine", "there", env=clone.find)
    assert "excluding PyTorch: the image is expected to contain the build for cuda" in done.stderr
    assert wheel(clone, "needs_torch") and not list(clone.wheelhouse.glob("torch*"))
