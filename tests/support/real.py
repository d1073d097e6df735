"""Real containers, networks and disks for the integration tests.

What takes long to make is made once per user and kept under ``$LONGSHIP_TEST_CACHE`` (default
``~/.cache/longship-tests``); the folder may be deleted at any time. Nothing here needs root, except
the docker daemon and the Slurm cluster.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support import cache, processes
from support.inside import Inside
from support.repository import toml

SERVERS = Path(__file__).resolve().parents[1] / "integration/servers"

# A small Debian stands for the images that the sites use: a Python with pip and venv, and a package
# (yaml) that only the image has. Documentation is left out, as every test image carries it along.
IMAGE_PACKAGES = "python3,python3-venv,python3-pip,python3-yaml"
SMALL = (
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)


@pytest.fixture(scope="session")
def session_environment(tmp_path_factory):
    """Give the clean environment for what is made once per session."""
    return processes.make_environment(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def base_tar(make_root_tar):
    """Give the root file system of a small Debian as a tar file, that of this machine's suite."""
    return make_root_tar("base", IMAGE_PACKAGES)


@pytest.fixture(scope="session")
def make_root_tar(root, require, session_environment, tmp_path_factory):
    """Give a function that makes the root file system of a small Debian, as a tar file.

    Its packages come from the source that this machine's own packages come from.
    """
    return lambda *given: _make_root_tar(
        root, require, session_environment, tmp_path_factory, *given
    )


def _make_root_tar(
    root, require, session_environment, tmp_path_factory, name, packages, suite=None
):
    require("mmdebstrap")
    ask = ["bash", root / "tests/install_tools.sh", "--source"]
    source = processes.run(ask, env=session_environment).stdout
    if not source:
        pytest.skip("needs a Debian or Ubuntu, whose package source the test image is made from")
    own_suite = _suite(source)
    if suite:
        source = re.sub(r"(?m)^Suites: .*", f"Suites: {suite}", source)
        source = source.replace(f" {own_suite} ", f" {suite} ")
    suite = suite or own_suite
    # `apt` of the machine may need a proxy; mmdebstrap's own does not read the machine's settings.
    settings = processes.run(["apt-config", "dump", "Acquire::http"], env=session_environment)
    options = [
        *(f"--aptopt={line}" for line in settings.stdout.splitlines() if not line.endswith('"";')),
        *("--variant=minbase", f"--include={packages}", *SMALL),
        # a mirror of Debian's unstable suite may be late
        *(['--aptopt=Acquire::Check-Valid-Until "false"'] if suite != own_suite else []),
    ]

    def build(partial):
        form = ".sources" if "Suites:" in source else ".list"
        source_file = tmp_path_factory.mktemp("source") / f"machine{form}"
        source_file.write_text(source)
        mode = "root" if os.geteuid() == 0 else "unshare"
        command = ["mmdebstrap", f"--mode={mode}", "--format=tar", *options, suite, partial]
        # In mode unshare it works under other user ids, which must be able to enter the folder.
        with tempfile.TemporaryDirectory(prefix="longship-tests-") as folder:
            os.chmod(folder, 0o755)
            environment = {**session_environment, "TMPDIR": folder}
            processes.run([*command, source_file], env=environment, cwd="/", timeout=600)

    return cache.cached(f"{name}-{cache.fingerprint(source, options)}.tar", build)


