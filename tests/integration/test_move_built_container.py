"""move_built_container_to_active.py: swap, list, roll back, prune, with real images."""

import json
import os
import re

import pytest
from support import processes
from support.lab import fill, is_told
from support.registry import without
from support.tiers import slow

from lib.configuration.sites import own_arch

pytestmark = [
    pytest.mark.needs("registry", "skopeo"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the tiny images run on amd64 only"),
]
RUNTIMES = ("apptainer", "docker", "podman")
# A swap uses the same store.
SLOW_STORES = [pytest.param(each, marks=pytest.mark.slow) for each in ("docker", "podman")]
MARK = ("sh", "-c", "read m </etc/mark; echo $m")


@pytest.fixture
def swap(lab, registry, tiny):
    """Give a function that puts another image behind the same name, builds it and moves it."""
    clones = {}

    def put(mark, runtime="apptainer"):
        name = f"lab/swap-{runtime}:1"
        registry.put(name, ("amd64", tiny(mark=mark)))
        if not clones:
            clones["one"] = lab(registry.name(name), runtime)
        clone = clones["one"]
        clone.build("--force")
        clone.move()
        return clone, clone.active()

    return put


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_swap_roll_back_and_forth(runtime, swap):
    clone, old = swap("old", runtime)
    assert clone.container_run(*MARK).stdout == "old\n"
    _, new = swap("new", runtime)
    assert new != old and clone.versions() == sorted([old, new])
    assert clone.container_run(*MARK).stdout == "new\n"
    done = clone.move("--rollback")
    assert clone.active() == old
    assert done.stderr == f"active image: {old}\nnext: python3 set_up.py install\n"
    assert clone.container_run(*MARK).stdout == "old\n"
    is_told(clone.move("--rollback", check=False), f"no earlier version than {old}", "--list")
    clone.move("--use", version_in(new))
    assert clone.container_run(*MARK).stdout == "new\n"
    clone.move("--use", old)
    assert clone.active() == old
    assert not clone.left()


@pytest.mark.slow  # once: above
def test_roll_back_goes_to_what_was_in_use_not_to_the_version_before(swap):
    _, good = swap("good")
    swap("bad")
    clone, _ = swap("worse")
    clone.move("--rollback")
    clone.move("--rollback")
    assert clone.active() == good
    clone, mended = swap("mended")
    clone.move("--rollback")
    assert clone.active() == good != mended


def version_in(file):
    """Give the part of a version's file name that --list shows and --use takes."""
    return re.search(r"\d+T\d+_\w{12}", file)[0]


@pytest.mark.parametrize("runtime", ["apptainer", *SLOW_STORES])
def test_list_shows_versions_and_what_is_in_use_since_when(runtime, swap, registry, tiny):
    clone, old = swap("old", runtime)
    _, new = swap("new", runtime)
    registry.put(f"lab/swap-{runtime}:1", ("amd64", tiny(mark="third")))
    clone.build("--force")
    done = clone.move("--list")
    head, *lines, heading, waiting = done.stdout.splitlines()
    assert head.split() == ["VERSION", "BUILT", "SIZE", "DIGEST", "SOURCE"]
    # two images of the same second may stand in either order
    assert len(lines) == 3
    (before,) = (line for line in lines if version_in(old) in line)
    number = next(i for i, line in enumerate(lines) if version_in(new) in line)
    assert before.startswith("  2") and registry.name("") in before
    assert re.search(r"\d MB|\d kB", before)
    assert lines[number].startswith("* 2") and "sha256:" in lines[number]
    since = r"  active since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    assert re.fullmatch(since, lines[number + 1])
    assert heading == "new image, not yet active:" and waiting.startswith("+ 2")
    assert done.stderr == "next: python3 move_built_container_to_active.py\n"


def test_list_before_anything_is_there(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    done = clone.move("--list")
    assert done.stdout == "no active image\n"
    assert done.stderr == "next: python3 build_container.py\n"
    assert not clone.scratch.exists()


@pytest.mark.parametrize("runtime", ["apptainer", *SLOW_STORES])
def test_prune_keeps_what_is_in_use(runtime, swap):
    clone, old = swap("old", runtime)
    _, new = swap("new", runtime)
    done = clone.move("--prune")
    assert f"deleted: {old}\n" in done.stderr and "freed: " in done.stderr
    assert clone.versions() == [new] == [clone.active()]
    assert clone.container_run(*MARK).stdout == "new\n"
    is_told(clone.move("--use", old, check=False), f"/{old}", "--list")
    is_told(clone.move("--rollback", check=False), "no such version: ", "--list")
    assert len(list((clone.containers / "versions").iterdir())) == 3  # image, record, history


@pytest.mark.slow  # as --list and --prune above
@pytest.mark.parametrize("runtime", ["apptainer", "docker"])
def test_versions_of_a_former_tag_are_listed_and_pruned(runtime, swap, registry, tiny, run):
    clone, oldest = swap("oldest", runtime)
    _, old = swap("old", runtime)
    name = f"lab/swap-{runtime}:2"
    registry.put(name, ("amd64", tiny(mark="new")))
    clone.use(registry.name(name), runtime)
    clone.build()
    clone.move()
    (new,) = {*clone.versions()} - {oldest, old}
    former, _, rest = clone.move("--list").stdout.partition(f"\nnot configured: swap-{runtime}_1_")
    assert version_in(new) in former and version_in(old) not in former
    assert version_in(oldest) in rest and f"* {version_in(old)}" in rest
    read = json.loads(clone.move("--list", "--json").stdout)
    images = {each["version"]: each["image"] for each in read}
    assert images[version_in(old)].startswith(f"swap-{runtime}_1_")
    assert images[version_in(new)].startswith(f"swap-{runtime}_2_")
    done = clone.move("--prune")
    assert f"deleted: {oldest}\n" in done.stderr
    assert clone.versions() == sorted([old, new])
    (command,) = re.findall(
        f"kept, active but not configured: {old}; .*: (rm .*), then", done.stderr
    )
    run(["bash", "-c", command], env=clone.environment)
    clone.move("--prune")
    assert clone.versions() == [new]
    assert clone.container_run(*MARK).stdout == "new\n"


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_same_image_built_again_keeps_its_packages(runtime, swap):
    """Those name the image that they were installed on: its tag must stay the same."""
    clone, first = swap("same", runtime)
    tag = (clone.containers / "versions" / first).read_text()
    _, second = swap("same", runtime)
    assert (clone.containers / "versions" / second).read_text() == tag
    swap("other", runtime)
    clone.move("--use", second)
    clone.move("--prune")
    assert clone.versions() == [second]
    assert clone.container_run(*MARK).stdout == "same\n"


def test_prune_keeps_what_a_launcher_names(swap, tmp_path):
    clone, old = swap("old")
    launcher = tmp_path / "a launcher"
    clone.container_run("--launcher", launcher)
    swap("new")
    done = clone.move("--prune")
    assert f"kept, pinned by {launcher}: {old}" in done.stderr
    launcher.unlink()
    assert f"deleted: {old}" in clone.move("--prune").stderr
    assert not list((clone.containers / "pins").iterdir())


@pytest.mark.slow  # with a real squeue: test_jobs.py
@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("echo RUNNING", True),
        ("echo PENDING", True),
        ("exit 0", False),  # Slurm remembers it as over
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", True),
        (None, True),  # a machine without Slurm that shares the file system
    ],
)
def test_prune_keeps_what_a_running_job_has_pinned(answer, kept, swap, tmp_path):
    """Stand-ins for squeue, as it is the answers that vary; with a real one: test_jobs.py."""
    clone, old = swap("old")
    clone.container_run("--launcher", tmp_path / "launcher", env={"SLURM_JOB_ID": "4711"})
    (tmp_path / "launcher").unlink()
    swap("new")
    environment = without(clone.environment, tmp_path / "bin", "squeue")
    if answer:
        squeue = tmp_path / "bin/squeue"
        squeue.write_text(
            f'#!/bin/sh\n[ "$*" = "--noheader --jobs=4711 --format=%T" ] || exit 9\n{answer}\n'
        )
        squeue.chmod(0o755)
    done = clone.move("--prune", env=environment)
    assert (old in clone.versions()) == kept, done.stderr
    assert ("kept, pinned by job 4711: " in done.stderr) == kept


