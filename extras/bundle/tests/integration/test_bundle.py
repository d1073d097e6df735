"""bundle.py: packed here, verified and unpacked there, by a user who has nothing but the bundle."""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import cache_from_source

import pytest
from support import processes
from support.lab import fill, is_told
from support.repository import Clone, toml
from support.tiers import slow

SECONDS = 300  # what a test waits for at most
OWN = ("local", "pytorch")  # site and stack
IMAGE = "containers/base_1_amd64.tar"
# What an unpacking may use: bash, coreutils and python3; git and pip are not there.
BARE = (
    *("bash", "python3", "basename", "cat", "chmod", "cmp", "cp", "cut", "date", "dd", "dirname"),
    *("head", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "readlink", "realpath", "rm", "rmdir"),
    *("sha256sum", "sleep", "sort", "stat", "tail", "touch", "tr", "true", "wc"),
)


class Place:
    """A clone with its history, the folder that the download modes fill, and a bundle's name."""

    def __init__(self, folder, environment, template=None):
        self.folder = folder
        self.environment = {**environment, "HOME": str(folder / "home")}
        self.root = folder / "it's a clone"
        self.offline = folder / "home/a scratch/offline"
        self.bundle = folder / "the bundle"
        if template:
            shutil.copytree(template.folder, folder, symlinks=True)
            return
        Clone(processes_root(), self.root, environment)
        # Each test copies it several times: other sites and stacks, and the pages, are left out.
        others = [*self.root.glob("*/site.toml"), *self.root.glob("stacks/*/stack.toml")]
        for path in (each.parent for each in others if each.parent.name not in OWN):
            shutil.rmtree(path)
        shutil.rmtree(self.root / "docs")
        (self.root / "configuration.toml").write_text(
            'machine = "local"\n[paths]\nproject_dir = "~/the project"\n'
            'scratch_dir = "~/a scratch"\n[container]\nruntime = "apptainer"\n'
            'image = "docker://longship.example/lab/base:1"\n'
            f"[packages]\nrequirements = {toml('requirements/tiny.txt')}\n"
        )
        (self.root / "requirements/tiny.txt").write_text("longship_tiny==1.0\n")

    def git(self, *arguments, root=None):
        identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        command = ["git", "-C", root or self.root, *identity, *arguments]
        return processes.run(command, env=self.environment).stdout

    def run(self, *arguments, wrap=lambda argv: argv, **options):
        command = wrap([sys.executable, self.root / "bundle.py", *arguments])
        return processes.run(command, env=self.environment, cwd=self.folder, **options)

    def pack(self, *arguments, **options):
        return self.run("pack", *arguments, self.bundle, **options)

    def verify(self, **options):
        return self.run("verify", self.bundle, **options)


def processes_root():
    from lib import ROOT

    return ROOT


