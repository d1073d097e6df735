"""build_overlay.py with real Apptainer, docker, podman and uv: built, mounted, shared, pruned."""

import hashlib
import json
import os
import re
import shutil
import signal
import ssl
import stat
import time

import pytest
from support import processes
from support.environments import write_wheel
from support.lab import fill, is_told
from support.overlays import OWN, TINY, path_with_refusal
from support.packages import configured_repositories, write_packages, write_repositories
from support.repository import toml
from support.terminal import Terminal

IMAGES = ("apptainer", "docker", "podman")
# Without an image the machine itself packs; an image brings its own packer.
HOST = pytest.param("host", marks=pytest.mark.needs("mksquashfs"))
SLOW_HOST = pytest.param("host", marks=[pytest.mark.needs("mksquashfs"), pytest.mark.slow])
PREFIX = "/user-software"
SECONDS = 300  # what a test waits for at most


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("runtime", [*IMAGES, HOST])
def test_packages_are_there_in_every_runtime(runtime, with_overlay):
    clone = with_overlay(runtime)
    show = "import longship_tiny, os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'], "
    show += "os.environ['PATH'].split(':')[0], longship_tiny.__file__, longship_tiny.__cached__)"
    shown = clone.container_run("python", "-c", show).stdout
    prefix, venv, first, file, cached = shown.split(f" {os.sep}")
    assert venv == prefix[1:]
    assert first == f"{venv}/bin"
    assert file.startswith(venv)
    if runtime != "host":
        assert prefix == PREFIX
    exists = f"import os; print(os.path.exists({('/' + cached.strip())!r}))"
    assert clone.container_run("python", "-c", exists).stdout == "True\n"
    assert clone.container_run("longship_tiny").stdout == "1.0\n"


@pytest.mark.parametrize("runtime", IMAGES)
def test_contract_is_that_of_a_venv(runtime, with_overlay):
    clone = with_overlay(runtime)
    activate = (
        f"deactivate() {{ :; }}; source {PREFIX}/bin/activate; command -v longship_tiny python"
    )
    shown = clone.container_run("bash", "-c", activate).stdout
    assert shown == f"{PREFIX}/bin/longship_tiny\n{PREFIX}/bin/python\n"
    first = clone.container_run("head", "-n", "1", f"{PREFIX}/bin/longship_tiny").stdout
    assert first == f"#!{PREFIX}/bin/python\n"
    write = clone.container_run("touch", f"{PREFIX}/x", check=False)
    assert write.returncode != 0 and "ead-only" in write.stderr
    # what only the image has is seen below it
    assert clone.container_run(
        "python", "-c", "import yaml; print(yaml.__file__)"
    ).stdout.startswith("/usr/lib")


def test_manifest_says_what_it_was_made_from(with_overlay, base_image):
    clone = with_overlay()
    manifest = json.loads(clone.container_run("cat", f"{PREFIX}/longship-overlay.json").stdout)
    assert manifest["requirements"] == TINY
    assert "longship-tiny==1.0" in manifest["lock"].split("\n")
    assert manifest["architecture"] == OWN
    assert manifest["image"].startswith(("sif:", "sha256:"))
    version = clone.container_run(
        "python3", "-c", "import platform; print(platform.python_version())"
    )
    assert manifest["python"] == version.stdout.strip()
    assert manifest["uv"].startswith("uv ")
    record = json.loads(clone.link().resolve().with_suffix(".sqsh.json").read_text())
    assert record["sha256"] == f"sha256:{sha256(clone.link())}"
    assert record["mounted_by"] == "bind"


def test_files_tell_nothing_of_who_made_them(with_overlay):
    clone = with_overlay()
    script = f"find {PREFIX} ! -type l -printf '%T@ %m %U %y\\n' | sort -u"
    shown = clone.container_run("sh", "-c", script).stdout.split("\n")[:-1]
    assert {line.split()[0] for line in shown} == {"315532800.0000000000"}
    assert {tuple(line.split()[1::2]) for line in shown} <= {
        ("755", "d"),
        ("755", "f"),
        ("644", "f"),
    }


