"""docs/how-to/air_gap.md, command by command: no network, and only what a bare machine has.

The target machine is a root file system of its own, a small Debian, in a network namespace with
nothing but loopback. It has bash, coreutils and python3; if a test says so, Apptainer or git too.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from support import cache, processes
from support.documentation import read
from support.environments import write_wheel
from support.git import Repository
from support.packages import HATCHLING
from support.repository import Clone, toml

from lib.configuration.sites import own_arch

pytestmark = [
    pytest.mark.needs("namespaces", "mmdebstrap"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the test image is for amd64"),
]
PAGE = "docs/how-to/air_gap.md"
HOME = "/home/newcomer"
PROJECT = "/e/project1/my-account"  # of the page: there the home directory
PROGRAMS = {
    "apptainer": ("apptainer", "squashfuse*", "fuse*", "mksquashfs", "unsquashfs"),
    "git": ("git",),
}
LIBRARIES = sysconfig.get_config_var("MULTIARCH") or ""
# Own mounts, processes and network; then the root file system takes the place of this machine's,
# not by chroot: Apptainer could make no user namespace in one.
UNSHARE = ("unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "--net", "--")
ENTER = """\
set -e
root=$1 home=$2
shift 2
ip link set lo up
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$home" "$root/home/newcomer"
for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for each in $PROGRAMS; do
  mkdir -p "$root${each%/*}"
  if [ -d "$each" ]; then mkdir -p "$root$each"; else : >>"$root$each"; fi
  mount --bind "$each" "$root$each"