def content(folder, below=""):
    """Give the bytes of each file below a folder, by its name there; git's own are left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / below).rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def states(folder):
    """Give what changes when a file is written anew."""
    return {path: path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def record(folder, name):
    """Write what a download records: the checksums of all files, and their number."""
    (folder / name).unlink(missing_ok=True)
    sums = [
        f"{hashlib.sha256(each).hexdigest()}  {path}\n" for path, each in content(folder).items()
    ]
    (folder / name).write_text("".join([*sums, f"# {len(sums)} files in all\n"]))


@pytest.fixture(scope="session")
def template(session_environment, wheels, tmp_path_factory):
    """Give a place with a packed bundle; a test takes a copy."""
    place = Place(tmp_path_factory.mktemp("packed") / "a place", session_environment)
    shutil.copytree(
        os.path.join(session_environment["HOME"], ".config"), place.folder / "home/.config"
    ) if os.path.isdir(os.path.join(session_environment["HOME"], ".config")) else None
    for name in ("containers", "pip", "repos", "assets/model"):
        (place.offline / name).mkdir(parents=True)
    image = random.Random(1).randbytes(20 << 20)  # longer than what is copied in one go
    (place.offline / IMAGE).write_bytes(image)
    digest = f"sha256:{hashlib.sha256(image).hexdigest()}"
    (place.offline / f"{IMAGE}.json").write_text(f'{{\n  "sha256": "{digest}"\n}}\n')
    for wheel in wheels.iterdir():
        shutil.copy(wheel, place.offline / "pip")
    lock = "# image: docker://longship.example/lab/base:1\nlongship_tiny==1.0\n"
    (place.offline / "pip/pytorch_amd64.lock").write_text(lock)
    (place.offline / "repos/a thing.bundle").write_text("a bundle\n")
    (place.offline / "assets/model/weights").write_text("weights\n")
    record(place.offline / "pip", "pytorch_amd64.sha256")
    record(place.offline / "assets", "model.asset")
    (place.root / ".gitignore").write_text("/.venv/\n/.cache/\n__pycache__/\n*.pyc\n")
    place.git("init", "-q", "-b", "main")
    place.git("add", "-A")
    place.git("commit", "-q", "-m", "one")
    with open(place.root / "configuration.toml", "a") as file:
        file.write("# my edit\n")
    (place.root / "a new file.sh").write_text("#!/bin/sh\n")
    (place.root / "a new file.sh").chmod(0o755)
    (place.root / "configuration.local.toml").write_text('[project]\nname = "mine"\n')
    for name in (".venv/x", ".cache/x"):
        (place.root / name).parent.mkdir(exist_ok=True)
        (place.root / name).write_text("x")
    place.pack()
    return place


@pytest.fixture
def place(template, session_environment, tmp_path):
    """Give a copy of the place with a packed bundle."""
    return Place(tmp_path / "a place", session_environment, template)


@pytest.fixture
def there(place, tmp_path):
    """Give a function that unpacks on a machine that has nothing but the bundle."""
    folder = tmp_path / "the other machine"
    bare = folder / "programs"
    bare.mkdir(parents=True)
    for name in BARE:
        (bare / name).symlink_to(shutil.which(name, path=processes.PATH))
    environment = {"HOME": str(folder / "home"), "PATH": processes.PATH, "LANG": "C.UTF-8"}
    bundle = folder / "a copy"
    shutil.copytree(place.bundle, bundle)

    def unpack(*arguments, git=False, wrap=lambda argv: argv, **options):
        path = [] if git else ["env", f"PATH={bare}"]
        command = wrap([*path, "bash", bundle / "unpack.sh", *arguments])
        return processes.run(command, env=environment, cwd=folder, **options)

    unpack.bundle, unpack.folder = bundle, folder
    unpack.root, unpack.offline = folder / "longship", folder / "home/a scratch/offline"
    unpack.environment = environment
    return unpack


def test_bundle_holds_everything_and_nothing_else(place):
    names = set(content(place.bundle))
    tracked = {f"repository/{name}" for name in place.git("ls-files").splitlines()}
    assert names >= tracked
    own = {name for name in names if not name.startswith(("repository/", "offline/"))}
    assert {"/".join(name.partition("-")[0].split("/")[:2]) for name in own} == {
        *("SHA256SUMS", "longship.bundle", "unpack.sh", "host/click", "host/tomli")
    }
    assert names - tracked - own == {
        *("repository/a new file.sh", f"offline/{IMAGE}", f"offline/{IMAGE}.json"),
        *("offline/repos/a thing.bundle", "offline/assets/model/weights"),
        "offline/assets/model.asset",
        *(f"offline/pip/{each.name}" for each in (place.offline / "pip").iterdir()),
    }
    assert "# my edit" in (place.bundle / "repository/configuration.toml").read_text()
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    processes.run(check, env=place.environment, cwd=place.bundle)


@pytest.mark.needs("namespaces")
def test_unpack_needs_bash_coreutils_and_python_only(place, there, airgapped):
    done = there(wrap=airgapped)
    assert "next: python3 build_container.py offline\n" in done.stderr
    assert "next: python3 set_up.py offline\n" in done.stderr
    assert content(there.offline, "containers") == content(place.offline, "containers")
    assert content(there.offline, "assets") == content(place.offline, "assets")
    assert os.access(there.root / "a new file.sh", os.X_OK)
    assert not (there.root / ".git").exists()
    assert not (there.root / "configuration.local.toml").exists()
    # the scripts run there, with the Python of the machine and the packages of the bundle
    python = airgapped(["python3", there.root / "container_run.py", "--dry-run", "true"])
    assert "longship" in processes.run(python, env=there.environment).stdout
    before = states(there.folder)
    again = there(wrap=airgapped)
    assert again.stderr.count("note: 0 new files") == 3
    after = states(there.folder)
    own = [path for path in before if ".cache" in path.parts]
    assert {**before, **dict.fromkeys(own)} == {**after, **dict.fromkeys(own)}


def test_unpack_makes_a_clone_where_git_is(place, there):
    there(git=True)
    status = place.git("status", "--short", root=there.root)
    assert sorted(status.splitlines()) == [" M configuration.toml", '?? "a new file.sh"']
    assert place.git("log", "--format=%s", root=there.root) == "one\n"
    assert place.git("branch", "--show-current", root=there.root) == "main\n"
    place.git("commit", "-q", "-a", "-m", "two")
    place.pack()
    shutil.rmtree(there.bundle)
    shutil.copytree(place.bundle, there.bundle)
    there(git=True)
    assert place.git("log", "-1", "--format=%s", root=there.root) == "two\n"
    assert place.git("status", "--short", root=there.root) == '?? "a new file.sh"\n'


def test_older_bundle_is_not_unpacked_over_a_newer_one(place, there):
    """Or `git commit -a` would undo the newer one."""
    newer = place.bundle.with_name("newer")
    older = shutil.copytree(there.bundle, there.bundle.with_name("older"))
    (place.root / "train.py").write_text("# newer\n")
    place.git("commit", "-q", "-a", "-m", "two")
    place.pack()
    shutil.rmtree(there.bundle)
    shutil.copytree(place.bundle, there.bundle)
    for _ in range(2):  # the second time as the first
        there(git=True)
        assert (there.root / "train.py").read_text() == "# newer\n"
    new = place.git("rev-parse", "--short", "HEAD").strip()
    old = place.git("rev-parse", "--short", "HEAD~").strip()
    there.bundle.rename(newer)
    older.rename(there.bundle)
    done = there(git=True, check=False)
    is_told(done, f"the bundle is older than {there.root}: {old} of ", "bash unpack.sh NEW_DIREC")
    assert f", which has {new} of " in done.stderr
    assert place.git("status", "--short", root=there.root) == '?? "a new file.sh"\n'
    # a colleague's, who has not got the newer commit, is told with both versions
    place.git("reset", "-q", "--hard", "HEAD~")
    place.git("commit", "-q", "--allow-empty", "-m", "a colleague's")
    place.pack()
    shutil.rmtree(there.bundle)
    shutil.copytree(place.bundle, there.bundle)
    done = there(git=True)
    other = place.git("rev-parse", "--short", "HEAD").strip()
    assert f"your branch is unchanged, at {new} of " in done.stderr
    assert f"but files are the bundle's, of {other} of " in done.stderr


def test_older_version_is_not_unpacked_over_a_newer_one_without_git(there):
    there()
    file = there.root / "lib/__init__.py"
    text = file.read_text()
    for version, code in (("2999.1.1", 1), ("2026.9.31", 0), ("", 0)):
        file.write_text(re.sub('(?m)^VERSION = ".*"', f'VERSION = "{version}"', text))
        done = there(check=False)
        assert done.returncode == code, done.stderr
        if code:
            is_told(done, "which has 2999.1.1", "bash unpack.sh NEW_DIRECTORY")


def test_history_is_of_the_current_branch_alone(place):
    place.git("checkout", "-q", "-b", "other")
    place.git("commit", "-q", "--allow-empty", "-m", "elsewhere")
    place.git("checkout", "-q", "main")
    place.pack()
    heads = place.git("bundle", "list-heads", place.bundle / "longship.bundle")
    assert sorted(line.split()[1] for line in heads.splitlines()) == ["HEAD", "refs/heads/main"]
    assert place.git("rev-parse", "other").strip() not in heads
    place.pack("--no-history")
    assert not (place.bundle / "longship.bundle").exists()
    place.verify()


def test_second_pack_writes_only_what_changed(place):
    before = states(place.bundle)
    done = place.pack()
    assert "note: up to date: " in done.stderr
    assert states(place.bundle) == before
    (place.root / "train.py").write_text("# shorter\n")
    os.utime(place.offline / IMAGE)  # another time, the same content
    (place.offline / "repos/a thing.bundle").unlink()
    (place.offline / "repos/other.bundle").write_text("other\n")
    place.pack()
    after = states(place.bundle)
    written = {
        str(path.relative_to(place.bundle)) for path in after if before.get(path) != after[path]
    }
    assert written - {"SHA256SUMS"} == {"repository/train.py", "offline/repos/other.bundle"}
    assert not (place.bundle / "offline/repos/a thing.bundle").exists()
    place.verify()


def test_damage_is_mended_by_another_pack(place):
    image = place.bundle / "offline" / IMAGE
    with open(image, "r+b") as file:
        file.write(b"x")
    (place.bundle / "unpack.sh").unlink()
    place.pack()
    place.verify()
    assert content(place.bundle / "offline", "containers") == content(place.offline, "containers")


def test_verify_names_each_bad_and_missing_file(place):
    assert "complete" in place.verify().stderr
    os.truncate(place.bundle / "offline" / IMAGE, 1000)
    with open(place.bundle / "repository/extras/bundle/bundle.py", "r+b") as file:
        file.write(b"x")
    (place.bundle / "offline/pip/pip-99.0-py3-none-any.whl").unlink()
    (place.bundle / "offline/repos/a thing.bundle").unlink()
    (place.bundle / "offline/repos/a thing.bundle").symlink_to("/etc/passwd")
    done = place.verify(check=False)
    is_told(done, "4 files of the bundle", "copy the bundle again")
    assert sorted(done.stderr.splitlines()[1:-2]) == [
        "corrupt: 'offline/repos/a thing.bundle'",
        f"corrupt: offline/{IMAGE}",
        "corrupt: repository/extras/bundle/bundle.py",
        "missing: offline/pip/pip-99.0-py3-none-any.whl",
    ]


def test_what_packing_has_not_put_there_is_not_unpacked(there):
    (there.bundle / "project/data").mkdir(parents=True)
    for name in ("project/data/mine.txt", "repository/lib/more.py", "offline/pip/more.whl"):
        (there.bundle / name).write_text("mine\n")
    verify = ["bash", there.bundle / "unpack.sh", "--verify"]
    done = processes.run(verify, env=there.environment, cwd=there.folder)
    assert "note: complete, " in done.stderr and not there.root.exists()
    there()
    assert not [*there.root.rglob("more.py"), *there.offline.rglob("more.whl")]


def test_bundle_with_bit_rot_is_packed_again_as_the_hint_says(place):
    image = place.bundle / "offline" / IMAGE
    found = image.stat()
    with open(image, "r+b") as file:
        file.write(b"rot")
    os.utime(image, ns=(found.st_atime_ns, found.st_mtime_ns))
    is_told(place.verify(check=False), "1 files of the bundle", "delete the corrupt")
    image.unlink()
    place.pack()
    place.verify()


def test_unpacking_that_was_interrupted_goes_on(there):
    """As after Ctrl-C or on a full disk."""
    there()
    (there.root / "bundle.py").unlink()
    (there.root / "README.md").unlink()
    there()
    assert (there.root / "bundle.py").exists() and not list(there.root.glob("*.new"))


@pytest.mark.parametrize("lines", [-1, slow(-2), slow(0), slow(10)])
def test_copy_that_was_cut_off_is_found(lines, place, there):
    """Whatever the copying came to: the last file of a copy can be any one."""
    sums = there.bundle / "SHA256SUMS"
    text = sums.read_text().splitlines(keepends=True)
    sums.write_text("".join(text[:lines]))
    message = "SHA256SUMS is truncated"
    is_told(there(check=False), message if lines < 0 else "incomplete or corrupt", "again")
    assert not there.root.exists()
    place.bundle = there.bundle
    is_told(place.verify(check=False), message, "copy the bundle again, or pack it again")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("SHA256SUMS", os.mkfifo),
        ("SHA256SUMS", lambda file: (file.touch(), os.truncate(file, 1 << 40))),
        ("repository/lib/script/errors.py", os.mkfifo),
        ("longship.bundle", os.mkfifo),
        (f"offline/{IMAGE}", os.mkfifo),
    ],
)
def test_file_that_never_ends_stalls_no_unpacking(name, make, there):
    """On a stick of somebody else's."""
    file = there.bundle / name
    file.unlink()
    make(file)
    done = there(check=False, timeout=SECONDS)
    is_told(done, "", "copy the bundle again")
    assert not there.root.exists()


