"""Promise 1: whatever ends a build or a swap, the image in use is the complete old or new one.

The emitted script is killed before its commands, some of them or each in turn, see `support.kills`.
"""

import os
import signal

import pytest
from support import processes
from support.kills import AT_SOME_POINTS, Points
from support.lab import fill

from lib.configuration.sites import own_arch

pytestmark = [
    pytest.mark.needs("registry", "skopeo"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the tiny images run on amd64 only"),
]


def image_in_use(clone):
    """Give the mark of the image in use, which can be read whole; None where there is none."""
    (link,) = [path for path in clone.containers.iterdir() if path.suffix in (".sif", ".docker")]
    assert link.is_symlink()
    if link.suffix == ".docker":
        return link.read_text()
    return link.read_bytes()


@pytest.fixture
def two(lab, registry, tiny, request):
    """Give a clone with an image in use and another one built, and what both are."""

    def make(runtime="apptainer", build=("online", "--force"), more=True):
        name = f"lab/killed-{runtime}:1"
        registry.put(name, ("amd64", tiny(mark="old")))
        clone = lab(registry.name(name), runtime)
        old_version = clone.build_and_move()
        old = image_in_use(clone)
        registry.put(name, ("amd64", tiny(mark="new")))
        if more:
            clone.build(*build)
        return clone, old, old_version

    return make


@pytest.mark.parametrize(
    ("runtime", "every"),
    [
        pytest.param("apptainer", 17, id="some"),
        pytest.param("apptainer", 1, id="all", marks=pytest.mark.slow),
        pytest.param("docker", 9, id="docker", marks=pytest.mark.slow),
    ],
)
def test_swap_killed_at_its_commands(runtime, every, two):
    clone, old, _ = two(runtime)
    points = Points(clone, "move_built_container_to_active.py")
    points.restore()
    clone.move()
    new, new_version = image_in_use(clone), clone.active()
    assert new != old
    seen = {old: 0, new: 0}
    for _ in points.each(every):
        seen[image_in_use(clone)] += 1
        again = points.whole()  # goes on where the killed one was, or has nothing to do
        if again.returncode != 0:
            assert "no new image to activate" in again.stderr
            clone.move("--use", new_version)  # takes over the lock of what was in use
        assert image_in_use(clone) == new
        assert not clone.left()
    assert min(seen.values()) > 0


@pytest.mark.slow  # as the swap
def test_roll_back_killed_at_its_commands(two):
    clone, old, old_version = two()
    clone.move()
    new = image_in_use(clone)
    seen = {old: 0, new: 0}
    for _ in Points(clone, "move_built_container_to_active.py", "--rollback").each():
        found = image_in_use(clone)
        seen[found] += 1
        clone.move(*(["--rollback"] if found == new else ["--use", old_version]))
        assert image_in_use(clone) == old
        assert not clone.left()
    assert min(seen.values()) > 0


@pytest.mark.slow  # as the swap
def test_prune_killed_at_its_commands(two):
    clone, _, _ = two()
    clone.move()
    new = image_in_use(clone)
    points = Points(clone, "move_built_container_to_active.py", "--prune")
    for _ in points.each():
        assert image_in_use(clone) == new
        assert points.whole().returncode == 0
        assert len(clone.versions()) == 1
        assert image_in_use(clone) == new


@AT_SOME_POINTS
def test_build_killed_at_its_commands(every, two):
    """From an archive that is a SIF, so that hundreds of builds take seconds."""
    clone, old, _ = two(more=False)
    clone.build("--force")
    new = clone.record()
    archives = clone.scratch / "offline/containers"
    archives.mkdir(parents=True)
    for ending in ("sif", "sif.json"):
        (clone.containers / f"build/killed-apptainer_1_amd64.{ending}").rename(
            archives / f"killed-apptainer_1_amd64.{ending}"
        )
    points = Points(clone, "build_container.py", "offline", "--force")
    for _ in points.each(every):
        assert image_in_use(clone) == old
        image = clone.containers / "build/killed-apptainer_1_amd64.sif"
        record = image.with_name(f"{image.name}.json")
        if record.exists():
            assert clone.record()["sha256"] == new["sha256"]
            assert image.stat().st_size == int(new["bytes"])
        assert points.whole().returncode == 0
        assert not clone.left()
    clone.move()
    assert image_in_use(clone) != old


MESSAGES = ("Starting", "Fetching", "Extracting", "Inserting", "Creating")


@pytest.mark.slow  # as at the commands of the script
def test_build_killed_at_every_message_of_apptainer(two):
    clone, old, _ = two(more=False)
    command = clone.command("build_container.py", "--force")
    for message in MESSAGES:
        process = processes.start(command, env=clone.environment, cwd=clone.root)
        try:
            assert any(message in line for line in process.stderr)
        finally:
            processes.end_group(process)
            process.communicate()
        assert image_in_use(clone) == old
        # behind the last message little is left to do, and it may be done before the kill
        made = (clone.containers / "build/killed-apptainer_1_amd64.sif").exists()
        assert not made or message == MESSAGES[-1]
    clone.build("--force")
    assert not clone.left()
    clone.move()
    assert image_in_use(clone) != old


def test_build_that_gets_ctrl_c_leaves_nothing(two):
    clone, old, _ = two(more=False)
    process = clone.start("build_container.py", "--force", cwd=clone.root)
    assert any("Extracting" in line for line in process.stderr)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=processes.PATIENCE)
    assert process.returncode == 130, errors
    assert "error: interrupted in step 1/3" in errors
    assert "hint: no work is lost; resume with: python3 build_container.py --force\n" in errors
    assert image_in_use(clone) == old and not clone.left()


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 16, 2048),
        pytest.param((1, 4, 256, 1024, 4096, 6144), marks=pytest.mark.slow),
    ],
    ids=["some", "more"],
)
def test_disk_that_fills_up_at_any_point(sizes, two, registry, small_disk):
    clone, _, _ = two()
    disk = small_disk(24, "disk")
    clone.use(registry.name("lab/killed-apptainer:1"), scratch=disk / "a scratch")
    clone.build_and_move()
    old = image_in_use(clone)
    failed = count = 0
    for kilobytes in sizes:
        for words in (["build_container.py", "--force"], ["move_built_container_to_active.py"]):
            ballast = fill(disk, kilobytes << 10)
            done = clone.type(*words, check=False)
            ballast.unlink()
            count += 1
            failed += done.returncode != 0
            assert done.returncode in (0, 1), done.stderr
            assert "Traceback" not in done.stderr
            found = image_in_use(clone)
            assert found == old or done.returncode == 0 and words[0].startswith("move")
            old = found
            clone.container_run("true")
            assert not clone.left()
        clone.build("--force")  # for the next round, whatever became of this one
    assert 0 < failed < count