done
cd "$root"
pivot_root . before
umount -l /before
cd "$HOME"
exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"
"""
TRAIN = (
    *("--layers", "1", "--heads", "2", "--width", "32", "--sequence-length", "32"),
    *("--batch-size", "4", "--device", "cpu", "--no-compile", "--warmup-steps", "5"),
    *("--run-name", "run", "--steps", "3", "--checkpoint-every", "3"),
)


def sections():
    """Give the text of each numbered section of the page."""
    return dict(re.findall(r"^## (\d)\. (.*?)(?=^## |\Z)", read(PAGE), re.DOTALL | re.MULTILINE))


def shown(section, language="bash"):
    """Give the lines of the blocks of a section."""
    text = "".join(re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
    return text.splitlines()


class Target:
    """A machine that one enters as a user does who has just logged in."""

    def __init__(self, root, home, programs=()):
        self.root, self.home = root, home
        home.mkdir()
        self.environment = {"HOME": HOME, "USER": "newcomer", "PATH": "/usr/bin:/bin"}
        places = [Path("/usr/lib", LIBRARIES)] if programs else []
        for name in programs:
            for pattern in PROGRAMS[name]:
                places += Path("/usr/bin").glob(pattern)
            places += [Path(each, name) for each in ("/etc", "/var/lib", "/usr/lib", "/usr/share")]
        if "git" in programs:
            places += [Path("/usr/lib/git-core"), Path("/usr/share/git-core")]
        found = [str(each) for each in places if each.exists()]
        given = f"PROGRAMS={' '.join(found)}", f"HOME={HOME}", f"PATH={processes.PATH}"
        self.enter = ["env", *given, *UNSHARE]

    def type(self, line, folder=HOME, **options):
        """Type a line there, in a folder."""
        script = ["sh", "-c", ENTER, "enter", self.root, self.home]
        clean = ["env", "-i", *(f"{name}={value}" for name, value in self.environment.items())]
        command = [*self.enter, *script, *clean, "bash", "-c", f"cd {folder} && {line}"]
        return processes.run(command, env=self.environment, timeout=600, **options)


def unpacked(tar):
    """Unpack a root file system, with the folders that a target machine mounts something on."""

    def build(partial):
        partial.mkdir()
        unpack = ["tar", "--extract", "--exclude=./dev/*", "--file", tar, "-C", partial]
        subprocess.run(unpack, check=True)
        for name in ("before", HOME[1:]):
            (partial / name).mkdir(parents=True)
        with open(partial / "etc/passwd", "a") as users:
            users.write(f"newcomer:x:{os.getuid()}:{os.getgid()}::{HOME}:/bin/bash\n")
        (partial / "etc/hosts").write_text("127.0.0.1 localhost\n")

    return cache.cached(f"target-{tar.stem}", build)


def slim(tar, path):
    """Write a root file system without what Python does not need; to pack it takes longest."""
    unneeded = re.compile(
        r"\./(dev|var|usr/share|usr/lib/[^/]+/(perl|gconv)|usr/lib/python3/dist-packages/p)"
    )
    with tarfile.open(tar) as whole, tarfile.open(path, "w") as part:
        for each in whole:
            if not unneeded.match(each.name):
                part.addfile(each, whole.extractfile(each) if each.isreg() else None)
    return path


@pytest.fixture
def laptop(root, tmp_path, registry, base_tar, container_settings, clean_environment, fetcher):
    """Give the connected machine: a clone, configured but for what the page itself shows."""
    registry.put("lab/base:1", ("amd64", slim(base_tar, tmp_path / "slim.tar")))
    home = container_settings(tmp_path / "home")
    clone = Clone(root, tmp_path / "a laptop/longship", clean_environment)
    (clone.root / ".venv").symlink_to(sys.prefix)
    tools = home / f"longship-data/scratch/tools_{own_arch()}"
    tools.mkdir(parents=True)
    (tools / "fetcher").symlink_to(fetcher)
    shutil.copy(root / ".gitignore", clone.root)
    clone.text = f"[container]\nimage = {toml(registry.name('lab/base:1'))}\n"
    clone.patch = None
    return clone


def use_small_packages(clone, folder):
    """Replace PyTorch and the packages by one of a few bytes."""
    folder.mkdir()
    write_wheel(folder, "longship_tiny", "1.0")
    clone.environment["PIP_FIND_LINKS"] = folder.as_uri()
    (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
    (clone.root / "requirements/environment.txt").write_text("longship_tiny\n")


def type_page(clone, target, stick, *, image=True, overlay=False, python=""):
    """Type every command of the page; give what the last one printed."""
    pages = sections()
    (*connected, there, _) = (pages[number] for number in "12345")
    assert "connected machine" in connected[0][:40] and "target machine" in there[:60]
    if python:
        lines = [
            f'python = "{python}"' if "python" in each else each
            for each in shown(connected[0], "toml")
        ]
        clone.text = "\n".join([*lines, ""])
    clone.configure(clone.text)
    own = Repository(clone.root, clone.environment)
    own.git("init", "--quiet", "--initial-branch=main")
    own.commit("the group's")
    skipped = () if image else ("build_container.py", "move_built")
    for line in (line for section in connected for line in shown(section)):
        line = line.replace("/media/stick", shlex.quote(str(stick)))
        line = line.replace(f" jpb:{PROJECT}", f" {shlex.quote(str(target.home))}")
        if not any(each in line for each in skipped):
            command = ["bash", "-c", line.replace("--machine jpb", "--machine local")]
            processes.run(command, env=clone.environment, cwd=clone.root, timeout=600)
    folder = HOME
    done, typed, told = None, [], []
    skipped += () if overlay else ("build_overlay.py",)
    for line in shown(there):
        if line.startswith("cd "):
            folder = os.path.join(folder, line.split()[1].replace(PROJECT, HOME))
        elif not any(each in line for each in skipped):
            typed.append(line.partition("#")[0].strip())
            done = target.type(line, folder)
            told += re.findall(r"^next: (.*)", done.stderr, re.MULTILINE)
            for word in ("Traceback", "warning:", "set_up.py install", " online"):
                assert word not in done.stderr, done.stderr
            if "unpack.sh longship-clone" in line:
                steps = told[1:]
    # unpack.sh names what the page shows
    assert steps[: len(typed) - 2] == typed[2:]
    return done


@pytest.mark.needs("apptainer", "registry", "skopeo")
def test_page_on_a_bare_machine_with_apptainer(laptop, base_tar, tmp_path):
    """With the default runtime, on machine `local`.

    The user's group has no name on the target, so Apptainer prints a warning at each start.
    """
    use_small_packages(laptop, tmp_path / "wheels")
    laptop.text += '[packages]\noverlay = "myenv"\n'
    target = Target(unpacked(base_tar), tmp_path / "target", ["apptainer"])
    type_page(laptop, target, tmp_path / "a stick", overlay=True)
    show = "import longship_tiny, os; print(longship_tiny.VERSION, os.environ['APPTAINER_NAME'])"
    run = f'python3 container_run.py python -c "{show}"'
    assert re.fullmatch(
        r"1\.0 base_1_amd64_\w+\.sif\n", target.type(run, "~/longship-clone").stdout
    )
    missing = target.type("python3 container_run.py missing", "~/longship-clone", check=False)
    assert "run: python3 build_overlay.py offline; or " in missing.stderr


@pytest.mark.slow
def test_page_on_a_bare_machine_without_a_runtime(laptop, make_root_tar, tmp_path):
    """Its Python is not that of the connected machine, and it has neither pip nor venv."""
    use_small_packages(laptop, tmp_path / "wheels")
    root = unpacked(make_root_tar("newest", "python3", "sid"))
    target = Target(root, tmp_path / "target")
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = target.type(f'python3 -c "{version}"').stdout.strip()
    assert python != f"{sys.version_info[0]}.{sys.version_info[1]}"
    type_page(laptop, target, tmp_path / "a stick", image=False, python=python)
    show = "import longship_tiny, sys; print(longship_tiny.VERSION, sys.prefix)"
    done = target.type(f'python3 container_run.py python -c "{show}"', "~/longship-clone")
    assert done.stdout.startswith(f"1.0 {HOME}/longship-data/scratch/venvs/"), done.stdout


@pytest.mark.slow
@pytest.mark.needs("apptainer", "registry", "skopeo", "rsync")
def test_page_to_a_training_run(laptop, base_tar, inside, root, tmp_path):
    """With PyTorch, and with a repository that has a patch, which git puts into its place."""
    upstream = Repository(tmp_path / "a server/modern", laptop.environment)
    upstream.folder.mkdir(parents=True)
    upstream.git("init", "-q", "--initial-branch=main")
    text = HATCHLING.replace('dependencies = ["longship_tiny"]', "dependencies = []")
    upstream.write("pyproject.toml", text)
    upstream.write("src/modern/__init__.py", "VALUE = 1\n")
    upstream.commit("first")
    upstream.git("tag", "v1")
    patch = laptop.root / "patches/modern/0001-value.patch"
    patch.parent.mkdir(parents=True)
    patch.write_text(
        "diff --git a/src/modern/__init__.py b/src/modern/__init__.py\n"
        "--- a/src/modern/__init__.py\n+++ b/src/modern/__init__.py\n"
        "@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 2\n"
    )
    (laptop.root / "requirements/environment.txt").write_text("numpy\ntensorboard\nmatplotlib\n")
    url = toml(f"file://{upstream.folder}")
    laptop.text += f'[[repositories]]\nurl = {url}\nref = "v1"\n'
    target = Target(unpacked(base_tar), tmp_path / "target", ["apptainer", "git"])
    type_page(laptop, target, tmp_path / "a stick")
    clone = "~/longship-clone"
    scratch = target.home / "longship-data/scratch"
    options = ("--data-dir", scratch / "data", "--max-megabytes", "0.3", "--vocab-size", "500")
    inside("python", root / "preprocess_data.py", *options)
    options = f"--data {HOME}/longship-data/scratch/data/corpus_text_document {' '.join(TRAIN)}"
    target.type("python3 container_run.py --launcher launch", clone)
    for run, name in ("python3 container_run.py", "first"), ("./launch", "second"):
        target.type(f"{run} python train.py {options} --checkpoint-dir ~/{name}", clone)
        lines = (target.home / name / "run/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    show = "import modern, torch; print(modern.VALUE, modern.__file__)"
    done = target.type(f'./launch python -c "{show}"', clone)
    file = f"{HOME}/longship-data/project/repos/modern/src/modern/__init__.py"
    assert done.stdout == f"2 {file}\n"
