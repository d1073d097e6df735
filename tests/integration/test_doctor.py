"""doctor.py: faults are planted, and each is named with its fix.

They are planted for real, but for what cannot be here: GPUs, Lustre and Slurm's accounting are
programs that say what the real ones would, and so is an old Python.
"""

import http.server
import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
from support import processes
from support.lab import fill
from support.patients import ARCH, TOKEN, Report
from support.repository import toml
from support.tiers import slow

# What starts no container is looked at in half the time.
without_container = pytest.mark.usefixtures("without_container")
HOST = Path("/proc/sys/kernel/hostname")
PASSWORD = "pass/w@rd"
NVIDIA_SMI = """case ${1-} in
-L) echo 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)' ;;
*) echo '| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |' ;;
esac"""
SINCE_610 = """case ${1-} in
-L) echo 'GPU 0: NVIDIA B200 (UUID: GPU-1)' && echo 'GPU 1: NVIDIA B200 (UUID: GPU-2)' ;;
*) echo '| NVIDIA-SMI 610.43.02    KMD Version: 610.43.02    CUDA UMD Version: 13.3     |' ;;
esac"""
OLD_PYTHON = """
import runpy, sys
sys.version_info = (3, 6, 8, "final", 0)
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Https(NamedTuple):
    """A server whose certificate only those trust who are told to."""

    url: str
    certificate: Path


@pytest.fixture
def https_server(require, run, tmp_path):
    """Give a server that answers each GET."""
    require("openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    run([*make, *names, "-keyout", key, "-out", certificate])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    served = tmp_path / "served"
    (served / "simple").mkdir(parents=True)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Https(f"https://localhost:{server.server_port}", certificate)
    server.shutdown()
    thread.join()
    server.server_close()


def test_all_is_well_where_it_is(healthy):
    about_us = [each for each in healthy.findings if each["topic"] != "security"]
    assert {each["state"] for each in about_us} == {"ok"}, healthy.text
    assert healthy.done.returncode == 0


def test_what_can_be_mounted_is_told(healthy):
    shown = "apptainer mounts overlays by FUSE, packed with zstd lz4 xz gzip; --overlay works"
    assert found(healthy, "ok", "mount", shown) == shown


class Fault(NamedTuple):
    """A fault: what spoils a patient, and what has to be said of it.

    `plant` can return variables of the environment with which doctor.py is then called.
    """

    name: str
    plant: Callable
    state: str
    topic: str
    text: str
    fix: str


# --- Python, configuration, site


def old_python(patient):
    real = shlex.join([sys.executable, "-c", OLD_PYTHON])
    patient.program("python3", f'[[ $1 != --version ]] || exec echo Python 3.6.8\nexec {real} "$@"')


def python_without_click(patient):
    venv = patient.folder / "bare"
    make = [sys.executable, "-m", "venv", "--without-pip", venv]
    processes.run(make, env=patient.environment)
    (patient.bin / "python3").symlink_to(venv / "bin/python3")


def named_machine(patient):
    patient.change('machine = "auto"', 'machine = "local"')
    return {"SYSTEMNAME": "juwelsbooster"}


def hidden_folders(patient):
    patient.change('["/"]', '["/e"]', "local/site.toml")


# --- folders


def scratch_at(patient, folder):
    patient.change(f"scratch_dir = {toml(patient.scratch)}", f"scratch_dir = {toml(folder)}")


def scratch_is_a_file(patient):
    scratch_at(patient, patient.write(patient.folder / "a file", "") / "below")


def scratch_is_a_dead_link(patient):
    link = patient.folder / "a link"
    link.symlink_to(patient.folder / "gone")
    scratch_at(patient, link)


def caches_in_home(patient):
    (patient.home / "caches").mkdir()
    (patient.scratch / "cache").symlink_to(patient.home / "caches")


def lock(patient, owner, age=0):
    folder = patient.scratch / "overlays.lock"
    patient.write(folder / "owner", owner)
    then = time.time() - age
    for path in (folder / "owner", folder):
        os.utime(path, (then, then))


def own_stale_lock(patient):
    done = subprocess.Popen(["true"])
    done.wait()
    lock(patient, f"{HOST.read_text().strip()} {done.pid} 1\n")


def unfinished(patient):
    file = patient.write(patient.scratch / "containers/build/x.sif.partial", "half")
    then = time.time() - 7200
    os.utime(file, (then, then))


def quota(numbers):
    return lambda patient: patient.program("lfs", f'[[ $1 == quota ]] && echo " ${{!#}} {numbers}"')


def home_is_gone(patient):
    return {"HOME": str(patient.folder / "nobody")}


def temporary_is_gone(patient):
    return {"TMPDIR": str(patient.write(patient.folder / "no folder", ""))}


# --- runtime, image, overlay, venv


def mangled(patient):
    with open(patient.image, "r+b") as file:
        file.write(bytes(64))


def of_another_architecture(patient):
    with open(patient.image, "r+b") as file:
        head = file.read(48)
        place = head.index(b"SIF_MAGIC\0") + len(b"SIF_MAGIC\0") + 3
        own, other = (b"02", b"04") if head[place : place + 2] == b"02" else (b"04", b"02")
        assert head[place : place + 2] == own
        file.seek(place)
        file.write(other)


def longer(path):
    def plant(patient):
        with open(getattr(patient, path), "ab") as file:
            file.write(b"more")
        os.utime(patient.record)

    return plant


def missing_image(patient):
    patient.image.unlink()


def waiting_image(patient):
    built = patient.scratch / "containers/build" / patient.active.name
    patient.write(built, "")
    patient.write(built.with_name(f"{built.name}.json"), "{\n}\n")


def missing_bind(patient):
    patient.change("binds = []", 'binds = ["/no/where"]')


def other_requirements(patient):
    patient.write(patient.root / "requirements/tiny.txt", "longship_tiny>=1\n")


def overlay_of_another_image(patient):
    patient.record_base("/other/image.sif")


def older_overlay(patient):
    then = time.time() - 7200
    os.utime(patient.record, (then, then))
    os.utime(patient.image)


def no_venv(patient):
    (patient.venv / "longship-base").unlink()


def venv_of_another_overlay(patient):
    (patient.venv / "longship-base").write_text("/other/overlay.sqsh\n")


def no_zstd(patient):
    # A mock: a runtime that mounts no zstd is on other machines. What is packed so is no SquashFS.
    patient.program(
        "mksquashfs",
        'case " $* " in *" -comp zstd "*) echo >"$2"; exit ;; esac\nexec /usr/bin/mksquashfs "$@"',
    )


def without(patient, program):
    """Give a PATH on which all programs are but one."""
    links = patient.folder / f"all but {program}"
    links.mkdir()
    for folder in processes.PATH.split(":"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name != program and not (links / name).is_symlink():
                (links / name).symlink_to(f"{folder}/{name}")
    return {"PATH": f"{patient.bin}:{os.path.dirname(sys.executable)}:{links}"}


def no_runtime(patient):
    patient.change('runtime = "apptainer"', 'runtime = "singularity"')
    return without(patient, "singularity")


# --- repositories


def no_repository(patient):
    patient.mine.folder.rename(patient.folder / "elsewhere")


def merge_with_conflict(patient):
    mine = patient.mine
    mine.git("checkout", "--quiet", "-b", "other")
    mine.replace("model.py", "line 3\n", "theirs\n")
    mine.commit("theirs")
    mine.git("checkout", "--quiet", "-")
    mine.replace("model.py", "line 3\n", "ours\n")
    mine.commit("ours")
    assert mine.git("merge", "other", check=False).returncode


def rebase_with_conflict(patient):
    merge_with_conflict(patient)
    patient.mine.git("merge", "--abort")
    assert patient.mine.git("rebase", "other", check=False).returncode


def conflict_markers(patient):
    merge_with_conflict(patient)
    (patient.mine.folder / ".git/MERGE_HEAD").unlink()


STOPPED = '{"locks": [], "target": "v1", "conflicts": ["model.py"], "stopped": true}'
INTERRUPTED = '{"locks": [], "target": "v1"}'


def stopped_update(patient):
    patient.write(patient.mine.folder / ".git/longship-update/progress.json", STOPPED)


def interrupted_update(patient):
    patient.write(patient.mine.folder / ".git/longship-update/progress.json", INTERRUPTED)


def lock_of_git(patient):
    patient.write(patient.mine.folder / ".git/index.lock", "")


def unsaved_changes(patient):
    patient.mine.replace("model.py", "line 3\n", "mine\n")


def at_another_ref(patient):
    patient.change('ref = "v1"', 'ref = "main"')


# --- network, tokens


def no_bundle(patient):
    return {"SSL_CERT_FILE": str(patient.folder / "no.pem")}


def empty_bundle(patient):
    return {"REQUESTS_CA_BUNDLE": str(patient.write(patient.folder / "empty.pem", ""))}


def dead_proxy(patient):
    return {"https_proxy": f"http://me:{PASSWORD}@127.0.0.1:9"}


def two_proxies(patient):
    return {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:10"}


def dead_index(patient):
    return {"PIP_INDEX_URL": f"https://me:{PASSWORD}@127.0.0.1:9/simple"}


def open_token(patient):
    patient.token.chmod(0o644)


def empty_token(patient):
    patient.token.write_text("")


def written_secret(patient):
    patient.change("set = {}", f'set = {{ LAB_API_KEY = "{PASSWORD}" }}')


# --- Slurm, GPUs


def dead_slurm(patient):
    text = Path(patient.environment["SLURM_CONF"]).read_text().splitlines()
    host = [each for each in text if each.startswith(("SlurmctldPort", "MessageTimeout"))]
    kept = [each for each in text if each not in host]
    file = patient.folder / "slurm.conf"
    file.write_text("\n".join([*kept, "SlurmctldPort=9", "MessageTimeout=2"]) + "\n")
    return {"SLURM_CONF": str(file)}


def no_such_partition(patient):
    patient.change('arch = "auto"', 'arch = "auto"\npartitions.nowhere = {}', "local/site.toml")


def broken_gpu(patient):
    patient.program(
        "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library mismatch'; exit 18"
    )


FULL = "1000000001* 1000000000 1100000000 6d 42 0 0 -"
FAULTS = [
    Fault("old python", old_python, "problem", "python", "needs Python 3.9", "python3 -m venv"),
    Fault(
        *("no click", python_without_click, "problem", "python"),
        *("has no package click", "pip install -r requirements/host.txt"),
    ),
    Fault(
        *("typing error", lambda p: p.configure("[paths\n"), "problem", "configuration"),
        *("configuration.toml", ""),
    ),
    Fault(
        *("unknown key", lambda p: p.change("image =", "imgae ="), "problem", "configuration"),
        *('unknown key "container.imgae"', 'did you mean "image"'),
    ),
    Fault(
        *("other machine", named_machine, "warning", "machine"),
        *("SYSTEMNAME=juwelsbooster identifies jwb", 'machine = "auto"'),
    ),
    Fault("not seen", hidden_folders, "problem", "directories", "do not mount", "under /e"),
    Fault(
        *("scratch is a file", scratch_is_a_file, "problem", "scratch"),
        *("is not a directory", "paths.scratch_dir"),
    ),
    Fault(*("dead link", scratch_is_a_dead_link, "problem", "scratch"), *("is dangling", "rm ")),
    Fault(
        *("caches in home", caches_in_home, "warning", "caches"),
        *("would fill the home directory", "rm "),
    ),
    Fault(
        "dead owner",
        own_stale_lock,
        "warning",
        "locks",
        "no longer runs, but its lock exists",
        "rm -r ",
    ),
    Fault(
        *("dead host", lambda p: lock(p, "elsewhere 7 7\n", 7200), "warning", "locks"),
        *("process 7 on elsewhere no longer runs", "rm -r "),
    ),
    Fault("unfinished", unfinished, "warning", "leftovers", "x.sif.partial", "rm -r "),
    Fault("quota", quota(FULL), "warning", "scratch", "is exhausted", "free some space"),
    Fault("no home", home_is_gone, "problem", "home", "which is not a directory", "export HOME"),
    Fault("no TMPDIR", temporary_is_gone, "problem", "temporary", "is not a directory", "TMPDIR"),
    Fault("no runtime", no_runtime, "problem", "runtime", "not found", "its module"),
    Fault("no image", missing_image, "problem", "image", "image not found", "container.image"),
    Fault("no SIF", mangled, "problem", "image", "not a SIF image", "container.image"),
    Fault(
        "other CPU",
        of_another_architecture,
        "problem",
        "image",
        "wrong architecture",
        "container.image",
    ),
    Fault("other size", longer("image"), "problem", "image", "is damaged: ", "--force"),
    Fault(
        "new image",
        waiting_image,
        "warning",
        "image",
        "ready to activate",
        "move_built_container_to_",
    ),
    Fault("no bind", missing_bind, "problem", "inside", "cannot bind /no/where", "container.binds"),
    Fault("no zstd", no_zstd, "problem", "mount", "packed with zstd", 'compression = "lz4"'),
    Fault("no overlay", other_requirements, "problem", "overlay", "not found", "build_overlay.py"),
    Fault(
        *("other image", overlay_of_another_image, "problem", "overlay"),
        *("was built for /other/image.sif", "build_overlay.py"),
    ),
    Fault("older overlay", older_overlay, "problem", "overlay", "is newer", "build_overlay.py"),
    Fault(
        "overlay's size",
        longer("overlay"),
        "problem",
        "overlay",
        "be damaged: ",
        "build_overlay",
    ),
    Fault("no venv", no_venv, "problem", "packages", "not installed", "set_up.py install"),
    Fault(
        *("other venv", venv_of_another_overlay, "problem", "packages"),
        *("installed on top of /other/overlay.sqsh", "set_up.py install"),
    ),
    Fault("no clone", no_repository, "problem", "repository", "not found", "set_up.py install"),
    Fault("merge", merge_with_conflict, "problem", "repository", "a merge is in", "git -C"),
    Fault("rebase", rebase_with_conflict, "problem", "repository", "a rebase is", "git -C"),
    Fault("conflict", conflict_markers, "problem", "repository", "unresolved conflicts", "git -C"),
    Fault("stopped", stopped_update, "problem", "repository", "is waiting for you", "--continue"),
    Fault(
        *("interrupted", interrupted_update, "problem", "repository"),
        *("an update was interrupted", "set_up.py update"),
    ),
    Fault("git's lock", lock_of_git, "problem", "repository", "another git process", "rm "),
    Fault("unsaved", unsaved_changes, "warning", "repository", "not be in patches", "save-patches"),
    Fault("other ref", at_another_ref, "warning", "repository", "configured", "set_up.py update"),
    Fault(
        "no bundle", no_bundle, "problem", "certificates", "does not exist", "unset SSL_CERT_FILE"
    ),
    Fault("empty bundle", empty_bundle, "problem", "certificates", "no certificate", "unset REQ"),
    Fault("dead proxy", dead_proxy, "problem", "proxy", "http://***@127.0.0.1:9", "unset https_"),
    Fault(
        "two proxies",
        two_proxies,
        "warning",
        "proxy",
        "some programs read the first",
        "export HTTPS_PROXY",
    ),
    Fault("no index", dead_index, "warning", "network", "https://***@127.0.0.1:9", "https_proxy"),
    Fault("open token", open_token, "problem", "tokens", "read by others (mode 644)", "chmod 600"),
    Fault("empty token", empty_token, "warning", "tokens", "is empty", "rm "),
    Fault(
        "secret", written_secret, "problem", "secrets", "sets LAB_API_KEY", "environment.secrets"
    ),
    Fault("dead Slurm", dead_slurm, "problem", "Slurm", "does not respond", "try again later"),
    Fault("partition", no_such_partition, "warning", "Slurm", "no partition nowhere", "site.toml"),
    Fault("broken GPU", broken_gpu, "problem", "GPU", "Driver/library mismatch", "--exclude="),
]
JOB = "local/run_training_local.sbatch"


# Each of these keeps the doctor from looking at other things, so it is planted alone.
ALONE = {
    *("old python", "no click", "typing error", "unknown key", "other machine", "not seen"),
    *("scratch is a file", "dead link", "no home", "no TMPDIR", "no runtime", "no image"),
    *("no SIF", "other CPU", "no bind", "dead Slurm"),
}
# Of those alone, each that is looked at outside of a container.
OUTSIDE = {
    *("old python", "no click", "typing error", "unknown key", "other machine"),
    *("scratch is a file", "dead link", "no home", "no TMPDIR", "dead Slurm"),
}
# What is said of one of these topics can hide what would be said of another.
TOGETHER = ({"image", "overlay", "packages", "mount"}, {"certificates", "proxy", "network"})


def patients():
    """Deal the faults to patients: as many to each as can be told apart."""
    groups = [[each] for each in FAULTS if each.name in ALONE]
    shared = []
    for fault in FAULTS:
        if fault.name in ALONE:
            continue
        subject = next((each for each in TOGETHER if fault.topic in each), {fault.topic})
        free = (each for each in shared if not subject & {other.topic for other in each})
        group = next(free, None)
        if group is None:
            shared.append([fault])
        else:
            group.append(fault)
    return [*groups, *shared]


@pytest.mark.parametrize(
    "faults", patients(), ids=lambda faults: ", ".join(each.name for each in faults)
)
def test_faults_are_named_with_their_fixes(faults, patient, healthy):
    for fault in faults:
        assert healthy.states(fault.topic) <= {"ok"}
        assert healthy.of(fault.topic) or fault.topic == "locks"
    if faults[0].name in OUTSIDE:
        patient.use_no_container()
    env = {name: value for fault in faults for name, value in (fault.plant(patient) or {}).items()}
    report = patient.report(env=env or None)
    for fault in faults:
        found(report, fault.state, fault.topic, fault.text, fault.fix)
    assert report.done.returncode == (1 if report.json["problems"] else 0)
    problems = sum(fault.state == "problem" for fault in faults)
    assert problems <= report.json["problems"]
    for secret in (PASSWORD, TOKEN, "w@rd"):
        assert secret not in report.text


# --- the same for what a table cannot say: disks, namespaces, and what is not ok without a mock


def found(report, state, topic, text, fix=""):
    """Check that it is told; return the text."""
    told = [
        each["text"]
        for each in report.of(topic)
        if each["state"] == state and text in each["text"] and fix in each["fix"]
    ]
    assert told, report.text
    return told[0]


@without_container
def test_full_disk_is_a_problem(patient, healthy, small_disk):
    disk = small_disk(16)
    scratch_at(patient, disk)
    found(patient.report(), "warning", "scratch", "has only 1", "free some space there")
    fill(disk)
    found(patient.report(), "problem", "scratch", "No space left on device", "free some space")
    assert healthy.states("scratch") == {"ok"}


@pytest.mark.slow  # as a full one
@without_container
def test_disk_without_inodes_is_told(patient, small_disk):
    disk = small_disk(16)
    scratch_at(patient, disk)
    found(patient.report(), "warning", "scratch", "more files", "free some space there")


@without_container
def test_folder_without_a_right_to_write_is_a_problem(patient, healthy, read_only_folder):
    scratch_at(patient, read_only_folder)
    found(patient.report(), "problem", "scratch", "cannot write to", "paths.scratch_dir")
    assert healthy.states("scratch") == {"ok"}


@without_container
def test_folder_that_starts_no_programs_is_a_problem(patient, healthy, small_disk):
    disk = small_disk(16, options="rw,noexec")
    scratch_at(patient, disk)
    found(patient.report(), "problem", "scratch", "cannot start programs", "findmnt --target")
    assert not list(disk.iterdir()), "the program that was tried is left"
    assert healthy.states("scratch") == {"ok"}


def in_namespace(patient, options, script):
    """Give what is found in namespaces that a script has changed."""
    shell = ["unshare", "--user", *options, "sh", "-c", f'{script} && exec "$@"', "sh"]
    command = [*shell, *patient.command("doctor.py", "--json")]
    done = processes.run(command, env=patient.environment, cwd=patient.root, check=False)
    return Report(done)


@pytest.mark.needs("namespaces")
def test_fuse_that_may_not_be_used_is_told(patient, healthy, tmp_path):
    # only root may open that file
    script = "mount --bind /etc/gshadow /dev/fuse"
    report = in_namespace(patient, ["--map-current-user", "--keep-caps", "--mount"], script)
    found(report, "warning", "FUSE", "is not accessible", "ask your site")
    assert healthy.states("FUSE") == {"ok"}


@pytest.mark.needs("namespaces")
def test_missing_user_namespaces_are_a_problem(patient, healthy):
    script = "echo 0 >/proc/sys/user/max_user_namespaces"
    report = in_namespace(patient, ["--map-root-user"], script)
    found(
        report,
        "problem",
        "namespaces",
        "user namespaces are not available",
        "ask your site to set: sysctl",
    )
    assert healthy.states("namespaces") == {"ok"}


@without_container
@pytest.mark.parametrize("program", ["curl", slow("python3")])
def test_certificate_that_is_not_trusted_is_a_problem(program, patient, https_server):
    environment = {"PIP_INDEX_URL": f"{https_server.url}/simple"}
    if program == "python3":
        environment.update(without(patient, "curl"))
    report = patient.report(env=environment)
    found(report, "problem", "network", "is not trusted on this machine", "export SSL_CERT_FILE=")
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        environment[name] = str(https_server.certificate)
    found(patient.report(env=environment), "ok", "network", f"answers: {https_server.url}")


@without_container
def test_password_is_in_no_argument(patient):
    seen = patient.folder / "seen"
    patient.program(
        "curl", f'printf "%s\\n" "$@" >>{shlex.quote(str(seen))}; cat >/dev/null; exit 7'
    )
    who = "me:hidden"
    index = f"https://{who}@127.0.0.1:9/simple"
    report = patient.report(env={"PIP_INDEX_URL": index})
    found(report, "warning", "network", "https://***@127.0.0.1:9/simple is not reachable")
    assert "--config" in seen.read_text()
    assert "hidden" not in seen.read_text() + report.text


@without_container
@pytest.mark.parametrize(("account", "state"), [slow("lab", "ok"), ("ours", "problem")])
def test_account_is_compared_with_those_that_slurm_knows(account, state, patient):
    # A mock: the tests' Slurm keeps no accounts.
    patient.program("sacctmgr", "printf 'lab\\nothers\\n'")
    patient.change("[paths]", f'[project]\naccount = "{account}"\n[paths]')
    fix = 'project.account = "lab"' if state == "problem" else ""
    found(patient.report(), state, "account", account, fix)


@without_container
@pytest.mark.parametrize(
    ("cuda", "state", "text"),
    [
        slow("12.9.1", "ok", "1 visible; the image has CUDA 12.9"),
        slow("11.8", "ok", "the image has CUDA 11.8"),
        ("13.0.1", "problem", "the image has CUDA 13.0, but the driver supports only 12.4"),
    ],
)
def test_driver_is_compared_with_the_cuda_of_the_image(cuda, state, text, patient):
    # A mock of the driver's program, seen without a container only.
    patient.program("nvidia-smi", NVIDIA_SMI)
    report = patient.report(env={"CUDA_VERSION": cuda})
    found(report, "ok", "GPU", "1 x NVIDIA A100-SXM4-40GB, driver 550.54.15, for CUDA up to 12.4")
    found(report, state, "GPU inside", text)


@pytest.mark.slow  # as the one before
@without_container
def test_newer_driver_is_understood(patient):
    patient.program("nvidia-smi", SINCE_610)
    report = patient.report(env={"CUDA_VERSION": "13.4"})
    found(report, "ok", "GPU", "2 x NVIDIA B200, driver 610.43.02, for CUDA up to 13.3")
    found(report, "ok", "GPU inside", "2 visible; the image has CUDA 13.4")


def test_gpu_that_is_not_seen_inside_is_a_problem(patient):
    patient.program("nvidia-smi", NVIDIA_SMI)
    found(
        patient.report(), "problem", "GPU inside", "GPUs of this node are not visible", "nvidia-smi"
    )


# --- what looks like a fault and is none


@without_container
def test_lock_of_a_process_that_works_is_no_fault(patient):
    with subprocess.Popen(["sleep", "600"]) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        start = stat.rpartition(")")[2].split()[19]
        lock(patient, f"{HOST.read_text().strip()} {process.pid} {start}\n")
        report = patient.report()
        process.kill()
    found(report, "ok", "locks", f"process {process.pid} on ")


@without_container
def test_changes_are_told_unless_all_are_committed_and_saved(patient):
    unsaved_changes(patient)
    found(patient.report(), "warning", "repository", "with changes that may not be in patches/")
    patient.mine.git("commit", "--quiet", "--all", "--message=mine")
    patient.set_up("save-patches")
    found(patient.report(), "ok", "repository", "unchanged")


@without_container
@pytest.mark.parametrize("why", [slow("in a job"), "carried here"])
def test_no_way_out_is_no_fault_where_there_need_be_none(why, patient):
    env = dead_index(patient)
    if why == "in a job":
        env["SLURM_JOB_ID"] = "1"
    else:
        patient.write(patient.scratch / "offline/pip/a.whl", "")
    report = patient.report(env=env)
    found(report, "ok", "network", "is not reachable")
    assert report.states("network") == {"ok"}


def test_other_architecture_of_compute_nodes_is_no_fault(patient):
    # as on Olivia, whose login nodes are amd64: nothing of the image is started there
    other = "arm64" if ARCH == "amd64" else "amd64"
    patient.change('arch = "auto"', f'arch = "{other}"', "local/site.toml")
    built = patient.image.stat().st_mtime_ns
    of_another_architecture(patient)
    os.utime(patient.image, ns=(built, built))
    name = patient.active.name.replace(ARCH, other)
    patient.active.rename(patient.active.with_name(name))
    report = patient.report()
    found(report, "ok", "architecture", f"this machine is {ARCH}, and local computes on {other}")
    assert report.states("image") == {"ok"}
    assert not report.of("inside") + report.of("mount")


# --- how it is told


def test_text_fits_a_screen_and_ends_with_the_next_step(patient):
    missing_bind(patient)
    done = patient.doctor()
    lines = done.stdout.splitlines()
    place = lines.index(next(each for each in lines if each.startswith("problem")))
    assert lines[place].startswith(
        "problem  inside         cannot bind /no/where: no such file or directory"
    )
    fix = "check container.binds in configuration.toml"
    assert lines[place + 1] == f"         fix: {fix}"
    assert lines[-2] == f"next: {fix}"
    assert "--json" in lines[-1]
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    words = [each for each in lines[:place] if len(each) > 80]
    assert all(len(each.split()[-1]) > 56 for each in words), words


@without_container
def test_all_values_are_told_with_their_origin(patient):
    patient.write(patient.root / "configuration.local.toml", "[packages]\nprocessors = 2\n")
    shown = patient.doctor("--stack", "pytorch").stdout
    report = patient.report()
    values = {each["key"]: each for each in report.json["values"]}
    assert values["packages.processors"]["value"] == "2"
    assert values["packages.processors"]["origin"] == "configuration.local.toml"
    assert values["packages.installer"]["origin"] == "default"
    assert re.search(r"^packages.processors +configuration.local.toml +2$", shown, re.MULTILINE)
    assert re.search(r'^stack +command line +"pytorch"$', shown, re.MULTILINE)


@pytest.mark.parametrize("arguments", [slow(()), ("--json",)], ids=["text", "json"])
def test_nothing_is_changed(arguments, patient):
    def state():
        return {
            path: path.lstat().st_mtime_ns
            for folder in (patient.project, patient.home, patient.scratch)
            for path in folder.rglob("*")
            if path.name != ".apptainer"  # which Apptainer makes
        }

    before = state()
    patient.doctor(*arguments)
    assert state() == before


@without_container
def test_names_of_files_do_not_break_json(patient):
    folder = os.fsencode(patient.scratch / "containers")
    path = folder + b'/\xff\n"x\x1b[31m.partial'
    with open(path, "wb"):
        pass
    os.utime(path, (1, 1))
    text = found(patient.report(), "warning", "leftovers", ".partial", "rm -r ")
    assert "\x1b" not in text


def test_broken_configuration_still_has_the_rest_looked_at(patient):
    patient.configure("[paths\n")
    report = patient.report()
    found(report, "problem", "configuration", "configuration.toml")
    assert {"python", "temporary", "network", "Slurm"} <= {x["topic"] for x in report.findings}
    shown = patient.doctor().stdout
    assert re.search(r"^problem  configuration  ", shown, re.MULTILINE)
    assert re.search(r"^next: ", shown, re.MULTILINE)


def test_account_that_the_paths_need_is_a_problem_among_others(patient):
    patient.change(f"scratch_dir = {toml(patient.scratch)}", 'scratch_dir = "/x/{account}"')
    report = patient.report()
    found(report, "problem", "paths", "{account} is not set", "set project.account")
    assert report.states("Slurm") == {"ok"}
    assert report.json["values"]