def test_launcher_mounts_it_and_starts_no_process_of_its_own(with_overlay, tmp_path, run):
    clone = with_overlay()
    launcher = tmp_path / "launcher"
    clone.container_run("--launcher", launcher)
    assert run([launcher, "longship_tiny"], env=clone.environment).stdout == "1.0\n"
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-e", "trace=execve,fork,vfork,clone,clone3", "-o", trace]
    second = {**clone.environment, "SLURM_LOCALID": "1"}  # the first rank of a node reads ahead
    run([*strace, "bash", launcher, "true"], env=second)
    calls = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]
    calls = [call for call in calls if " = -1 " not in call]
    # bash becomes the runtime; it starts nothing before that, no subshell either
    assert calls[0].startswith("execve(") and "bash" in calls[0]
    assert calls[1].startswith("execve(") and '/apptainer"' in calls[1], calls[:3]


# --- the same inputs, the same bytes


def test_two_builds_are_the_same_file(make_overlay_clone, wheels, tmp_path):
    """In other folders, at another time, with other rights, caches and variables.

    Only in the first folder can the packages be links to uv's cache.
    """
    found = []
    for number, umask in enumerate((0o022, 0o077)):
        more = f"work_dir = {toml(str(tmp_path / 'it is elsewhere'))}\n" if number else ""
        clone = make_overlay_clone(tmp_path / f"folder {number}", more=more)
        command = ["sh", "-c", f'umask {umask:03o}; exec "$@"', "x"]
        env = {**clone.environment, **clone.find, "TZ": f"UTC+{number}", "SOURCE_DATE_EPOCH": "1"}
        if number:
            env.update(PYTHONOPTIMIZE="1", PYTHONPYCACHEPREFIX=str(tmp_path / "bytecode"))
        processes.run([*command, *clone.command("build_overlay.py")], env=env, cwd=clone.root)
        found.append((clone.link().resolve().name, sha256(clone.link())))
        time.sleep(1.1)  # a file's time is in seconds
        names = [
            each.stat().st_nlink for each in (clone.scratch / "cache/uv").rglob("longship_tiny.py")
        ]
        assert names == [1]  # the links are deleted
    assert found[0] == found[1]
    for wheel in wheels.iterdir():
        os.utime(wheel)  # uv can write down when it saw a wheel
    before = clone.link().stat().st_ino
    clone.overlay("--force")
    assert sha256(clone.link()) == found[0][1]
    assert clone.link().stat().st_ino == before  # programs of other nodes may have it open


@pytest.mark.parametrize(
    "compression", ["xz", *(pytest.param(each, marks=pytest.mark.slow) for each in ("lz4", "gzip"))]
)
def test_every_compression_is_mounted(compression, fresh):
    fresh.change(
        "[packages]\n",
        f'[packages]\ncompression = "{compression}"\nprocessors = 1\nmemory = "1G"\n',
    )
    fresh.overlay()
    kinds = {"gzip": 1, "xz": 4, "lz4": 5}
    with open(fresh.link(), "rb") as file:
        assert file.read(22)[20] == kinds[compression]
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"


def test_compression_that_cannot_be_mounted_is_told(fresh, tmp_path):
    """The packer here marks what it packs with zstd as packed with something that nobody knows."""
    path = add_packer(
        tmp_path,
        '"$real" "$@"\nif [[ $4 == zstd ]]; then\n  printf \'\\11\' |\n'
        '    dd of="$2" bs=1 seek=20 conv=notrunc status=none\nfi\n',
    )
    done = fresh.overlay(env={"PATH": path}, check=False)
    is_told(done, "cannot mount SquashFS files packed with zstd", 'packages.compression = "gzip"')
    assert fresh.versions() == [] and fresh.left() == []


def add_packer(folder, text):
    """Put a mksquashfs before the real one; return a PATH."""
    packer = folder / "programs/mksquashfs"
    packer.parent.mkdir()
    real = shutil.which("mksquashfs", path=processes.PATH)
    packer.write_text(
        f'#!/bin/bash\nset -e\nreal={real}\nif (($# < 2)); then exec "$real" "$@"; fi\n' + text
    )
    packer.chmod(0o755)
    return f"{packer.parent}:{processes.PATH}"