def test_bytecode_of_the_bundle_is_not_read(there):
    """And what `unpack.sh` has verified is verified again by `bundle.py unpack`."""
    cached = cache_from_source(str(there.bundle / "repository/lib/script/errors.py"))
    os.mkdir(os.path.dirname(cached))
    os.mkfifo(cached)
    there(timeout=SECONDS)
    for folder in (there.offline, there.bundle / "offline"):
        (folder / IMAGE).unlink()
    os.mkfifo(there.bundle / "offline" / IMAGE)
    unpack = [sys.executable, there.root / "bundle.py", "unpack", there.bundle]
    options = {"env": there.environment, "check": False, "timeout": SECONDS}
    is_told(processes.run(unpack, **options), "it is not a regular file", "fix the reason")


def test_unpack_of_a_damaged_copy_changes_nothing(there):
    os.truncate(there.bundle / "offline" / IMAGE, 1000)
    is_told(there(check=False), "do not match their checksums", "copy the bundle again")
    assert not there.root.exists() and not there.offline.exists()
    os.truncate(there.bundle / "repository/lib/script/worker.bash", 100)
    is_told(there(check=False), "incomplete or corrupt", "copy the bundle again")


def test_unpack_keeps_local_changes(place, there):
    there()
    (there.root / "train.py").write_text("# mine\n")
    (there.root / "README.md").write_text("# mine, and not theirs\n")
    (there.root / "a file of mine").write_text("mine\n")
    (there.offline / IMAGE).write_bytes(b"damaged")
    (place.root / "train.py").write_text("# theirs\n")
    (place.root / "preprocess_data.py").write_text("# new\n")
    (place.root / "quickstart.sh").unlink()
    place.pack()
    shutil.rmtree(there.bundle)
    shutil.copytree(place.bundle, there.bundle)
    name, new = there.root / "train.py", there.root / "train.py.new"
    for _ in range(2):  # the second time as the first
        done = there()
        assert f"kept your modified {name}; the bundle's version is {new}\n" in done.stderr
        assert name.read_text() == "# mine\n" and new.read_text() == "# theirs\n"
        assert (there.root / "README.md").read_text() == "# mine, and not theirs\n"
        assert (there.root / "a file of mine").read_text() == "mine\n"
        assert (there.root / "preprocess_data.py").read_text() == "# new\n"
        assert not (there.root / "quickstart.sh").exists()
        assert content(there.offline, "containers") == content(place.offline, "containers")
    new.write_text("# mine too\n")
    is_told(there(check=False), f"{new} is modified too", "move or remove")
    assert new.read_text() == "# mine too\n"
    new.unlink()
    name.write_text("# theirs\n")
    there()
    assert not new.exists()