def pack_image(base_tar, file, environment, change=lambda folder: None):
    """Make an Apptainer image of the small Debian, after a change of its unpacked files."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="unpacked-") as folder:
        # No device nodes: an ordinary user may not make them, and the runtime brings its own.
        unpack = ["tar", "--extract", "--exclude=./dev/*", "--file", base_tar, "-C", folder]
        processes.run(unpack, env=environment)
        change(Path(folder))
        # lz4 packs three times as fast as the default; the image is a little larger.
        pack = ["apptainer", "build", "--mksquashfs-args=-comp lz4", file, folder]
        processes.run(pack, env=environment, timeout=600)
        processes.run(["chmod", "-R", "u+w", folder], env=environment)


@pytest.fixture(scope="session")
def base_image(require, base_tar, session_environment):
    """Give an Apptainer image of the small Debian. Do not change it: copy it first."""
    require("apptainer")

    return cache.cached(
        f"{base_tar.stem}.sif", lambda partial: pack_image(base_tar, partial, session_environment)
    )


@pytest.fixture(scope="session")
def docker_environment(require, session_environment):
    """Give the clean environment with a docker daemon in it.

    It is the daemon that DOCKER_HOST names, or the machine's own. Root starts one if none answers.
    """
    require("docker")
    environment = dict(session_environment)
    if "DOCKER_HOST" in os.environ:
        environment["DOCKER_HOST"] = os.environ["DOCKER_HOST"]
    answer = processes.run(["docker", "version"], env=environment, check=False)
    if answer.returncode == 0:
        yield environment
        return
    # Not in pytest's folder: a socket's path must be short.
    folder = tempfile.mkdtemp(prefix="longship-docker-")
    server = [SERVERS / "dockerd.sh"]
    subprocess.run([*server, "start", folder, "root"], stdout=subprocess.DEVNULL, check=True)
    try:
        yield {**environment, "DOCKER_HOST": f"unix://{folder}/socket"}
    finally:
        subprocess.run([*server, "stop", folder], check=True)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def docker_image(base_tar, docker_environment):
    """Give a function that makes the small Debian known to docker under a tag, as NAME:VERSION."""
    names = []

    def make(tag):
        if not names:
            names.append(f"longship-tests:{base_tar.stem}")
            find = ["docker", "image", "inspect", names[0]]
            if processes.run(find, env=docker_environment, check=False).returncode != 0:
                load = ["docker", "import", "--change", 'CMD ["bash"]', base_tar, names[0]]
                processes.run(load, env=docker_environment)
        processes.run(["docker", "tag", names[0], tag], env=docker_environment)
        return tag

    return make


@pytest.fixture(scope="session")
def podman_environment(require, tmp_path_factory):
    """Give a clean environment with settings for podman that work on any machine.

    Images are kept in the cache. The rest are limits of containers and virtual machines in which
    tests run: crun needs a cgroup of its own, systemd is not there, the limits of open files and
    processes may not be raised.
    """
    require("podman")
    # Fixed folders: podman writes their paths into its database and insists on them.
    folder = cache.cache_folder() / "podman"
    for name in ("images", "run", "runtime"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    home = tmp_path_factory.mktemp("podman")
    environment = processes.make_environment(home)
    environment["XDG_RUNTIME_DIR"] = str(folder / "runtime")
    # In the home folder and not by CONTAINERS_STORAGE_CONF: podman 4 does not pass that on to the
    # process that cleans up after a container, and then waits 20 s for it at the end of each run.
    settings = home / ".config/containers"
    settings.mkdir(parents=True)
    (settings / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    images = toml(folder / "images")
    (settings / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = {toml(folder / "run")}\n'
        f"graphroot = {images}\nrootless_storage_path = {images}\n"
    )
    yield environment
    # podman keeps a process that holds its user namespace; this is how it is ended.
    processes.run(["podman", "system", "migrate"], env=environment, check=False)


@pytest.fixture(scope="session")
def podman_image(base_tar, podman_environment):
    """Give a function that makes the small Debian known to podman under a tag, as NAME:VERSION."""
    names = []

    def make(tag):
        with cache.locked("podman"):
            if not names:
                names.append(f"localhost/longship-tests:{base_tar.stem}")
                find = ["podman", "image", "exists", names[0]]
                if processes.run(find, env=podman_environment, check=False).returncode != 0:
                    prune = ["podman", "image", "prune", "--all", "--force"]  # those of other weeks
                    processes.run(prune, env=podman_environment)
                    load = ["podman", "import", "--change", "CMD=bash", base_tar, names[0]]
                    processes.run(load, env=podman_environment)
            processes.run(["podman", "tag", names[0], tag], env=podman_environment)
        return tag

    return make


@pytest.fixture
def airgapped(require):
    """Give a function that puts a command in front: no network but loopback.

    The user stays who he is. Apptainer runs images inside, and builds from archives; for a %post
    section it needs ``--ignore-subuid``, as newuidmap cannot give out ranges of user ids inside of
    a user namespace. For the same reason podman does not work inside.
    """
    require("namespaces")
    # The capability to bring loopback up is needed once; the command itself gets none.
    script = 'ip link set lo up && exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"'
    unshare = ["unshare", "--user", "--map-current-user", "--keep-caps", "--net"]
    return lambda argv: [*unshare, "sh", "-c", script, "airgapped", *argv]


@pytest.fixture
def small_disk(require, tmp_path, clean_environment):
    """Give a function that makes a file system of so many megabytes and returns its empty folder.

    It is an ext4 in a file, mounted through FUSE: full is full for every program of this user.
    """
    require("fuse")
    mounted = []

    def make(megabytes, name="small disk ", options="rw"):
        folder = tmp_path / f"{name}{len(mounted)}"
        folder.mkdir()
        disk = folder.with_suffix(".ext4")
        with open(disk, "wb") as file:
            file.truncate(megabytes * 1024 * 1024)
        owner = f"root_owner={os.getuid()}:{os.getgid()}"
        # Without a journal, which fuse2fs would not use anyway.
        journal = ["-O", "^has_journal"]
        mke2fs = ["mke2fs", "-q", "-t", "ext4", "-m", "0", *journal, "-E", owner, disk]
        processes.run(mke2fs, env=clean_environment)
        mount = ["fuse2fs", "-o", f"fakeroot,{options}", disk, folder]
        processes.run(mount, env=clean_environment)
        mounted.append(folder)
        (folder / "lost+found").rmdir()
        return folder

    def is_unmounted(folder):  # what the test has ended may still be about to leave it
        done = processes.run(["fusermount3", "-u", folder], env=clean_environment, check=False)
        return done.returncode == 0

    yield make
    for folder in mounted:
        processes.wait_until(lambda folder=folder: is_unmounted(folder))


@pytest.fixture(scope="session")
def inside(root, session_environment, tmp_path_factory):
    """Give ``inside(*argv)``, which runs a command in the environment that set_up.py made.

    The environment is kept in the cache, so that PyTorch is installed once per set of requirements.
    """
    requirements = {path for path in root.glob("requirements/*.txt") if path.stem != "test"}
    inputs = [*sorted(requirements), root / "stacks/pytorch/stack.toml"]
    name = f"inside-{cache.fingerprint(*inputs)}"
    folder = cache.cache_folder() / name
    configuration = tmp_path_factory.mktemp("inside") / "configuration.toml"
    configuration.write_text(
        "[paths]\n"
        f"project_dir = {toml(folder / 'project')}\n"
        f"scratch_dir = {toml(folder / 'scratch')}\n"
        '[container]\nruntime = "host"\n'
    )
    environment = {
        **session_environment,
        "LONGSHIP_CONFIGURATION": str(configuration),
        "LONGSHIP_MACHINE": "local",
    }
    with cache.locked(name):
        install = [sys.executable, root / "set_up.py", "install"]
        processes.run(install, env=environment, timeout=900)
    return Inside(root, environment)


def _suite(source):
    """Give the first suite of a package source, in either of apt's two forms."""
    for line in source.splitlines():
        if line.startswith("Suites:"):
            return line.split()[1]
    words = source.split("]", 1)[-1].split() if "[" in source else source.split()[1:]
    return words[1]
