"""Two members of a group, users with names of their own, and a Slurm of one node for them.

Neither user is made: a mount namespace gives them names. What stands for Slurm keeps a submission,
and the test starts it, see stand_ins/members.
"""

import contextlib
import importlib.util
import os
import shlex
import shutil
import stat
import struct
import tempfile
import time
from pathlib import Path

import pytest

from lib.configuration.sites import own_arch
from support import processes
from support.git import IDENTITY
from support.processes import PATIENCE
from support.repository import copy_tree, toml

GROUP = 61000
USERS = {"victim": 61001, "mallory": 61002}
WORLD = Path("/var/tmp")  # pytest's own folder is closed to others
STAND_INS = Path(__file__).resolve().parents[1] / "stand_ins/members"
PARENTS = ("plain", "setgid", "acl")

# Everything is looked up in these two files, as on a machine with its users in them.
NAMED = """
mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/group" /etc/group && shift && exec "$@"
"""

SIF = "#!/usr/bin/env run-singularity\n\0SIF_MAGIC\00001\000{}\0"


class Member:
    """A user of the group, with a home directory and a clone."""

    def __init__(self, village, name):
        self.village, self.name, self.uid = village, name, USERS[name]
        self.home = village.folder / f"home-of-{name}"
        self.home.mkdir(mode=0o711)
        self.home.chmod(0o711)  # as on many machines: files whose names one knows can be reached
        self.own(self.home)
        self.root = self.home / "clone"
        self.environment = {
            **processes.make_environment(self.home / "login"),
            **IDENTITY,
            "HOME": str(self.home),
            "USER": name,
            "PATH": f"{village.folder}/python/bin:{village.folder}/slurm:{processes.PATH}",
            "TMPDIR": "/tmp",
        }
        shutil.rmtree(self.home / "login")
        del self.environment["XDG_RUNTIME_DIR"]

    def own(self, *paths):
        """Give files that root has made to this user, with all that is in them."""
        for path in paths:
            processes.run(["chown", "-R", f"{self.uid}:{self.uid}", path], env=dict(os.environ))

    def clone(self, configuration=""):
        """Make this user's clone, with its git repository."""
        copy_tree(self.village.source, self.root, compiled=True)
        (self.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
        (self.root / "configuration.toml").write_text(configuration, encoding="utf-8")
        (self.root / ".gitignore").write_text("__pycache__/\n")
        self.own(self.root)
        self.bash("cd clone && git init -q && git add -A && git commit -q -m first")
        return self

    def command(self, argv, umask):
        """Put in front of a command what makes it one of this user."""
        named = ["unshare", "--mount", "bash", "-c", NAMED, "named", self.village.folder]
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", f"--groups={GROUP}"]
        return [*named, *become, "bash", "-c", f'umask {umask}; exec "$@"', "umask", *argv]

    def run(self, argv, *, umask="", env=None, cwd=None, **options):
        """Run a command as this user, see `processes.run`; it begins in the home directory."""
        __tracebackhide__ = True
        environment = {**self.environment, **(env or {})}
        command = self.command(argv, umask or self.village.umask)
        return processes.run(command, env=environment, cwd=cwd or self.home, **options)

    def start(self, argv, *, umask="", env=None, cwd=None):
        """Start a command as this user, and return its Popen; it is ended with the test."""
        environment = {**self.environment, **(env or {})}
        command = self.command(argv, umask or self.village.umask)
        started = processes.start(command, env=environment, cwd=cwd or self.home)
        self.village.started.append(started)
        return started

    def bash(self, script, *arguments, check=True, **options):
        """Run a script of bash as this user."""
        __tracebackhide__ = True
        return self.run(["bash", "-c", script, "bash", *arguments], check=check, **options)

    def type(self, script, *arguments, **options):
        """Run an entry script of the clone."""
        __tracebackhide__ = True
        return self.run(["python3", script, *arguments], cwd=self.root, **options)

    def submit(self, *words, **options):
        """Submit a job; return its number."""
        __tracebackhide__ = True
        return self.type("submit.py", *words, **options).stdout.split()[0]

    def start_job(self, number, **environment):
        """Start a submitted job; return its Popen and the path of its log."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        log = (self.home / f"slurm/{number}/log").read_text().rstrip("\n")
        return self.start([self.village.folder / "slurm/start_job", number, *variables]), Path(log)

    def run_job(self, number, **environment):
        """Run a submitted job to its end; return its exit code and its log."""
        process, log = self.start_job(number, **environment)
        _, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, log.read_text(errors="replace") if log.exists() else errors

    def finish(self, *words):
        """Submit a job and run it to its end; return its run directory and its log."""
        __tracebackhide__ = True
        number = self.submit(*words)
        code, log = self.run_job(number)
        assert code == 0, log
        (run,) = self.runs.glob(f"{number}-*/")
        return run, log

    @property
    def runs(self):
        """The directory of this user's runs."""
        return self.village.scratch(self) / "runs"

    def open_runs(self):
        """Let others read the records of this user's runs, as the pages say."""
        scratch = self.village.scratch(self)
        self.run(["chmod", "g+rx", scratch.parent, scratch, scratch / "runs"])

    def job(self, name, body, header=""):
        """Write a job of this user's own, of the form of the checked-in ones."""
        text = (
            f"#!/usr/bin/env bash\n#SBATCH --job-name={name}\n#SBATCH --time=00:10:00\n{header}"
            f'start_job local "$@"\n{body}\n'
        )
        file = self.root / f"local/{name}.sbatch"
        file.write_text(text)
        self.own(file)
        return f"local/{name}.sbatch"


class Village:
    """The directories of a group, and its members.

    The parent of what they share is one of `PARENTS`: every user may make directories in it;
    setgid, as in many projects; or with a default ACL for the group.
    """

    def __init__(self, source, parent, umask):
        self.source, self.umask, self.started = source, umask, []
        self.folder = Path(tempfile.mkdtemp(prefix="longship-group-", dir=WORLD))
        self.folder.chmod(0o755)
        users = [("root", 0), *USERS.items()]
        lines = (f"{name}:x:{uid}:{uid}:{name}:/nowhere:/bin/bash\n" for name, uid in users)
        (self.folder / "passwd").write_text("".join(lines))
        groups = [*users, ("tty", 5), ("lab", GROUP)]
        (self.folder / "group").write_text("".join(f"{name}:x:{gid}:\n" for name, gid in groups))
        self.parent = self.folder / "a group"
        self.parent.mkdir()
        os.chown(self.parent, 0, GROUP)
        self.parent.chmod({"plain": 0o1777, "setgid": 0o2770, "acl": 0o770}[parent])
        if parent == "acl":
            set_default_acl(self.parent)
        self.proof = self.folder / "proof"  # what an attack writes as the victim
        self.proof.mkdir()
        self.proof.chmod(0o1777)
        self._make_programs()
        self.victim, self.mallory = Member(self, "victim"), Member(self, "mallory")

    def _make_programs(self):
        no_runtime = shutil.ignore_patterns("apptainer")
        slurm = shutil.copytree(STAND_INS, self.folder / "slurm", ignore=no_runtime)
        for name in ("squeue", "scancel", "sinfo"):
            (slurm / name).write_text("#!/bin/bash\n")
            (slurm / name).chmod(0o755)
        # the Python of the tests can be in a directory of root's
        make = ["/usr/bin/python3", "-m", "venv", "--without-pip", self.folder / "python"]
        processes.run(make, env=dict(os.environ))
        (packages,) = (self.folder / "python/lib").glob("python*/site-packages")
        for name in ("click", "tomli"):
            if found := importlib.util.find_spec(name):
                shutil.copytree(Path(found.origin).parent, packages / name)
        processes.run(["chmod", "-R", "a+rX", self.folder / "python"], env=dict(os.environ))

    def scratch(self, member):
        """Give the scratch directory of a member."""
        return self.parent / member.name / "scratch"

    @property
    def shared(self):
        """The directory of what the victim builds for the group."""
        return self.parent / "shared"

    def share_image(self):
        """Let the victim's directory for the group have an active image; return its file."""
        shutil.copy(STAND_INS / "apptainer", self.folder / "slurm")
        victim, name = self.victim, f"base_1_{own_arch()}_20260102T030405Z_unrecorded.sif"
        file = victim.root / "configuration.toml"
        image = 'image = "docker://longship.example/lab/base:1"'
        file.write_text(file.read_text().replace('"host"', f'"apptainer"\n{image}'))
        # as share_in_a_group.md says
        victim.bash('mkdir -m 750 "$1"; chgrp lab "$1"; chmod 750 "$1"', self.shared)
        with contextlib.suppress(OSError):  # what `setfacl -k` does
            os.removexattr(self.shared, "system.posix_acl_default")
        victim.type("move_built_container_to_active.py", "--prune", check=False)  # makes the others
        versions = self.shared / "containers/versions"
        (versions / name).write_text(SIF.format({"amd64": "02", "arm64": "04"}[own_arch()]))
        (versions / name).chmod(0o644)
        victim.own(versions / name)
        victim.type("move_built_container_to_active.py", "--use", name)
        return versions / name

    def configuration(self, member, more=""):
        """Give the text of a member's configuration.toml."""
        scratch = self.scratch(member)
        return (
            f'machine = "local"\n[paths]\nproject_dir = {toml(scratch.parent / "project")}\n'
            f'scratch_dir = {toml(scratch)}\ncheckpoint_dir = ""\n'
            f'shared_dir = {toml(self.shared)}\nshared_owner = "victim"\n'
            f'[container]\nruntime = "host"\n[packages]\nrequirements = ""\n{more}'
        )

    def stolen(self):
        """Name what an attack has written as the victim."""
        found = (each for each in self.proof.iterdir())
        return sorted(each.name for each in found if each.stat().st_uid == USERS["victim"])

    @property
    def payload(self):
        """A command that only writes a proof of whom it runs as."""
        return f"touch {shlex.quote(str(self.proof))}/$(id -un).$$"

    def end(self):
        """End what was started, and remove everything."""
        for process in self.started:
            processes.end_session(process)
            process.communicate()
        for _ in range(100):  # what has just been ended may still write
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)
        shutil.rmtree(self.folder)