def test_unpack_puts_the_repository_beside_the_bundle(there):
    """Not into it, where it is called from there."""
    processes.run(["bash", "unpack.sh"], env=there.environment, cwd=there.bundle)
    assert (there.folder / "longship/bundle.py").exists()
    is_told(there(there.bundle / "x", check=False), "is in the bundle", "outside")
    other = there.folder / "other things"
    other.mkdir()
    (other / "thing").write_text("x")
    is_told(there(other, check=False), "was not unpacked from a bundle", "name a new directory")
    # as `bundle.py pack /media/stick/longship` says to go on
    (other / "thing").unlink()
    there.bundle.rename(other / "longship")
    environment = {**there.environment, "CDPATH": "."}  # cd prints what it finds so
    processes.run(["bash", "longship/unpack.sh"], env=environment, cwd=other)
    assert (other / "longship-clone/bundle.py").exists()


def test_image_that_is_a_file_goes_with_the_bundle(lab, registry, tmp_path):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        processes.run(["git", "-C", clone.root, *identity, *words], env=clone.environment)
    (clone.containers / "build/tiny_1_amd64.sif").replace(clone.root / "mine.sif")
    clone.use("mine.sif")
    bundle, python = tmp_path / "bundle", [sys.executable]
    pack = [*python, clone.root / "bundle.py", "pack", bundle]
    done = processes.run(pack, env=clone.environment, check=False)
    is_told(done, "1 parts", "build_container.py download --machine local")
    clone.build("download")
    processes.run(pack, env=clone.environment)
    assert not (bundle / "repository/mine.sif").exists()  # nor twice
    for folder in (clone.root, clone.scratch):
        shutil.rmtree(folder)
    target = tmp_path / "target"
    unpack = ["bash", bundle / "unpack.sh", target]
    done = processes.run(unpack, env=clone.environment, cwd=tmp_path)
    steps = re.findall("^next: python3 (.*)", done.stderr, re.MULTILINE)
    assert steps[-1] == "set_up.py offline"
    for step in [*steps[:-1], "container_run.py true"]:
        name, *words = step.split()
        processes.run([*python, target / name, *words], env=clone.environment)


