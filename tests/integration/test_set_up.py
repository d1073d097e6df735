"""set_up.py install: complete or not there, whatever happens while it works."""

import base64
import contextlib
import functools
import http.server
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import zipfile

import pytest
from support import processes
from support.environments import SECRET, write_wheel
from support.git import make_upstream
from support.lab import is_told
from support.packages import HATCHLING
from support.repository import toml

SECONDS = 300  # what a test waits for at most


def use_uv(clone, uv=None):
    """Configure the installer uv, and put one where `set_up.py` keeps its own."""
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace('installer = "pip"', 'installer = "uv"'))
    if uv is not None:
        from lib.configuration.sites import own_arch

        tools = clone.scratch / f"tools_{own_arch()}"
        tools.mkdir(parents=True)
        shutil.copy(uv, tools / "uv")


@pytest.fixture
def clone(make_clone, tmp_path, uv):
    """Give a clone with nothing installed, for the runtime host and the quicker installer."""
    clone = make_clone(tmp_path, "host", ["longship_tiny"])
    use_uv(clone)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").symlink_to(uv)
    clone.environment = {**clone.environment, "PATH": f"{programs}:{processes.PATH}"}
    return clone


@pytest.fixture
def find(wheels):
    """Give the variables by which the packages made here are found, and nothing else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}


def venv_of(clone):
    """Give the link to the venv in use, or None."""
    found = list(clone.scratch.glob("venv_*64"))
    assert len(found) <= 1
    return found[0] if found else None


def left_over(clone):
    """Give what is neither the venv in use nor meant to stay."""
    in_use = os.path.realpath(venv_of(clone)) if venv_of(clone) else None
    venvs = [path for path in clone.scratch.glob("venvs/*") if str(path) != in_use]
    return venvs + list(clone.scratch.glob("*.lock*")) + list(clone.scratch.glob("*.partial*"))


def version(clone):
    return clone.container_run("longship_tiny").stdout.strip()


def wait_until(condition, process=None):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.root
def test_packages_are_installed(clone, find):
    done = clone.set_up("install", env=find)
    assert version(clone) == "1.0"
    assert "next: python3 container_run.py python preprocess_data.py" in done.stderr
    assert left_over(clone) == []
    assert re.fullmatch(r"venv_pytorch_(amd64|arm64)", venv_of(clone).name)


@pytest.mark.root
def test_second_run_does_nothing_again(clone, find):
    clone.set_up("install", env=find)
    before = os.readlink(venv_of(clone))
    done = clone.set_up("install", env={"PIP_NO_INDEX": "1"})  # nothing could be installed
    assert os.readlink(venv_of(clone)) == before
    assert "up to date" in done.stderr and "[1/4]" not in done.stderr


def test_venvs_of_another_architecture_stay(clone, find):
    venvs = clone.scratch / "venvs"
    for name, base in (("other-20260101T000000-a", "host"), ("other-unfinished", None)):
        (venvs / name).mkdir(parents=True)
        if base:
            (venvs / name / "longship-base").write_text(base)
        os.utime(venvs / name, (0, 0))
    clone.set_up("install", env=find)
    assert {"other-20260101T000000-a", "other-unfinished"} <= {
        each.name for each in venvs.iterdir()
    }


def test_change_of_an_included_requirements_file_is_seen(clone, find, wheels, tmp_path):
    clone.set_up("install", env=find)
    file = clone.root / "requirements/tiny.txt"
    file.write_text("-r more.txt\n" + file.read_text())
    (clone.root / "requirements/more.txt").write_text("pip\n")
    assert "up to date" not in clone.set_up("install", env=find).stderr
    assert "up to date" in clone.set_up("install", env=find).stderr
    with open(clone.root / "requirements/more.txt", "a") as more:
        more.write("# a change\n")
    assert "up to date" not in clone.set_up("install", env=find).stderr


def test_mode_can_be_left_out(clone, find):
    clone.set_up(env=find)
    assert version(clone) == "1.0"


def test_changed_requirements_are_installed_beside_what_is_in_use(clone, find, wheels, tmp_path):
    clone.set_up("install", env=find)
    old = os.path.realpath(venv_of(clone))
    newer = tmp_path / "wheels"
    newer.mkdir()
    write_wheel(newer, "longship_tiny", "2.0")
    write_wheel(newer, "pip", "99.0")
    (clone.root / "requirements/tiny.txt").write_text("longship_tiny==2.0\n")
    clone.set_up("install", env={**find, "PIP_FIND_LINKS": str(newer)})
    assert version(clone) == "2.0"
    # what runs keeps the packages that it started with
    done = processes.run([f"{old}/bin/longship_tiny"], env=clone.environment)
    assert done.stdout == "1.0\n"


@pytest.mark.slow  # as the one before
def test_replaced_venv_stays_for_the_jobs_that_use_it_however_old_it_is(clone, find):
    clone.set_up("install", env=find)
    old = os.path.realpath(venv_of(clone))
    long_ago = time.time() - 60 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    (clone.root / "requirements/tiny.txt").write_text("longship_tiny==1.0\n")
    clone.set_up("install", env=find)
    assert os.path.realpath(venv_of(clone)) != old
    assert os.path.exists(f"{old}/bin/longship_tiny")


def test_venv_that_was_replaced_long_ago_is_removed(clone, find):
    clone.set_up("install", env=find)
    old = os.path.realpath(venv_of(clone))
    (clone.root / "requirements/tiny.txt").write_text("longship_tiny==1.0\n")
    clone.set_up("install", env=find)
    long_ago = time.time() - 60 * 24 * 3600
    for path in (old, f"{old}/longship-base"):
        os.utime(path, (long_ago, long_ago))
    (clone.root / "requirements/tiny.txt").write_text("longship_tiny>=1.0\n")
    clone.set_up("install", env=find)
    assert not os.path.exists(old)
    assert version(clone) == "1.0"


@pytest.mark.slow  # as the two before
def test_another_stacks_venv_is_left_alone(clone, find):
    clone.set_up("install", env=find)
    link = venv_of(clone)
    unfinished = link.parent / "venvs" / f"{link.name[len('venv_') :]}-20200101T000000-0"
    unfinished.mkdir()
    long_ago = time.time() - 60 * 24 * 3600
    for path in (os.path.realpath(link), unfinished):
        os.utime(path, (long_ago, long_ago))
    for name in ("other", "pytorch-b"):
        (clone.root / "stacks" / name).mkdir()
        (clone.root / "stacks" / name / "stack.toml").write_text("")
        clone.set_up("install", "--stack", name, env=find)
        assert unfinished.is_dir() and version(clone)
    (clone.root / "requirements/tiny.txt").write_text("longship_tiny==1.0\n")
    clone.set_up("install", env=find)
    assert not unfinished.exists()
    assert len({os.path.realpath(each) for each in link.parent.glob("venv_*64")}) == 3


@pytest.mark.parametrize("text", ["longship_none\n", "longship_tiny==9\n"])
def test_failure_shows_why_and_leaves_what_was_in_use(text, clone, find):
    clone.set_up("install", env=find)
    (clone.root / "requirements/tiny.txt").write_text(text)
    done = clone.set_up("install", env=find, check=False)
    assert done.returncode == 1
    assert text.split("=")[0].strip().replace("_", "-") in done.stderr  # uv's words
    assert "error: cannot install the packages into " in done.stderr
    assert version(clone) == "1.0"
    assert left_over(clone) == []


def test_missing_requirements_file_is_told(clone, find):
    (clone.root / "requirements/tiny.txt").unlink()
    done = clone.set_up("install", env=find, check=False)
    assert done.returncode == 1
    assert f"requirements file not found: {clone.root}/requirements/tiny.txt" in done.stderr
    assert left_over(clone) == []


@pytest.mark.parametrize(
    ("word", "meant"), [("instal", "install"), ("isntall", "install"), ("downlod", "install")]
)
def test_wrong_mode_is_an_error_and_never_the_default(word, meant, clone):
    done = clone.set_up(word, check=False)
    assert done.returncode == 2
    assert word in done.stderr and meant in done.stderr
    assert not clone.scratch.exists()


def test_dry_run_changes_nothing_and_needs_no_program(clone):
    done = clone.set_up("install", "--dry-run", env={"PATH": "/nothing"})
    assert done.stdout.startswith("#!/usr/bin/env bash\n# Longship: set_up.py install")
    assert not clone.scratch.exists()


def test_dry_run_is_what_is_run(clone, find, tmp_path, run):
    script = tmp_path / "script"
    script.write_text(clone.set_up("--dry-run").stdout)
    run(["bash", script], env={**clone.environment, **find})
    assert version(clone) == "1.0"
    assert "up to date" in clone.set_up("install", env=find).stderr


def test_secret_is_in_no_script(clone):
    done = clone.set_up(
        "--dry-run", env={"HF_TOKEN": SECRET, "PIP_INDEX_URL": f"https://{SECRET}@x"}
    )
    assert SECRET not in done.stdout


# Interruptions

# A package that takes long to install: pip waits for this index, which never answers.
SILENT = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
print("asked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stuck(clone):
    """Give an installation that is in the middle of installing packages, and stays there."""
    server = processes.start(
        [shutil.which("python3"), "-c", SILENT], env=clone.environment, stdin=subprocess.PIPE
    )
    port = server.stdout.readline().strip()
    env = {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple", "PIP_FIND_LINKS": ""}
    env |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PIP_CONFIG_FILE": "/dev/null"}
    process = clone.start("set_up.py", "install", env=env, cwd=clone.root)
    assert server.stdout.readline() == "asked\n"
    yield process
    processes.end_group(process)
    process.communicate()
    processes.end_group(server)
    server.communicate()


def test_ctrl_c_names_the_step_and_the_next_call_works(stuck, clone, find):
    os.killpg(stuck.pid, signal.SIGINT)
    _, errors = stuck.communicate(timeout=SECONDS)
    assert stuck.returncode == 130
    assert "error: interrupted in step 2/4, Installing the packages" in errors
    assert "hint: no work is lost; resume with: python3 set_up.py install" in errors
    assert "Traceback" not in errors.split("error: interrupted")[1]
    assert venv_of(clone) is None
    assert left_over(clone) == []
    clone.set_up("install", env=find)
    assert version(clone) == "1.0"


def test_end_of_a_job_leaves_nothing(stuck, clone):
    os.killpg(stuck.pid, signal.SIGTERM)
    stuck.communicate(timeout=SECONDS)
    assert stuck.returncode != 0
    assert venv_of(clone) is None
    assert left_over(clone) == []


def test_killed_installation_is_completed_by_the_next_call(stuck, clone, find):
    half = list(clone.scratch.glob("venvs/*"))
    assert len(half) == 1
    processes.end_group(stuck)
    stuck.communicate()
    assert half[0].exists() and venv_of(clone) is None
    done = clone.set_up("install", env=find)
    assert "taking over the lock" in done.stderr
    assert version(clone) == "1.0"
    assert left_over(clone) == []


@pytest.mark.parametrize("runtime", ["host", pytest.param("apptainer", marks=pytest.mark.slow)])
def test_two_at_once_install_once(runtime, uv, make_clone, find, tmp_path):
    clone = make_clone(tmp_path, runtime, ["longship_tiny"])
    use_uv(clone, uv)
    both = [clone.start("set_up.py", "install", env=find, cwd=clone.root) for _ in range(2)]
    errors = [process.communicate(timeout=SECONDS)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert sorted("[2/4]" in each for each in errors) == [False, True]
    waited = next(each for each in errors if "[2/4]" not in each)
    assert "up to date" in waited
    assert version(clone) == "1.0"
    assert left_over(clone) == []


def test_two_updates_at_once(make_clone, find, uv, tmp_path):
    """Both lock the packages, which the second one finds unchanged."""
    clone = make_clone(tmp_path, "apptainer", ["longship_tiny"])
    use_uv(clone, uv)
    both = [clone.start("set_up.py", "update", env=find, cwd=clone.root) for _ in range(2)]
    errors = [process.communicate(timeout=SECONDS)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert left_over(clone) == []
    (lock,) = (clone.root / "requirements").glob("*.lock")
    assert "longship_tiny==1.0" in lock.read_text().replace("-", "_")
    assert not list(clone.root.glob("requirements/*.lock.*"))


# Full and read-only disks


def use_scratch(clone, folder):
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace(toml(clone.scratch), toml(folder)))
    clone.scratch = folder


@pytest.mark.root
@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.slow)])
def test_full_scratch_is_told_and_left_clean(installer, clone, find, small_disk, wheels, tmp_path):
    use_scratch(clone, small_disk(4))
    if installer == "pip":
        text = (clone.root / "configuration.toml").read_text()
        clone.configure(text.replace('installer = "uv"', 'installer = "pip"'))
    large = tmp_path / "wheels"
    shutil.copytree(wheels, large)
    write_wheel(large, "longship_tiny", "2.0", payload=8)
    done = clone.set_up("install", env={**find, "PIP_FIND_LINKS": str(large)}, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ") and f"{clone.scratch}/venvs/" in error
    assert hint.startswith("hint: ")
    assert venv_of(clone) is None
    assert left_over(clone) == []


@pytest.mark.root
def test_read_only_scratch_is_told(clone, find, read_only_folder):
    use_scratch(clone, read_only_folder)
    done = clone.set_up("install", env=find, check=False)
    assert done.returncode == 1
    assert f"error: cannot use the directory {read_only_folder}/" in done.stderr
    assert done.stderr.count("\n") == 2


# Installers


@pytest.mark.parametrize("runtime", [pytest.param("host", marks=pytest.mark.slow), "apptainer"])
def test_uv_installs_from_pips_folders(runtime, uv, make_clone, wheels, tmp_path):
    clone = make_clone(tmp_path, runtime, ["longship_tiny"])
    use_uv(clone, uv)
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = clone.set_up("install", env=env)
    assert "longship-tiny==1.0" in done.stderr  # uv's way to say it
    assert version(clone) == "1.0"
    # without a pip of its own, `pip install` would be that of the host or of the image
    pip = clone.container_run("python", "-c", "import pip; print(pip.__file__)").stdout
    assert pip.startswith(os.path.realpath(venv_of(clone)))
    assert "up to date" in clone.set_up("install", env=env).stderr


@pytest.mark.slow  # tests/packages/test_packages.py
def test_uv_that_cannot_be_had_is_told(make_clone, find, tmp_path):
    clone = make_clone(tmp_path, "host", ["longship_tiny"])
    use_uv(clone)
    done = clone.set_up("install", env=find, check=False)  # no index: uv is not there
    error, hint = done.stderr.splitlines()[-2:]
    assert (done.returncode, error) == (1, "error: cannot install uv")
    assert "No matching distribution found for uv" in done.stderr and "installer = " in hint
    assert not list(clone.scratch.glob("tools_*/*"))


@pytest.mark.slow  # test_container_run.py, and PyTorch below
def test_packages_of_the_image_stay_in_sight(make_clone, find, tmp_path):
    clone = make_clone(tmp_path, "apptainer", ["longship_tiny"])
    clone.set_up("install", env=find)  # with pip
    python = "import longship_tiny, yaml; print(longship_tiny.__file__); print(yaml.__file__)"
    own, image = clone.container_run("python", "-c", python).stdout.splitlines()
    assert own.startswith(str(clone.scratch))
    assert not image.startswith(str(clone.scratch))


# PyTorch


@pytest.fixture
def with_torch(clone, find, wheels, tmp_path):
    """Give a clone whose stack wants torch==1.0, which a wheel made here stands for."""
    own = tmp_path / "wheels"
    shutil.copytree(wheels, own)
    version = "import sys; print('cp%d%d' % sys.version_info[:2])"
    python = processes.run(["python3", "-c", version], env=clone.environment).stdout.strip()
    for number in ("1.0", "2.0"):
        write_wheel(own, "torch", number, f"{python}-none-any")
    (clone.root / "requirements/torch.txt").write_text("torch==1.0\n")
    stack = clone.root / "stacks/pytorch/stack.toml"
    stack.write_text('torch = "requirements/torch.txt"\n')
    return clone, {**find, "PIP_FIND_LINKS": str(own)}


def test_pytorch_is_installed_where_there_is_none(with_torch):
    clone, env = with_torch
    clone.set_up("install", env=env)
    show = ["python", "-c", "import torch; print(torch.VERSION)"]
    assert clone.container_run(*show).stdout == "1.0\n"


def test_changed_version_of_pytorch_is_installed(with_torch):
    clone, env = with_torch
    clone.set_up("install", env=env)
    (clone.root / "requirements/torch.txt").write_text("torch==2.0\n")
    clone.set_up("install", env=env)
    show = ["python", "-c", "import torch; print(torch.VERSION)"]
    assert clone.container_run(*show).stdout == "2.0\n"


def test_venv_that_the_site_has_purged_is_made_again(clone, find):
    clone.set_up("install", env=find)
    shutil.rmtree(clone.scratch / "venvs")  # the link stays
    clone.set_up("install", env=find)
    assert version(clone) == "1.0"


def test_pytorch_of_the_image_stays(make_clone, find, wheels, tmp_path):
    """uv would not see it, and look for its version where no such build is."""
    own = tmp_path / "wheels"
    shutil.copytree(wheels, own)
    write_wheel(own, "needs_torch", "1.0", requires="torch>=2")
    write_wheel(own, "torch", "2.5", requires="cuda_of_several_gigabytes")
    in_image = tmp_path / "in image"
    write_wheel(tmp_path, "torch", "2.1+image")
    with zipfile.ZipFile(tmp_path / "torch-2.1+image-py3-none-any.whl") as wheel:
        wheel.extractall(in_image)
    packages = "/usr/lib/python3/dist-packages"
    binds = [f"{path}:{packages}/{path.name}:ro" for path in in_image.iterdir()]
    more = f'[machines.local]\ncontainer.binds = {toml(binds)}\npackages.installer = "uv"\n'
    clone = make_clone(tmp_path / "clone", "apptainer", ["needs_torch"], more)
    (clone.root / "requirements/torch.txt").write_text("torch==2.5\n")
    (clone.root / "stacks/pytorch/stack.toml").write_text('torch = "requirements/torch.txt"\n')
    done = clone.set_up("install", env={**find, "PIP_FIND_LINKS": str(own)})
    assert "keeping the image's own PyTorch 2.1+image" in done.stderr
    show = "import needs_torch, torch; print(torch.VERSION, needs_torch.VERSION)"
    assert clone.container_run("python", "-c", show).stdout == "2.1+image 1.0\n"
    assert clone.container_run("sh", "-c", "command -v pip").stdout.startswith(str(clone.scratch))


class PrivateIndex(http.server.SimpleHTTPRequestHandler):
    """Shows a directory of packages to those who log in."""

    def send_head(self):
        login = base64.b64encode(f"me:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {login}":
            return super().send_head()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def private_index(tmp_path):
    """Give host and port of an index with a login, which has longship_private."""
    folder = tmp_path / "index/simple/longship-private"
    folder.mkdir(parents=True)
    write_wheel(folder, "longship_private", "1.0")
    handler = functools.partial(PrivateIndex, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_login_of_an_index_is_kept_as_the_name_of_its_variable(clone, wheels, private_index):
    login, index = "me:${INDEX_TOKEN}@", f"{private_index}/simple"
    requirements = clone.root / "requirements/tiny.txt"
    requirements.write_text(f"--index-url http://{login}{index}\nlongship_private\n")
    env = {"PIP_FIND_LINKS": str(wheels), "INDEX_TOKEN": SECRET}
    assert "the login of" not in clone.set_up("update", env=env).stderr
    (lock,) = clone.root.glob("requirements/*.lock")
    assert f"--index-url http://{login}{index}\n" in lock.read_text()
    assert SECRET not in lock.read_text()
    shutil.rmtree(clone.scratch / "cache/uv")  # that of another member of the group
    clone.set_up("install", env=env)
    assert clone.container_run("longship_private").stdout == "1.0\n"
    done = clone.set_up("install", "--force", env={**env, "INDEX_TOKEN": ""}, check=False)
    is_told(done, f"the variable INDEX_TOKEN of {requirements} is not set", "export INDEX_TOKEN=")

    requirements.write_text(f"--index-url http://me:{SECRET}@{index}\nlongship_private\n")
    done = clone.set_up("update", env=env)
    assert f"does not contain the login of --index-url http://{index}:" in done.stderr
    assert "${VARIABLE}" in done.stderr and SECRET not in done.stdout + done.stderr
    assert SECRET not in lock.read_text()


@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.slow)])
def test_source_that_a_repository_names_is_not_ignored(installer, clone, wheels, tmp_path):
    """longship_tiny is to be taken from a commit; that of the index is another package."""
    modern = make_upstream(tmp_path / "modern", clone.environment)
    sources = 'Longship_Tiny = { git = "https://a.org/x" }\nunused = { path = "x" }\n'
    modern.write("src/modern/__init__.py", "")
    modern.write("pyproject.toml", f"{HATCHLING}\n[tool.uv.sources]\n{sources}")
    modern.commit("second")
    text = (clone.root / "configuration.toml").read_text()
    text = text.replace('installer = "uv"', f'installer = "{installer}"')
    clone.configure(f"{text}\n[[repositories]]\nurl = {toml(modern.folder.as_uri())}\n")
    env = {"PIP_FIND_LINKS": str(wheels)}
    requirements = clone.root / "requirements/tiny.txt"
    requirements.write_text("")
    for mode in ("update", "install"):
        done = clone.set_up(mode, env=env, check=False)
        assert done.returncode == 1
        assert "modern/pyproject.toml takes longship-tiny from [tool.uv.sources]" in done.stderr
        assert venv_of(clone) is None and not list(clone.root.glob("requirements/*.lock"))
    requirements.write_text("longship_tiny\n")
    clone.set_up("install", env=env)


def test_nothing_stays_running(clone, find):
    """The sign of life of the lock ends with the installation."""
    process = clone.start("set_up.py", "install", env=find, cwd=clone.root)
    process.communicate(timeout=SECONDS)

    def nothing_is_left():
        with contextlib.suppress(subprocess.CalledProcessError):
            command = ["ps", "-o", "args=", "-s", str(process.pid)]
            return not subprocess.check_output(command, text=True).strip()
        return True

    wait_until(nothing_is_left)