def set_default_acl(folder, group=GROUP):
    """Do what `setfacl -d -m g:GROUP:rwx` does, without that program."""
    user, owner, named, mask, other = 0x01, 0x04, 0x08, 0x10, 0x20
    entries = [(user, 7, -1), (owner, 7, -1), (named, 7, group), (mask, 7, -1), (other, 0, -1)]
    packed = (struct.pack("<HHi", *each) for each in entries)
    try:
        os.setxattr(folder, "system.posix_acl_default", struct.pack("<I", 2) + b"".join(packed))
    except OSError as error:
        pytest.skip(f"needs a file system with ACLs in {folder}: {error.strerror}")


def effective(path):
    """Give the permission bits of a path; those of the group also limit every entry of an ACL."""
    return stat.S_IMODE(path.lstat().st_mode)


def listed(top):
    """Yield all paths below a directory, but what links lead to."""
    for each in sorted(top.iterdir()):
        yield each
        if each.is_dir() and not each.is_symlink():
            yield from listed(each)


def reachable(path, top):
    """Say whether others can look a path up: they can enter each directory from the top on."""
    above = [each for each in path.parents if top in each.parents or each == top]
    return all(effective(each) & 0o011 for each in above)


def writable(top):
    """List what others can reach below a directory and write to; sticky directories are told."""
    found = []
    for each in listed(top):
        if not each.is_symlink() and effective(each) & 0o022 and reachable(each.parent / "x", top):
            found.append(f"{effective(each):o} {each.relative_to(top)}")
    return found


@pytest.fixture
def make_village(root):
    """Give a function that makes a village, whose victim has a clone."""
    made = []

    def make(parent="setgid", umask="007", more=""):
        village = Village(root, parent, umask)
        made.append(village)
        village.victim.clone(village.configuration(village.victim, more))
        return village

    yield make
    for village in made:
        village.end()