def test_file_that_cannot_be_bound_is_laid_over_the_image(fresh, tmp_path, run):
    """The Apptainer here refuses to bind a file's content, as older ones do."""
    env = {"PATH": path_with_refusal(tmp_path, "image-src=")}
    fresh.overlay(env=env)
    assert fresh.container_run("longship_tiny", env=env).stdout == "1.0\n"
    show = "import sys, yaml; print(sys.prefix)"
    assert fresh.container_run("python", "-c", show, env=env).stdout == f"{PREFIX}\n"
    write = fresh.container_run("touch", f"{PREFIX}/x", env=env, check=False)
    assert write.returncode != 0
    record = json.loads(fresh.link().resolve().with_suffix(".sqsh.json").read_text())
    assert record["mounted_by"] == "overlay"


@pytest.mark.parametrize("version", [None, pytest.param("4.3", marks=pytest.mark.slow)])
def test_missing_packer_is_told(version, on_host, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in processes.PATH.split(":"):
        for path in os.listdir(folder) if os.path.isdir(folder) else []:
            if path != "mksquashfs" and not (programs / path).is_symlink():
                (programs / path).symlink_to(f"{folder}/{path}")
    if version:
        (programs / "mksquashfs").write_text(f"#!/bin/sh\necho mksquashfs version {version}\n")
        (programs / "mksquashfs").chmod(0o755)
    done = on_host.overlay(env={"PATH": str(programs)}, check=False)
    is_told(done, "mksquashfs 4.4 or newer not found", 'packages.overlay = ""')


@pytest.mark.slow  # test_progress_on_a_terminal... of images
def test_packing_shows_on_a_terminal_how_far_it_is(fresh):
    clone = fresh
    command, environment = clone.command("build_overlay.py"), {**clone.environment, **fresh.find}
    with Terminal(command, env=environment, cwd=clone.root) as terminal:
        assert terminal.end() == 0, terminal.said
    packing = terminal.said.partition("[5/6] Packing the overlay with ")[2]
    assert re.search(r"\[=+[-/|\\]?\] +\d+/\d+ +100%", packing)
    assert sha256(fresh.link()) in packing


# --- which overlay belongs to a launch


def test_installation_into_an_overlay_is_refused_and_elsewhere_works(
    with_overlay, wheels, tmp_path
):
    clone = with_overlay()
    for words in (["pip", "install"], ["python", "-m", "pip", "install"], ["uv", "pip", "install"]):
        done = clone.container_run(*words, "x", check=False)
        is_told(done, "in an overlay, which cannot be changed", "python3 build_overlay.py")


def test_missing_overlay_is_told(fresh):
    done = fresh.container_run("true", check=False)
    is_told(done, f"overlay not found, or its record: {fresh.link()}", "python3 build_overlay.py")


@pytest.mark.needs("mksquashfs")
def test_change_of_the_requirements_asks_for_another_overlay(on_host):
    on_host.overlay()
    first = on_host.link()
    assert on_host.container_run("longship_tiny").stdout == "1.0\n"
    on_host.require(TINY, "longship_extra")
    done = on_host.container_run("true", check=False)
    is_told(done, f"overlay not found, or its record: {on_host.link()}", "python3 build_overlay.py")
    on_host.require(TINY)
    assert on_host.link() == first
    assert on_host.container_run("longship_tiny").stdout == "1.0\n"


def test_overlay_of_another_image_is_told_and_made_for_this_one(fresh, base_image, tmp_path):
    fresh.overlay()
    copy = tmp_path / "copy.sif"
    shutil.copy(base_image, copy)
    fresh.change(toml(str(base_image)), toml(str(copy)))
    done = fresh.container_run("true", check=False)
    is_told(done, f"was built for {base_image} with Python 3.", "python3 build_overlay.py")
    before = sha256(fresh.link())
    done = fresh.overlay()
    assert "[1/6]" not in done.stderr  # the same image by another name: nothing is built
    assert sha256(fresh.link()) == before
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"
    # and a launcher that was written for the other name goes on
    fresh.change(toml(str(copy)), toml(str(base_image)))
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"
    # an image that is replaced where it lies
    fresh.change(toml(str(base_image)), toml(str(copy)))
    os.utime(copy, (time.time() + 60,) * 2)
    done = fresh.container_run("true", check=False)
    is_told(done, f"image {copy} is newer than the overlay", "python3 build_overlay.py")


@pytest.mark.slow  # as that of another image
@pytest.mark.needs("mksquashfs")
def test_another_python_of_the_machine_is_told(on_host):
    on_host.overlay()
    record = on_host.link().resolve().with_suffix(".sqsh.json")
    text = json.loads(record.read_text())
    record.write_text(record.read_text().replace(f'"{text["python"]}"', '"3.7.1"'))
    done = on_host.container_run("true", check=False)
    is_told(done, f"for Python 3.7.1, but this machine has {text['python']}", "build_overlay.py")


def test_second_build_does_nothing(with_overlay):
    clone = with_overlay()
    before = os.stat(clone.link()).st_mtime_ns
    done = clone.overlay(env={"PIP_FIND_LINKS": "/nowhere"})  # nothing could be installed
    assert "the overlay is up to date" in done.stderr and "[1/6]" not in done.stderr
    assert os.stat(clone.link()).st_mtime_ns == before


@pytest.mark.needs("mksquashfs")
def test_running_launcher_keeps_the_overlay_that_it_started_with(on_host, wheels, tmp_path, run):
    on_host.overlay()
    launcher = tmp_path / "launcher"
    on_host.container_run("--launcher", launcher)
    on_host.require("longship_tiny")  # another file name
    on_host.overlay()
    assert len(on_host.versions()) == 2
    assert run([launcher, "longship_tiny"], env=on_host.environment).stdout == "1.0\n"
    done = on_host.overlay("--prune", "--yes")
    assert f"kept, pinned by {launcher}" in done.stderr
    launcher.unlink()
    done = on_host.overlay("--prune", "--yes")
    assert "deleted: " in done.stderr and "freed: " in done.stderr
    assert [os.readlink(on_host.link())] == [f"versions/{name}" for name in on_host.versions()]
    assert len(list(on_host.folder.glob("unpacked/*"))) == 1
    assert len(list(on_host.folder.glob("*.sqsh"))) == 1


@pytest.mark.slow  # a launcher keeps it above
@pytest.mark.needs("mksquashfs")
def test_running_job_keeps_its_overlay(on_host, tmp_path, run):
    """Slurm is a stand-in that knows job 4711; the real one keeps an image in test_jobs.py."""
    on_host.overlay()
    on_host.container_run("--launcher", tmp_path / "launcher", env={"SLURM_JOB_ID": "4711"})
    (tmp_path / "launcher").unlink()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "squeue").write_text("#!/bin/sh\necho RUNNING\n")
    (programs / "squeue").chmod(0o755)
    on_host.require("longship_tiny")
    on_host.overlay()
    path = {"PATH": f"{programs}:{processes.PATH}"}
    assert "kept, pinned by job 4711" in on_host.overlay("--prune", "--yes", env=path).stderr
    (programs / "squeue").write_text("#!/bin/sh\n")
    assert "deleted: " in on_host.overlay("--prune", "--yes", env=path).stderr