def test_running_program_keeps_its_image(swap):
    clone, _ = swap("old")
    started, go_on = (clone.root.parent / name for name in ("started", "go on"))
    text = ': >"$1"; until [ -e "$2" ]; do :; done; read m </etc/mark; echo $m'
    process = clone.start("container_run.py", "sh", "-c", text, "sh", started, go_on)
    try:
        processes.wait_until(started.exists)
        swap("new")
        assert "deleted: " in clone.move("--prune").stderr
        go_on.touch()
        output, errors = process.communicate(timeout=processes.PATIENCE)
        assert (output, process.returncode) == ("old\n", 0), errors
    finally:
        processes.end_group(process)


def test_image_that_was_there_before_is_kept(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    active = clone.containers / "tiny_1_amd64.sif"
    (clone.containers / "build/tiny_1_amd64.sif").rename(active)  # as an ancestor's script left it
    (clone.containers / "build/tiny_1_amd64.sif.json").unlink()
    content = active.read_bytes()
    assert "not built by Longship" in clone.move("--list").stdout
    clone.container_run("true")
    clone.build_and_move()
    assert active.is_symlink()
    clone.move("--rollback")
    assert clone.active().endswith("_unrecorded.sif")
    assert active.read_bytes() == content
    clone.container_run("true")


# What is checked


def test_nothing_new_is_told(swap, lab):
    clone, version = swap("old")
    is_told(clone.move(check=False), "no new image to activate", "python3 build_container.py")
    assert clone.active() == version


def test_image_whose_python_starts_in_isolation_alone_is_refused(lab, registry, tiny):
    """As with a PYTHONHOME of the image's that leads elsewhere."""
    python = "case $1 in -I) exit 0 ;; esac; echo 'No module named encodings' >&2; exit 1"
    registry.put("lab/pythonhome:1", ("amd64", tiny(python=python)))
    clone = lab(registry.name("lab/pythonhome:1"))
    clone.build()
    done = clone.move(check=False)
    is_told(done, "python3 does not start in the image", "to an image that has Python")
    assert clone.active() is None


@pytest.mark.parametrize("runtime", ["apptainer", "docker"])
def test_image_without_python_is_refused(runtime, lab, registry):
    clone = lab(registry.name("lab/nopython:1"), runtime)
    clone.build()
    done = clone.move(check=False)
    is_told(done, "python3 does not start in the image", "to an image that has Python")
    assert "broken" in done.stderr
    assert clone.active() is None


def damaged(image):
    with open(image, "r+b") as file:
        file.seek(-4096, os.SEEK_END)
        byte = file.read(1)
        file.seek(-4096, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged, "does not match its record"),
        slow(lambda image: os.truncate(image, 100_000), "does not match its record"),
        slow(lambda image: image.write_text("no image"), "SIF image"),
        slow(lambda image: image.unlink(), "only its record exists"),
        slow(lambda image: image.with_name(f"{image.name}.json").unlink(), "it has no record"),
    ],
)
def test_damaged_image_is_refused(damage, message, swap, registry):
    clone, version = swap("old")
    clone.build("--force")
    damage(clone.containers / "build/swap-apptainer_1_amd64.sif")
    is_told(clone.move(check=False), message, "python3 build_container.py")
    assert clone.active() == version
    clone.build("--force")
    clone.move()