def test_missing_parts_are_told_at_once_with_the_commands(place):
    shutil.rmtree(place.offline)
    with open(place.root / "configuration.toml", "a") as file:
        file.write('[[repositories]]\nname = "torchtitan"\nurl = "https://example.org/t.git"\n')
    shutil.rmtree(place.bundle)
    done = place.pack(check=False)
    is_told(
        done, "4 parts", "build_container.py download --machine local; python3 set_up.py download"
    )
    for part in ("containers/base_1_amd64.tar or .sif", "pip/pytorch_amd64.lock"):
        assert f"{part}\n" in done.stderr
    assert not place.bundle.exists()


def damage(file, kind):
    if kind == "cut short":
        os.truncate(file, file.stat().st_size - 1)
    elif kind == "a line less":
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    elif kind == "other content":
        with open(file, "r+b") as opened:
            opened.write(b"x")
    else:
        file.unlink()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pip/pip-99.0-py3-none-any.whl", "cut short"),
        ("pip/pip-99.0-py3-none-any.whl", "missing"),
        ("pip/pytorch_amd64.lock", "a line less"),
        slow("pip/pytorch_amd64.sha256", "a line less"),
        (IMAGE, "other content"),
        slow("assets/model/weights", "missing"),
        ("assets/model.asset", "a line less"),
    ],
)
def test_damaged_download_is_not_packed(name, kind, place):
    """Neither into a new bundle nor into one that was complete."""
    damage(place.offline / name, kind)
    for _ in range(2):
        done = place.pack(check=False)
        assert done.returncode == 1 and name in done.stderr.splitlines()[-2], done.stderr
        assert place.verify(check=False).returncode == 1
        assert "python3 set_up.py download --machine local; or" in done.stderr.splitlines()[-1]
        shutil.rmtree(place.bundle)