@pytest.mark.needs("mksquashfs")
def test_list_shows_what_there_is_and_what_is_for_now(on_host):
    shown = on_host.overlay("--list")
    assert "not built yet" in shown.stdout and "build_overlay.py" in shown.stderr
    on_host.overlay()
    first = os.readlink(on_host.link()).partition("/")[2][: -len(".sqsh")]
    lines = on_host.overlay("--list").stdout.splitlines()
    assert lines[1].startswith(f"* {first} ") and lines[1].endswith(TINY)
    assert " never " in lines[1] and lines[2] == "  active"
    on_host.container_run("true")
    today = time.strftime("%Y-%m-%d")
    assert on_host.overlay("--list").stdout.count(today) == 2
    on_host.require("longship_tiny")
    lines = on_host.overlay("--list").stdout.splitlines()
    assert lines[1].startswith(f"  {first} ") and "not built yet" in lines[2]


@pytest.mark.needs("mksquashfs")
def test_prune_asks(on_host, require):
    on_host.overlay()
    on_host.require("longship_tiny")
    before = on_host.versions()
    is_told(on_host.overlay("--prune", check=False), "cannot ask for confirmation", "--yes")
    assert on_host.versions() == before
    require("basics")
    for answer, left in (("n", before), ("", before), ("y", [])):
        command = processes.shlex.join(map(str, on_host.command("build_overlay.py", "--prune")))
        typed = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
        done = processes.run(typed, env=on_host.environment, cwd=on_host.root, input=f"{answer}\n")
        assert "[y/N]" in done.stdout
        assert on_host.versions() == left


