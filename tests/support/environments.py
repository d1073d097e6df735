"""One clone with installed packages per runtime, made once, and clones of a test's own."""

import functools
import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from lib import ROOT
from lib.configuration.sites import own_arch
from support import cache, processes
from support.repository import Clone, toml

RUNTIMES = ("host", "apptainer", "docker", "podman")
IN_STORE = "docker://longship.example/lab/base:1"  # as an image that was pulled and tagged
SECRET = "hf_a_secret_that_nobody_may_see"

UV = [line for line in Path(ROOT, "lib/packages/inside/uv.txt").read_text().split("\n")[1:] if line]

# A value that a list of NAME=value,NAME=value or a careless shell would take apart.
AWKWARD = "a,b=c \"d\" 'e' $HOME ${x} `f` $(g) \\h\\n\ti;j&k|l*?\nsecond line\n\nÜ 世界\n"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Give a folder with wheels made here: longship_tiny, and a pip for where uv installs one."""
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "longship_tiny", "1.0")
    write_wheel(folder, "pip", "99.0")
    return folder


@pytest.fixture(scope="session")
def fetcher(session_environment):
    """Give a venv with pip, build and uv, which `set_up.py download` makes once on a machine."""
    wanted = ["pip>=24", "build>=1", *UV]

    def build(partial):
        processes.run(["python3", "-m", "venv", partial], env=session_environment)
        install = [partial / "bin/python", "-m", "pip", "install", "--quiet", "--upgrade"]
        processes.run([*install, *wanted], env=session_environment)

    return cache.cached(f"fetcher-{cache.fingerprint(wanted)}", build)


@pytest.fixture(scope="session")
def uv(fetcher):
    """Give a uv."""
    return fetcher / "bin/uv"


def write_wheel(folder, name, version, tag="py3-none-any", payload=0, requires="", data=""):
    """Write a wheel with a module, a console script, and text: of so many megabytes, and data."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'VERSION = "{version}"\n\ndef main():\n    print(VERSION)\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    if payload or data:
        files[f"{name}.txt"] = "0" * (payload << 20) + data
    record = ""
    for path, text in files.items():
        digest = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    with zipfile.ZipFile(
        folder / f"{name}-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED
    ) as wheel:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


@pytest.fixture(scope="session")
def make_clone(request, root, session_environment):
    """Give a function that makes a clone in a folder, configured for a runtime.

    `requirements` are those of the venv, which `set_up.py install` has yet to make; without any
    there is none.
    """

    def make(folder, runtime, requirements=(), more="", image=None, kind=Clone):
        environment = session_environment
        if runtime == "apptainer" and image is None:
            image = request.getfixturevalue("base_image")
        if runtime in ("docker", "podman"):
            image = image or IN_STORE
            environment = request.getfixturevalue(f"{runtime}_environment")
            tag = request.getfixturevalue(f"{runtime}_image")(f"longship/base_1:{own_arch()}_1_a")
        clone = kind(root, folder / "it's a clone", environment)
        clone.runtime = runtime
        clone.image = image
        clone.scratch = folder / "it's a scratch"
        if runtime in ("docker", "podman"):
            put_tag_in_use(clone.scratch, runtime, f"base_1_{own_arch()}", tag)
        file = clone.root / "requirements/tiny.txt"
        file.write_text("".join(f"{each}\n" for each in requirements))
        (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
        clone.configure(
            'machine = "local"\n'
            f"[paths]\nproject_dir = {toml(folder / 'the project')}\n"
            f"scratch_dir = {toml(clone.scratch)}\n"
            f"[container]\nruntime = {toml(runtime)}\nimage = {toml(image or '')}\n"
            f'[packages]\ninstaller = "pip"\n'
            f"requirements = {toml('requirements/tiny.txt' if requirements else '')}\n{more}"
        )
        return clone

    return make


def put_tag_in_use(scratch, runtime, name, tag):
    """Write what move_built_container_to_active.py leaves for an image in a store."""
    versions = scratch / "containers/versions"
    versions.mkdir(parents=True)
    (versions / f"{name}_1_a.{runtime}").write_text(f"{tag}\n")
    (scratch / f"containers/{name}.{runtime}").symlink_to(f"versions/{name}_1_a.{runtime}")


@pytest.fixture(scope="session")
def prepared(make_clone, wheels, tmp_path_factory):
    """Give a function that returns the clone of a runtime with its packages installed.

    It is made once; a test must leave it as it is.
    """

    @functools.cache
    def prepare(runtime):
        folder = tmp_path_factory.mktemp(f"prepared-{runtime}")
        more = f'[environment.set]\nAWKWARD = {toml(AWKWARD)}\nPLAIN = "1"\n'
        clone = make_clone(folder, runtime, ["longship_tiny==1.0"], more)
        find = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        clone.set_up("install", env=find)
        return clone

    return prepare


@pytest.fixture(params=RUNTIMES)
def clone(request, prepared):
    """Give the clone of each runtime with its packages installed; a test must leave it as it is."""
    return prepared(request.param)


@pytest.fixture(params=[each for each in RUNTIMES if each != "host"])
def contained(request, prepared):
    """The same, of the runtimes that have images."""
    return prepared(request.param)