def test_damaged_packages_of_the_scripts_are_downloaded_again(place):
    """With what a killed pip has left beside them."""
    (folder,) = place.folder.glob("home/a scratch/cache/bundle/host")
    os.truncate(folder / "click/core.py", 1000)
    (folder / "left-over.py").write_text("x")
    assert "downloading click" in place.pack().stderr
    assert (place.bundle / "host/click/core.py").stat().st_size > 1000
    assert not (place.bundle / "host/left-over.py").exists()
    place.verify()
    assert "downloading" not in place.pack().stderr


def test_damaged_packages_of_the_scripts_are_named_and_replaced(there):
    """On a machine without network there is no way on from a traceback."""
    os.truncate(there.bundle / "host/click/core.py", 1000)
    done = there(check=False)
    is_told(done, "1 files of the bundle", "copy the bundle again")
    assert "corrupt: host/click/core.py\n" in done.stderr


def test_checksums_that_are_a_link_do_not_verify(place, there):
    sums = there.bundle / "SHA256SUMS"
    sums.rename(there.folder / "elsewhere")
    sums.symlink_to(there.folder / "elsewhere")
    is_told(there(check=False), "incomplete or corrupt", "copy the bundle again")
    place.bundle = there.bundle
    is_told(place.verify(check=False), "SHA256SUMS is missing, or not a regular file", "again")