@pytest.mark.slow  # as the other tests of --prune
@pytest.mark.needs("mksquashfs")
def test_prune_leaves_what_a_launch_unpacks(on_host):
    on_host.overlay()
    live = [
        on_host.folder / f"unpacked/myenv_x{end}" for end in (".lock", ".lock.new.h.1", ".partial")
    ]
    for path in live:
        path.mkdir()
    on_host.overlay("--prune", "--yes")
    assert all(path.exists() for path in live)


@pytest.mark.needs("mksquashfs")
def test_failed_build_touches_nothing_else(on_host):
    """Though a variable of the caller has the name of one of the script's."""
    on_host.require("longship_nowhere")
    kept = on_host.scratch / "kept.partial"
    kept.write_text("mine")
    env = {"version": str(on_host.scratch / "kept"), "seen_at": str(on_host.scratch)}
    assert on_host.overlay(env=env, check=False).returncode == 1
    assert kept.read_text() == "mine"


@pytest.mark.needs("mksquashfs")
def test_prune_removes_what_killed_builds_left(on_host):
    on_host.overlay()
    (on_host.folder / "versions/x.sqsh.partial").write_text("half")
    plan = on_host.overlay("--prune", "--dry-run").stdout
    works = re.search(r"cache/overlays/longship-[0-9a-f]{12}", plan)[0]
    work = on_host.scratch / f"{works}.1/myenv_x"
    work.mkdir(parents=True)
    gone = on_host.folder / "unpacked/myenv_gone"
    gone.mkdir(parents=True)
    (on_host.folder / "dangling.sqsh").symlink_to("versions/gone.sqsh")
    (on_host.folder / "versions/gone.sqsh.json").write_text("{}\n")
    on_host.overlay("--prune", "--yes")
    assert not gone.exists() and not work.exists()
    assert not (on_host.folder / "versions/x.sqsh.partial").exists()
    assert not (on_host.folder / "dangling.sqsh").is_symlink()
    assert not (on_host.folder / "versions/gone.sqsh.json").exists()
    assert on_host.container_run("longship_tiny").stdout == "1.0\n"


# --- names


def test_path_is_the_one_that_olivias_users_know(on_host):
    on_host.require("trl", "datasets", "sacrebleu", "wandb")
    done = on_host.overlay("--print-path", "--machine", "olivia", env={"PATH": "/usr/bin:/bin"})
    assert done.stdout.endswith("/overlays/myenv_998211f8576b_arm64.sqsh\n")
    assert done.stderr == ""


