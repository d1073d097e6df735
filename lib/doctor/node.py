"""The checks of this node: clone, Python, directories, user namespaces, FUSE, GPUs, Slurm."""

from __future__ import annotations

import grp
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from lib import VERSION
from lib.configuration.paths import Paths, check_roots, check_started, is_below, login_name
from lib.configuration.sites import Machine, own_arch
from lib.doctor.report import Finding, asked, bash, ok, problem, warning
from lib.jobs.status import last_error
from lib.script.command import call
from lib.script.errors import LongshipError, check_owner, printable, write_error
from lib.script.execute import read_output, succeeds
from lib.script.output import size_text
from lib.script.records import content_of
from lib.script.trust import is_reachable, open_parents, refuse_default_acl

GB = 1 << 30


def find_node() -> Iterator[Finding]:
    """Report host, system, user, job and time, which whoever helps asks first."""
    here, job = os.uname(), os.environ.get("SLURM_JOB_ID")
    release = _text_of("/etc/os-release")
    system = re.findall(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    in_job, now = f"in job {job}" if job else "in no job", time.strftime("%FT%TZ", time.gmtime())
    facts = (here.nodename, *system, f"Linux {here.release}", own_user(), in_job, now)
    yield ok("node", ", ".join(facts))
    if os.environ.get("LOADEDMODULES"):
        yield ok("modules", os.environ["LOADEDMODULES"].replace(":", " "))


def _text_of(file: str) -> str:
    return content_of(Path(file)).decode(errors="surrogateescape")


def own_user() -> str:
    """Return the name of the user, or the number where it has no name."""
    return login_name() or str(os.geteuid())


def find_clone(root: Path) -> Iterator[Finding]:
    """Report the version and the commit of this repository."""
    # without --dirty, which writes the index with the umask of whoever asks
    git = ("env", "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0", "git", "-C", str(root))
    text, code = read_output([*git, "describe", "--always", "--tags"], 20)
    try:
        check_owner(text, str(root))
        changes = read_output([*git, "status", "--porcelain", "--untracked-files=no"], 20).text
        at = text.strip() + (", with changes" if changes else "")
        at = "plain files, no history of git" if code else at
        yield ok("clone", f"Longship {VERSION}, {at}, in {root}")
    except LongshipError as error:
        yield warning("clone", str(error), error.hint)


def find_python(root: Path) -> Iterator[Finding]:
    """Check the Python that users and jobs call."""
    text, code = read_output(["python3", "--version"], 20)
    packages = "the packages of .venv" if (root / ".venv").is_dir() else "its packages"
    shown = f"{'no python3' if code else text.strip()} and {packages}"
    yield from asked("python", call("check_python", root), text=shown)


def find_arch(machine: Machine) -> Iterator[Finding]:
    """Report what this node can run: a login node may have another architecture."""
    here, arch, name = own_arch(), machine.arch, machine.name
    text = f"{arch}: this machine, and what is built for {name}"
    if here != arch:
        text = f"this machine is {here}, and {name} computes on {arch}: programs start in jobs only"
    yield ok("architecture", text)


# ---------- directories


def find_directory(topic: str, setting: str, directory: Path, room: int) -> Iterator[Finding]:
    """Check that files can be written and programs started in a directory, and its free space.

    Before it exists, its nearest parent is checked.
    """
    elsewhere = f"set {setting} to another directory"
    existing = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
    shown = quote(str(existing))
    if not existing.is_dir():
        wrong = f"{existing} is not a directory"
        if not existing.exists():
            wrong = f"the link {existing} is dangling"
        yield problem(topic, f"{directory}: {wrong}", f"{elsewhere}, or run: rm {shown}")
        return
    try:
        with tempfile.NamedTemporaryFile(prefix=".longship-doctor.", dir=existing) as probe:
            os.fchmod(probe.fileno(), 0o700)
            probe.write(b"#!/bin/sh\n")
            probe.flush()
            can_start = os.access(probe.name, os.X_OK)
    except OSError as error:
        raise write_error(existing, f"cannot write to {existing}", elsewhere, error) from error
    if not can_start:
        text = f"cannot start programs in {existing}: Permission denied"
        fix = f"{elsewhere}; to check for noexec, run: findmnt --target {shown}"
        yield problem(topic, text, fix)
        return
    disk = os.statvfs(existing)
    later = "" if existing == directory else " (created when needed)"
    text = f"{directory}{later}, {size_text(disk.f_bavail * disk.f_frsize)} free"
    more = f": du -h -d 1 {shown} | sort -h" if setting == "HOME" else f", or {elsewhere}"
    yield from asked(topic, call("directory_check_room", existing, str(room), more), text=text)


def find_owners(paths: Paths) -> Iterator[Finding]:
    """Check that nobody else can change what runs, in the user's directories and the group's."""
    check_roots(paths)
    check_started(paths, paths.shared_dir)
    if paths.is_shared:
        refuse_default_acl(paths.shared_dir)
    _check_clone(paths.root)
    replaceable = {each: None for top in (*paths.trees, paths.root) for each in open_parents(top)}
    if replaceable:
        names = ", ".join(map(quote, map(str, replaceable)))
        text = f"other users can rename your directories in {names}, and put theirs in their place"
        fix = f"if you do not trust them, ask who owns it to run: chmod +t {names}"
        yield warning("owners", text, fix)
    else:
        yield ok("owners", "only you can write to your directories")


def _check_clone(root: Path) -> None:
    """Stop if others can change a file of the clone, whose parents they can enter."""
    if not is_reachable(root):
        return
    open_to = "-perm /022"
    if _is_private(os.getegid()) and not any("posix_acl" in each for each in os.listxattr(root)):
        open_to = f"( -perm /002 -o -perm /020 ! -group {os.getegid()} )"
    others = f"( ! -user 0 ! -user {os.geteuid()} -o ! -type l {open_to} ) -print -quit"
    find = ["find", str(root), *["-name", ".venv-tests", "-prune", "-o"], *others.split()]
    text, code = read_output(find, 60)
    path = printable(text.partition("\n")[0])
    if code:
        raise LongshipError(f"cannot check who can write to the clone: {path}", f"ls -la {root}")
    if path:
        raise LongshipError(
            f"other users own {path} or can write to it, and would decide what you run",
            f"check what they may have changed, and run: chmod -R go-w {quote(str(root))}",
        )


def _is_private(group: int) -> bool:
    """Tell whether a group is the user's alone, as on systems that make one for each user."""
    with suppress(KeyError):
        found = grp.getgrgid(group)
        return found.gr_name == own_user() and {*found.gr_mem} <= {own_user()}
    return False


def find_home() -> Iterator[Finding]:
    """Check the home directory: every program writes there, and a full one stops logins."""
    home = os.environ.get("HOME", "")
    if os.path.isdir(home):
        yield from find_directory("home", "HOME", Path(home), GB // 2)
        return
    fix = f'export HOME="$(getent passwd {os.getuid()} | cut -d : -f 6)"'
    yield problem("home", f"HOME is {home or 'not set'}, which is not a directory", fix)


def find_temporary() -> Iterator[Finding]:
    """Check $TMPDIR, or /tmp without it."""
    directory = Path(os.environ.get("TMPDIR") or "/tmp")
    yield from asked("temporary", call("temporary_choose", "/tmp"))
    yield from find_directory("temporary", "TMPDIR", directory, GB)


def find_mounted(machine: Machine, directories: Sequence[Path]) -> Iterator[Finding]:
    """Report directories that compute nodes do not mount: on JUPITER a job then has no log."""
    mounted, nodes = machine.compute_directories, f"compute nodes of {machine.name}"
    away = [x for x in map(str, directories) if not any(is_below(x, each) for each in mounted)]
    for each in dict.fromkeys(away) if mounted else ():
        fix = f"move it to a directory under {' or '.join(mounted)}"
        yield problem("directories", f"{nodes} do not mount {each}", fix)
    if mounted and not away:
        yield ok("directories", f"{nodes} mount this repository and all of them")


def find_caches(cache: Path) -> Iterator[Finding]:
    """Warn of a link through which caches would fill the home directory."""
    home = os.path.realpath(os.environ.get("HOME") or "/nowhere")
    in_home = [x for x in (cache, *cache.glob("*")) if is_below(os.path.realpath(x), home)]
    if is_below(os.path.realpath(cache.parent), home):
        yield ok("caches", f"{cache}, in the home directory, like scratch_dir")
    elif in_home:
        text = f"{in_home[0]} leads to {os.path.realpath(in_home[0])}"
        fix = f"rm {quote(str(in_home[0]))}; the next command creates it again"
        yield warning("caches", f"{text}: caches would fill the home directory", fix)
    else:
        yield ok("caches", f"{cache}, outside the home directory")


_WRITTEN = (
    *("", "containers", "containers/build", "containers/versions", "overlays", "overlays/versions"),
    *("overlays/unpacked", "offline", "offline/containers", "cache", "venvs"),
)


# partial-4711-pytorch_amd64.sif: what is built needs its ending, by which Apptainer recognises it
_UNFINISHED = re.compile(r"\.partial|^partial-[0-9]+-")


def find_leftovers(root: Path, project: Path, scratch: Path) -> Iterator[Finding]:
    """Report stale locks and unfinished files."""
    locks, unfinished = [], []
    for directory in (root / "requirements", project, *(scratch / each for each in _WRITTEN)):
        with suppress(OSError):
            for each in os.scandir(directory):
                changed = each.stat(follow_symlinks=False).st_mtime
                if each.name.endswith(".lock") and each.is_dir(follow_symlinks=False):
                    locks.append((each.path, changed))
                elif _UNFINISHED.search(each.name) and time.time() - changed > 3600:
                    unfinished.append(each.path)
    for lock, changed in locks:
        owner, code = bash(call("lock_owner", lock), call("lock_is_stale", lock))
        seen = time.strftime("%F %R", time.localtime(changed))
        if code:
            yield ok("locks", f"{owner} holds the lock {lock}, last seen {seen}")
            return  # unfinished files may be its own
        text = f"{owner} no longer runs, but its lock exists: {lock}, of {seen}"
        yield warning("locks", text, f"rm -r {quote(lock)}; or let the next command take it over")
    if unfinished:
        sizes = re.findall(
            r"^(\d+)\t", read_output(["du", "-skc", "--", *unfinished], 30).text, re.M
        )
        size = size_text(int((sizes or ["0"])[-1]) << 10)
        text = f"{len(unfinished)} unfinished for over an hour, {size}: {' '.join(unfinished)}"
        yield warning("leftovers", text, call("rm", "-r", *unfinished))
    elif not locks:
        yield ok("leftovers", "no locks and no unfinished files")


# ---------- what apptainer and singularity require


def find_user_rights(runtime: str, machine: Machine | None) -> Iterator[Finding]:
    """Check that an ordinary user can start, build and mount images."""
    user = succeeds(["unshare", "--user", "--map-root-user", "true"])
    fuse = os.access("/dev/fuse", os.R_OK | os.W_OK)
    setuid, by_kernel = (False, False) if user and fuse else _setuid_rights(runtime)
    if user or setuid:
        without = f"not available to users; {runtime} is installed setuid and does not need them"
        yield ok("namespaces", "user namespaces are available" if user else without)
    else:
        fix = (
            "ask your site to set: sysctl user.max_user_namespaces kernel.unprivileged_userns_clone"
        )
        text = f"user namespaces are not available, and {runtime} requires them"
        yield problem("namespaces", text, fix)
    yield ok("fakeroot", _fakeroot(machine))
    without, fix = "/dev/fuse is not accessible", "ask your site for: chmod 666 /dev/fuse"
    fix += ", or a setuid apptainer with: allow setuid-mount squashfs = yes"
    if fuse:
        yield ok("FUSE", "/dev/fuse is accessible")
    elif by_kernel:
        yield ok("FUSE", f"{without}; {runtime} is installed setuid and does not need it")
    elif setuid:
        yield problem("FUSE", f"{without}, and {runtime} mounts images with it", fix)
    else:
        yield warning("FUSE", f"{without}: {runtime} unpacks each image before it starts", fix)


def _setuid_rights(runtime: str) -> tuple[bool, bool]:
    """Tell whether a runtime is installed setuid, and whether it then mounts by the kernel."""
    told = read_output([runtime, "buildcfg"], 20).text
    facts = dict(re.findall(r"^(?:\w+_)?(LIBEXECDIR|CONF_FILE)=(.+)", told, re.MULTILINE))
    starter = Path(facts.get("LIBEXECDIR", "/nowhere"), runtime, "bin/starter-suid")
    setuid = starter.exists() and bool(starter.stat().st_mode & stat.S_ISUID)
    # Apptainer since 1.3; a line sorts before the comment that shows the default
    allowed = r"^(# *)?allow setuid-mount squashfs *= *(\w+)"
    written = re.findall(allowed, _text_of(facts.get("CONF_FILE", "/nowhere")), re.MULTILINE)
    by_kernel = not written or min(written)[1] == "yes"
    return setuid, setuid and by_kernel


def _fakeroot(machine: Machine | None) -> str:
    """Describe whether an ordinary user can build an image from a definition file."""
    if machine and machine.definition_builds == "forbidden":
        return "the site allows no builds from definition files"
    user, hint = own_user(), machine.build_hint if machine else ""
    own = re.compile(rf"^({re.escape(user)}|{os.getuid()}):", re.MULTILINE)
    ranges = all(own.search(_text_of(each)) for each in ("/etc/subuid", "/etc/subgid"))
    if ranges and shutil.which("newuidmap"):
        return f"{user} has a range of user ids for builds from definition files"
    text = f"{user} has no range of user ids; images from a registry do not need one"
    return text + (hint and f" ({hint})")


# ---------- GPUs


class Driver(NamedTuple):
    """The GPU driver: the newest CUDA that NVIDIA's supports, or the version of AMD's."""

    cuda: str = ""
    amd: str = ""


def find_gpus(machine: Machine | None) -> Generator[Finding, None, Driver]:
    """Report GPUs and driver of this node, and a driver that fails or that a job lacks."""
    kind, per_node = (machine.gpu, machine.gpus_per_node) if machine else ("auto", 0)
    if kind == "cpu":
        yield ok("GPU", "this machine has none")
    elif shutil.which("nvidia-smi") and kind != "rocm":
        return (yield from _find_nvidia())
    elif os.path.exists("/dev/kfd") and kind != "cuda":
        version = _text_of("/sys/module/amdgpu/version").strip() or f"of Linux {os.uname().release}"
        nodes = map(_text_of, glob("/sys/class/kfd/kfd/topology/nodes/*/properties"))
        count = sum(bool(re.search("simd_count [1-9]", each)) for each in nodes)
        yield ok("GPU", f"{count} of AMD, driver {version}")
        return Driver(amd=version)
    elif os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_GPUS_ON_NODE"):
        yield _broken_gpu("the job has GPUs, but this node has no GPU driver")
    else:
        where = f"on this node; compute nodes have {per_node}" if per_node else "on this machine"
        yield ok("GPU", f"none {where}")
    return Driver()


def _find_nvidia() -> Generator[Finding, None, Driver]:
    text, code = read_output(["nvidia-smi"], 30)
    if code:
        reason = text.partition("\n")[0] or "no response within 30 seconds"
        yield _broken_gpu(f"nvidia-smi: {reason}")
        return Driver()
    # since driver 610 it is the CUDA UMD Version
    cuda = re.search(r"CUDA (?:UMD )?Version: *(\d+\.\d+)", text)
    driver = re.search(r"NVIDIA-SMI ([\d.]+)", text)
    names = re.findall(
        r"^GPU \d+: (.*?)(?: \(UUID|$)", read_output(["nvidia-smi", "-L"], 30).text, re.M
    )
    version, newest = (found[1] if found else "unknown" for found in (driver, cuda))
    gpus = f"{len(names)} x {(names or [''])[0]}"
    yield ok("GPU", f"{gpus}, driver {version}, for CUDA up to {newest}")
    return Driver(cuda=newest)


def _broken_gpu(text: str) -> Finding:
    fix = "tell your site's support, and exclude this node: python3 submit.py JOB --exclude="
    return problem("GPU", text, f"{fix}{os.uname().nodename}")


# ---------- Slurm


def find_slurm(machine: Machine | None, account: str) -> Iterator[Finding]:
    """Check that Slurm responds, has the site's partitions, and knows the account."""
    partitions = list(machine.partitions) if machine else []
    expected = machine.name if machine and (machine.required or partitions) else ""
    text, code = read_output(["sinfo", "--noheader", "--format=%R"], 10)
    listed = ", ".join(text.split())
    missing = ", ".join(each for each in partitions if each not in text.split())
    if code == 127 and expected:
        text = "Slurm not found on this machine: sinfo is missing"
        yield warning("Slurm", text, f"submit on a login node of {expected}")
    elif code == 127:
        yield ok("Slurm", "none on this machine")
    elif code and not expected and "configuration source" in text:
        yield ok("Slurm", "Slurm commands are installed, but no cluster is configured")
    elif code:
        reason = f": {last_error(text)}" if text else " within 10 seconds"
        fix = "try again later; check the status page of your site, and: scontrol ping"
        yield problem("Slurm", f"Slurm does not respond{reason}", fix)
    elif missing:
        fix = "correct the partitions in site.toml and in the #SBATCH directives"
        yield warning("Slurm", f"{expected} has no partition {missing}; it has {listed}", fix)
    else:
        yield ok("Slurm", f"answers; partitions: {listed}")
    if not code:
        yield from _find_account(account)


def _find_account(account: str) -> Iterator[Finding]:
    """Compare the account with those of the user, if Slurm lists them."""
    command = "sacctmgr --noheader --parsable2 show associations format=account"
    text, code = read_output([*command.split(), f"user={own_user()}"], 10)
    accounts = [] if code else sorted(set(text.split()))
    listed = ", ".join(accounts)
    if accounts and not account:
        yield ok("account", f"none is configured; your accounts: {listed}")
    elif account.lower() in map(str.lower, accounts):
        yield ok("account", f"{account} is one of your accounts")
    elif accounts:
        fix = f'project.account = "{accounts[0]}" in configuration.toml'
        yield problem("account", f"account {account} is not one of your accounts: {listed}", fix)