SECRETS = {
    "hugging face": "hf_" + "a1B2" * 9,
    "github": "ghp_" + "a1B2" * 9,
    "aws": "AKIA" + "ABCD" * 4,
    "key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "wandb": "WANDB_API_KEY=" + "0123456789" * 4,
    "url": "https://user:" + "password@example.org/x.git",
}


# each form: tests/script/test_secrets.py
@pytest.mark.parametrize(
    "secret",
    [each if name == "url" else slow(each) for name, each in SECRETS.items()],
    ids=list(SECRETS),
)
def test_secret_in_a_text_is_refused(secret, place):
    (place.root / "notes.txt").write_text(f"a\nx = {secret}\n")
    is_told(place.pack(check=False), "notes.txt looks like a token", "--allow notes.txt")
    place.verify()  # the bundle is what it was
    place.pack("--allow", "notes.txt")
    (place.root / "notes.txt").unlink()
    (place.offline / "assets/model/config.json").write_text(f'{{"x": "{secret}"}}\n')
    is_told(place.pack(check=False), "assets/model/config.json", "move that file")


@pytest.mark.parametrize(
    "name", [".ssh/x", *map(slow, (".netrc", "id_rsa.old", "token", ".env", ".pypirc"))]
)
def test_file_named_like_a_secret_is_refused(name, place):
    (place.root / "a folder" / name).parent.mkdir(parents=True)
    (place.root / "a folder" / name).write_text("x\n")
    is_told(place.pack(check=False), f"a folder/{name} looks like a token", "move that file")


def test_secret_of_the_past_is_refused(place):
    (place.root / "notes.txt").write_text(SECRETS["aws"])
    place.git("add", "notes.txt")
    place.git("commit", "-q", "-m", "oh")
    place.git("rm", "-q", "notes.txt")
    place.git("commit", "-q", "-m", "never mind")
    is_told(
        place.pack(check=False), "the git history contains what looks like a token", "--no-history"
    )
    place.pack("--no-history")
    place.verify()


def test_links_and_odd_names_are_refused_by_pack(place):
    name = place.root / "a link"
    name.symlink_to("lib/__init__.py")
    is_told(place.pack(check=False), "cannot pack the symbolic link ", "replace the link")
    name.unlink()
    (place.offline / "assets/two\nlines").write_text("x")
    is_told(place.pack(check=False), "the name contains a backslash", "rename that file")


def seal(bundle):
    """Write the checksums anew, as whoever has a bundle can."""
    names = sorted(name for name in content(bundle) if name != "SHA256SUMS")
    command = ["sha256sum", "--", *names]
    text = subprocess.run(command, cwd=bundle, stdout=subprocess.PIPE, check=True).stdout
    (bundle / "SHA256SUMS").write_bytes(text + b"# %d files in all\n" % len(names))


@pytest.mark.parametrize(
    "name", ["../outside", slow("/tmp/outside"), "offline/../../outside", slow("offline/..")]
)
def test_hostile_bundle_writes_nothing_outside(name, there):
    seal(there.bundle)
    text = (there.bundle / "SHA256SUMS").read_text().splitlines()
    text[-1:] = [f"{'0' * 64}  {name}", f"# {len(text)} files in all"]
    (there.bundle / "SHA256SUMS").write_text("\n".join(text) + "\n")
    is_told(there(check=False), "has an invalid line: ", "again")
    assert sorted(path.name for path in there.folder.iterdir()) == ["a copy", "programs"]