def test_build_for_another_architecture_names_the_job(on_host):
    text = (on_host.root / "configuration.toml").read_text()
    on_host.configure(
        text + '[machines.olivia]\nproject.account = "nn1k"\ncontainer.runtime = "host"\n'
    )
    done = on_host.overlay("--machine", "olivia", check=False)
    job = "python3 submit.py olivia/build_overlay.sbatch"
    is_told(done, f"cannot build an overlay for arm64 on this {OWN} machine", job)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--list", "--prune"], "cannot be combined"),
        (["--yes"], "--yes requires --prune"),
        (["onlin"], 'did you mean "online"? valid values: online, download, offline'),
        (["--lst"], "did you mean --list?"),
    ],
)
def test_wrong_calls_are_told(words, message, on_host):
    done = on_host.overlay(*words, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_no_overlay_configured_is_told(on_host):
    on_host.change('overlay = "myenv"\n', "")
    done = on_host.overlay(check=False)
    is_told(done, "no overlay is configured", "[packages] of configuration.toml")


# --- nothing lost, whatever happens


@pytest.mark.parametrize("runtime", ["apptainer", SLOW_HOST])
def test_two_at_once_build_once(runtime, make_overlay_clone, tmp_path):
    clone = make_overlay_clone(tmp_path, runtime)
    started = [clone.start("build_overlay.py", env=clone.find) for _ in range(2)]
    texts = [process.communicate(timeout=SECONDS)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], texts
    assert sorted("[5/6]" in text for text in texts) == [False, True]
    assert clone.left() == []


@pytest.mark.needs("mksquashfs")
def test_reader_of_the_group_can_use_it(make_overlay_clone, tmp_path):
    clone = make_overlay_clone(tmp_path, "host")
    command = ["sh", "-c", 'umask 077; exec "$@"', "x", *clone.command("build_overlay.py")]
    processes.run(command, env={**clone.environment, **clone.find}, cwd=clone.root)
    version = clone.link().resolve()
    assert stat.S_IMODE(version.with_suffix(".sqsh.json").stat().st_mode) == 0o644
    (tree,) = (clone.folder / "unpacked").iterdir()
    for path in (tree, *tree.rglob("*")):
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 in (0o044, 0o055, 0o077), path
        assert path.is_symlink() or not path.stat().st_mode & 0o022, path


def wait_until(condition, process):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize("runtime", ["apptainer", SLOW_HOST])
@pytest.mark.parametrize(
    "ending", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_interrupted_build_leaves_no_file(ending, runtime, make_overlay_clone, tmp_path):
    """It is ended while it packs: the packer here never ends."""
    clone = make_overlay_clone(tmp_path, runtime)
    path = add_packer(
        tmp_path,
        'if [[ $2 != *.sqsh.partial ]]; then exec "$real" "$@"; fi\n'
        'echo half >"$2"\ntouch "$TMPDIR/packing"\nsleep 100\n',
    )
    env = {**clone.find, "PATH": path, "TMPDIR": str(tmp_path)}
    process = clone.start("build_overlay.py", env=env)
    wait_until((tmp_path / "packing").exists, process)
    os.killpg(process.pid, ending)
    errors = process.communicate(timeout=SECONDS)[1]
    if ending == signal.SIGINT:
        assert process.returncode == 130
        assert "error: interrupted in step 5/6" in errors
        assert "resume with: python3 build_overlay.py" in errors
        assert clone.left() == []
    assert clone.versions() == [] and not os.path.lexists(clone.link())
    clone.overlay()
    assert clone.left() == []
    assert clone.container_run("longship_tiny").stdout == "1.0\n"


@pytest.mark.needs("mksquashfs")
@pytest.mark.slow  # for packages: test_set_up.py
@pytest.mark.parametrize("step", ["install", "pack"])
def test_full_disk_is_told_and_nothing_is_left(step, on_host, small_disk, wheels, tmp_path):
    disk = small_disk(150)
    tools = on_host.scratch / f"tools_{OWN}"
    on_host.change(toml(str(on_host.scratch)), toml(str(disk)))
    if step == "install":
        shutil.copytree(wheels, tmp_path / "wheels")
        large = [f"longship_large{number}" for number in range(30)]
        for name in large:
            write_wheel(tmp_path / "wheels", name, "1.0", payload=1)
        on_host.require(TINY, *large)
    elsewhere = {"install": ["cache"], "pack": ["cache", "overlays/unpacked"]}[step]
    for name in elsewhere:
        (tmp_path / name).mkdir(parents=True)
        (disk / name).parent.mkdir(exist_ok=True)
        (disk / name).symlink_to(tmp_path / name)
    (disk / "overlays/versions").mkdir(parents=True)
    find = {"PIP_FIND_LINKS": str(tmp_path / "wheels" if step == "install" else wheels)}
    shutil.copytree(tools, disk / tools.name, symlinks=True)
    ballast = fill(disk, leave=(20 << 20) if step == "install" else 1 << 14)
    done = on_host.overlay(check=False, env=find)
    error, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 1
    assert error.startswith("error: ") and error.endswith("No space left on device")
    assert hint.startswith("hint: free some space")
    assert ("[5/6]" in done.stderr) == (step == "pack")
    assert not list(disk.glob("overlays/versions/*")) and not list(disk.glob("overlays/unpacked/*"))
    ballast.unlink()
    on_host.overlay(env=find)
    assert on_host.container_run("longship_tiny").stdout == "1.0\n"


def test_full_disk_is_told_where_only_the_container_sees_its_path(
    make_overlay_clone, small_disk, wheels, tmp_path
):
    disk = small_disk(60)
    clone = make_overlay_clone(tmp_path, more=f"work_dir = {toml(str(disk))}\n")
    found = shutil.copytree(wheels, tmp_path / "found")
    large = [f"longship_large{number}" for number in range(30)]
    for name in large:
        write_wheel(found, name, "1.0", payload=4)
    clone.require(*large)
    done = clone.overlay(check=False, env={"PIP_FIND_LINKS": found.as_uri()})
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ") and error.endswith(": No space left on device")
    assert hint.startswith("hint: free some space")
    assert not clone.versions()


@pytest.mark.needs("mksquashfs")
@pytest.mark.slow  # for packages: test_set_up.py
@pytest.mark.parametrize("size", [8, 60])  # MB: venv, uv
def test_full_disk_is_told_where_uv_cannot_be_installed(size, on_host, small_disk):
    disk = small_disk(size)
    on_host.change(toml(str(on_host.scratch)), toml(str(disk)))
    done = on_host.overlay(check=False, env={"PIP_NO_INDEX": "0"})
    error, hint = done.stderr.splitlines()[-2:]
    assert error == "error: cannot install uv: No space left on device"
    assert hint.startswith("hint: free some space")
    assert not list(disk.glob("tools_*/*"))


# --- with repositories in a venv above it


@pytest.mark.parametrize("runtime", ["apptainer", SLOW_HOST])
def test_repositories_lie_in_a_venv_above_it(runtime, make_overlay_clone, wheels, tmp_path):
    """The order is venv, overlay, image; and a program of the overlay sees all three."""
    servers = tmp_path / "it's a server"
    found = write_packages(tmp_path / "found")
    for wheel in wheels.iterdir():
        shutil.copy(wheel, found)
    write_wheel(found, "longship_starts", "1.0")
    clone = make_overlay_clone(
        tmp_path, runtime, ["longship_starts", "longship_tiny"], configured_repositories(servers)
    )
    repositories = write_repositories(clone, servers)
    find = {"PIP_FIND_LINKS": found.as_uri(), "PIP_NO_INDEX": "0"}
    if "SSL_CERT_FILE" not in clone.environment:  # the small Debian has no certificates
        find["SSL_CERT_FILE"] = ssl.get_default_verify_paths().openssl_cafile
    before = clone.set_up(check=False, env=find)
    is_told(before, "overlay not found", "python3 build_overlay.py")
    done = clone.overlay(env=find)
    assert done.stderr.endswith("next: python3 set_up.py install\n")
    clone.set_up("install", env=find)
    show = (
        "import classic, longship_extra, longship_listed, longship_tiny, modern, os, sys; "
        "print(modern.__file__, classic.__file__, longship_tiny.__file__, longship_extra.__file__, "
        "longship_listed.__file__, sep=os.linesep)"
    )
    files = clone.container_run("python", "-c", show).stdout.splitlines()
    assert files[0] == f"{repositories}/modern/src/modern/__init__.py"
    venv = os.path.realpath(next(clone.scratch.glob("venv_*")))
    assert files[1].startswith(venv)
    overlay = files[2].rpartition("/lib/")[0]
    assert overlay != venv
    assert all(file.startswith(f"{overlay}/") for file in files[2:])
    path = clone.container_run("sh", "-c", 'printf %s "$PATH"').stdout.split(":")
    assert path[:2] == [f"{venv}/bin", f"{overlay}/bin"]
    # torchrun and its like start their workers with their own Python: it must be the venv's
    starts = clone.container_run("sh", "-c", "command -v longship_starts").stdout.strip()
    assert starts == f"{venv}/bin/longship_starts"
    assert clone.container_run("longship_starts").stdout == "1.0\n"
    (repositories / "modern/src/modern/__init__.py").write_text("VALUE = 2\n")
    assert clone.container_run("python", "-c", "import modern; print(modern.VALUE)").stdout == "2\n"
    again = clone.set_up("install", env=find)
    assert "up to date" in again.stderr
    assert "up to date" in clone.overlay(env=find).stderr


def test_pytorch_of_an_overlay_is_not_replaced_above_it(fresh, wheels, tmp_path):
    """What requires another one is not installed, and nothing changes."""
    found = shutil.copytree(wheels, tmp_path / "found")
    for version in ("1.0", "2.0"):
        write_wheel(found, "torch", version)
    write_wheel(found, "longship_more", "1.0", requires="torch==2.0")
    find = {"PIP_FIND_LINKS": found.as_uri()}
    fresh.require(TINY, "torch==1.0")
    (fresh.root / "requirements/more.txt").write_text("longship_more\n")
    key = 'venv_requirements = "requirements/more.txt"'
    fresh.change('overlay = "myenv"', f'overlay = "myenv"\n{key}')
    fresh.overlay(env=find)
    done = fresh.set_up("install", env=find, check=False)
    is_told(done, "cannot install the packages into", "read the installer's output above")
    assert re.search(r"\(constraint\) torch\S*==1\.0$", done.stdout, re.MULTILINE)
    assert not list(fresh.scratch.glob("venv_*"))


def test_more_packages_lie_in_a_venv_above_it(fresh, wheels, tmp_path):
    """They win over those of the overlay, which stays as it is."""
    fresh.overlay()
    before = fresh.versions()
    found = shutil.copytree(wheels, tmp_path / "found")
    write_wheel(found, "longship_more", "1.0")
    write_wheel(found, "longship_tiny", "2.0")
    (fresh.root / "requirements/more.txt").write_text("longship_more\nlongship_tiny==2.0\n")
    key = 'venv_requirements = "requirements/more.txt"'
    fresh.change('overlay = "myenv"', f'overlay = "myenv"\n{key}')
    find = {"PIP_FIND_LINKS": found.as_uri()}
    done = fresh.overlay(env=find)
    assert "up to date" in done.stderr
    assert done.stderr.endswith("next: python3 set_up.py install\n")
    fresh.set_up("install", env=find)
    show = "import longship_more as m, longship_tiny as t; print(m.__file__, t.__file__, t.VERSION"
    done = fresh.container_run("python", "-c", f"{show}, sep='\\n')")
    more, tiny, version = done.stdout.splitlines()
    venv = os.path.realpath(next(fresh.scratch.glob("venv_*")))
    assert more.startswith(f"{venv}/") and tiny.startswith(f"{venv}/") and version == "2.0"
    assert fresh.versions() == before
    (fresh.root / "requirements/more.txt").write_text("longship_more\n")
    fresh.set_up("install", env=find)
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"
    for mode in ("download", "offline"):
        is_told(
            fresh.set_up(mode, check=False),
            "packages.venv_requirements cannot be installed without a network",
            "add the lines of requirements/more.txt to requirements/",
        )


# --- without network


@pytest.mark.slow  # test_air_gap.py builds one so
def test_overlay_is_built_without_network(fresh, airgapped):
    """It has the bytes of one that was built with the network."""
    fresh.overlay()
    online = sha256(fresh.link())
    fresh.overlay("download", env={"PIP_NO_INDEX": "0"})  # with what builds need
    command = airgapped(fresh.command("build_overlay.py", "offline", "--force"))
    done = processes.run(command, env=fresh.environment, cwd=fresh.root)
    assert "next: python3 container_run.py" in done.stderr
    assert "[5/6]" in done.stderr and sha256(fresh.link()) == online
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"
    assert fresh.left() == []


def test_offline_without_a_download_is_told(on_host):
    is_told(
        on_host.overlay("offline", check=False),
        "packages have not been downloaded",
        "set_up.py download --machine local",
    )


@pytest.mark.needs("mksquashfs")
def test_installation_failure_shows_why(on_host):
    on_host.require("longship_nowhere")
    done = on_host.overlay(check=False)
    error, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 1 and error.startswith("error: cannot resolve the versions of the ")
    assert hint.startswith("hint: correct the requirements; uv's output above has the details")
    assert "longship-nowhere" in done.stderr or "longship_nowhere" in done.stderr
    assert on_host.left() == []