@pytest.mark.slow  # it is about speed alone
def test_checksum_is_not_computed_again(swap, tmp_path):
    clone, _ = swap("old")
    clone.build("--force")
    environment = without(clone.environment, tmp_path / "bin", "sha256sum")
    clone.move(env=environment)  # it was computed when the image was built
    clone.build("--force")
    (clone.containers / "build/swap-apptainer_1_amd64.sif").touch()
    done = clone.move(env=environment, check=False)
    assert done.returncode != 0 and "sha256sum" in done.stderr
    clone.move()


@pytest.mark.slow  # test_container_kills.py
def test_full_disk_leaves_the_old_image_in_use(lab, registry, small_disk):
    disk = small_disk(24, "disk")
    clone = lab(registry.name("lab/tiny:1"), scratch=disk / "a scratch")
    version = clone.build_and_move()
    clone.container_run("true")
    clone.build("--force")
    ballast = fill(disk)
    done = clone.move(check=False)
    is_told(done, "No space left on device", "free some space")
    assert clone.active() == version
    clone.container_run("true")
    ballast.unlink()
    clone.move()
    assert clone.active() != version and not clone.left()


@pytest.mark.slow  # of builds: test_build_container.py
def test_two_at_once(swap):
    clone, old = swap("old")
    clone.build("--force")
    both = [clone.start("move_built_container_to_active.py") for _ in range(2)]
    told = [process.communicate(timeout=processes.PATIENCE)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert clone.active() != old and not clone.left()


def test_wrong_calls_are_told(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    done = clone.move("--list", "--prune", check=False)
    assert done.returncode == 2 and "cannot be combined" in done.stderr
    done = clone.build("onlin", check=False)
    assert done.returncode == 2 and 'did you mean "online"?' in done.stderr
    clone.use(registry.name("lab/tiny:1"), "host")
    for script in (clone.build, clone.move):
        is_told(script(check=False), "the runtime host uses no image", "container.runtime")