def test_link_in_the_way_is_not_followed(place, there, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    there.offline.mkdir(parents=True)
    (there.offline / "pip").symlink_to(elsewhere)
    is_told(there(check=False), "is a symbolic link", "replace the link")
    assert not list(elsewhere.iterdir())
    # nor by packing
    target = elsewhere / "file"
    target.write_text("mine")
    for name in ("SHA256SUMS", "repository/train.py"):
        (place.bundle / name).unlink()
        (place.bundle / name).symlink_to(target)
        (place.root / "train.py").write_text("# new\n")
        place.pack()
        assert target.read_text() == "mine" and not (place.bundle / name).is_symlink()


def test_folder_with_other_things_is_no_bundle(place):
    def everything():
        found = place.folder.rglob("*")
        return sorted(path for path in found if "__pycache__" not in path.parts)

    for folder in (place.root, place.folder, place.offline / "pip/x"):
        place.bundle = folder
        before = everything()
        done = place.pack(check=False)
        assert done.returncode == 1 and "error: " in done.stderr
        assert everything() == before


def test_bundle_in_the_repository_does_not_pack_itself(place):
    place.bundle = place.root / "its bundle"
    for _ in range(2):
        place.pack()
    place.verify()
    assert not any("its bundle" in name for name in content(place.bundle))


@pytest.mark.slow  # the lock is that of builds
def test_two_packs_at_once(place):
    shutil.rmtree(place.bundle)
    command = [sys.executable, place.root / "bundle.py", "pack", place.bundle]
    both = [processes.start(command, env=place.environment) for _ in range(2)]
    told = [process.communicate(timeout=SECONDS)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    place.verify()


@pytest.mark.parametrize("files", [slow(1), 40, slow(150)])
def test_killed_pack_leaves_nothing_half_done(files, place):
    shutil.rmtree(place.bundle)
    command = [sys.executable, place.root / "bundle.py", "pack", place.bundle]
    process = processes.start(command, env=place.environment)
    watched = [place.bundle / name for name in (".partial", "repository", "offline", "host")]
    while sum(len(each) for folder in watched for *_, each in os.walk(folder)) < files:
        assert process.poll() is None, "it was not killed in time"
    processes.end_session(process)  # the worker has a group of its own
    process.communicate()
    is_told(place.verify(check=False), "SHA256SUMS is missing", "pack it again")
    for name, found in content(place.bundle).items():
        if name.startswith("offline/"):
            assert found == (place.offline / name[8:]).read_bytes()
        elif name.startswith("repository/"):
            assert found == (place.root / name[11:]).read_bytes()
    left = states(place.bundle)
    place.pack()
    place.verify()
    after = states(place.bundle)
    complete = [path for path in left if ".partial" not in str(path) and path.name != "SHA256SUMS"]
    assert {path: after[path] for path in complete} == {path: left[path] for path in complete}


def test_interrupted_pack_is_told(place):
    shutil.rmtree(place.bundle)
    command = [sys.executable, place.root / "bundle.py", "pack", place.bundle]
    process = processes.start(command, env=place.environment)
    processes.wait_until(lambda: (place.bundle / ".partial").exists())
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130 and "error: interrupted" in errors
    assert f"resume with: python3 bundle.py pack '{place.bundle}'" in errors
    place.pack()


@pytest.mark.slow  # of the target: the next one
def test_full_disk_is_told_and_mended(place, small_disk):
    disk = small_disk(40)
    place.bundle = disk / "a bundle"
    ballast = fill(disk, leave=10 << 20)
    is_told(place.pack(check=False), "No space left on device", "free some space")
    assert place.verify(check=False).returncode == 1
    assert not list(place.bundle.glob(".partial/new/*"))
    ballast.unlink()
    place.pack()
    place.verify()


def test_full_disk_while_unpacking_is_told(place, there, small_disk):
    disk = small_disk(40)
    there.environment["HOME"] = str(disk)
    ballast = fill(disk, leave=5 << 20)
    done = there(check=False)
    is_told(done, "No space left on device", "free some space")
    assert not (disk / "a scratch/offline" / IMAGE).exists()
    ballast.unlink()
    there()
    assert (disk / "a scratch/offline" / IMAGE).stat().st_size == 20 << 20


@pytest.mark.parametrize("word", ["packs", "", "unpack"])
def test_wrong_call_is_an_error(word, place):
    done = place.run(*([word] if word else []), check=False)
    assert done.returncode == 2 and "\nhint: " in done.stderr


def test_scripts_that_run_in_a_bundle_write_nothing_into_it(place):
    before = sorted(place.bundle.rglob("*"))
    for name in ("bundle.py", "set_up.py"):
        command = [sys.executable, place.bundle / "repository" / name, "--help"]
        environment = {**place.environment, "PYTHONPATH": site_packages()}
        processes.run(command, env=environment, cwd=place.folder)
    assert sorted(place.bundle.rglob("*")) == before


def site_packages():
    import click

    return os.path.dirname(os.path.dirname(click.__file__))
