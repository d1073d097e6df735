"""Damaged images: never put in use, nor pruned around; and what the hints name mends them."""

import hashlib
import json
import os
import random
import re
import shlex
import time

import pytest
from support.tiers import slow

from lib.configuration.sites import own_arch

pytestmark = [
    pytest.mark.needs("registry", "skopeo"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the tiny images run on amd64 only"),
]
MARK = ("sh", "-c", "read m </etc/mark; echo $m")


def flip_unnoticed(path):
    """Change a byte as decaying storage does: size and times stay."""
    found = path.stat()
    flip(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def flip(path):
    """Change a byte near the end, where the SquashFS of a SIF lies."""
    with open(path, "r+b") as file:
        file.seek(-4096, os.SEEK_END)
        byte = file.read(1)
        file.seek(-4096, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


def record_of(path):
    return path.with_name(f"{path.name}.json")


def ahead(path):
    later = time.time() + 1e6
    os.utime(path, (later, later))


DAMAGES = {
    "missing": lambda image: image.unlink(),
    "empty": lambda image: os.truncate(image, 0),
    "truncated": lambda image: os.truncate(image, image.stat().st_size // 2),
    "other content": flip,
    "decayed content": flip_unnoticed,
    "from the future": ahead,
    "no record": lambda image: record_of(image).unlink(),
    "empty record": lambda image: os.truncate(record_of(image), 0),
    "truncated record": lambda image: os.truncate(record_of(image), 200),
    "wrong record": lambda image: record_of(image).write_text(
        re.sub(r'("sha256": "sha256:|"modified": ")\w+', r"\g<1>0", record_of(image).read_text())
    ),
}


@pytest.fixture
def swap(lab, registry, tiny):
    """Give a clone with an earlier version and one in use, and the paths of both."""
    registry.put("lab/damage:1", ("amd64", tiny(mark="old")))
    clone = lab(registry.name("lab/damage:1"))
    names = [clone.build_and_move()]
    registry.put("lab/damage:1", ("amd64", tiny(mark="new")))
    names.append(clone.build_and_move("--force"))
    return clone, *(clone.containers / "versions" / name for name in names)


def type_commands(clone, text):
    """Type the first command that a hint or fix names, and what follows it after &&."""
    commands = re.match(r".*?(python3 [^;,]*?)(?:[;,]| or |$)", text)[1].split(" && ")
    for each in commands:
        _, script, *words = shlex.split(each)
        words = [each.replace("VERSION", clone.versions()[0]) for each in words]
        done = clone.type(script, *words, check=False)
    return done


def type_hint(clone, done):
    """Type what the hint names, in the last line."""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("hint: "), done.stderr
    return type_commands(clone, line)


@pytest.mark.parametrize(
    ("word", "damage"),
    [
        slow("--rollback", "missing"),
        slow("--rollback", "truncated"),
        ("--rollback", "decayed content"),
        slow("--use", "other content"),
    ],
)
def test_damaged_version_is_not_put_in_use(word, damage, swap):
    clone, old, new = swap
    DAMAGES[damage](old)
    words = [word, old.name] if word == "--use" else [word]
    done = clone.move(*words, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
    assert clone.active() == new.name
    assert (damage == "missing") != ("does not match its record: " in done.stderr)
    if damage != "missing":
        assert (damage == "decayed content") != ("  damaged: " in clone.move("--list").stdout)
        type_hint(clone, done)
        assert clone.active() not in (old.name, new.name)
    assert clone.container_run(*MARK).stdout == "new\n"


@pytest.mark.parametrize("damage", ["missing", slow("other content")])
def test_last_whole_version_is_not_pruned(damage, swap):
    clone, old, new = swap
    DAMAGES[damage](new)
    done = clone.move("--prune", check=False)
    assert done.returncode == 1 and "nothing was deleted" in done.stderr, done.stderr
    assert old.exists()
    type_hint(clone, done)
    assert clone.active() == old.name
    clone.move("--prune")
    assert clone.versions() == [old.name]


def test_missing_version_in_use_is_listed(swap):
    clone, _, new = swap
    new.unlink()
    done = clone.move("--list")
    assert f"active: {new.name}, which is missing\n" in done.stdout


def test_version_with_a_damaged_pin_counts_as_needed(swap):
    clone, old, _ = swap
    pin = clone.containers / "pins/4711-abc"
    pin.parent.mkdir(exist_ok=True)
    for content, mode in ("", 0o644), ("/x/versions/truncat", 0o644), ("x\n\n/x\n", 0):
        pin.write_text(content)
        pin.chmod(mode)
        done = clone.move("--prune")
        kept = f"note: kept, pinned by the damaged pin {pin}: {old.name}\n"
        assert kept in done.stderr and "Permission denied" not in done.stderr
        pin.unlink()
    clone.move("--prune")
    assert not old.exists()


def test_copied_image_is_whole_and_its_checksum_is_not_computed_for_ever(swap):
    clone, old, _ = swap
    old.touch()
    assert "damaged: modified after it was built" in clone.move("--list").stdout
    clone.move("--use", old.name)
    assert "damaged" not in clone.move("--list").stdout
    assert clone.container_run(*MARK).stdout == "old\n"


@pytest.mark.parametrize("damage", ["other content", slow("wrong record")])
def test_damaged_active_image_is_mended_by_what_is_typed(damage, swap):
    assert_mended(*swap, damage, ["build_container.py"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_any_damage_is_mended_by_what_is_typed(seed, swap):
    chosen = random.Random(seed)
    commands = [
        ["build_container.py"],
        ["move_built_container_to_active.py"],
        ["move_built_container_to_active.py", "--rollback"],
        ["move_built_container_to_active.py", "--prune"],
        ["doctor.py"],
    ]
    noticed = sorted(set(DAMAGES) - {"decayed content"})  # of the active image by none of them
    assert_mended(*swap, chosen.choice(noticed), chosen.choice(commands))


def assert_mended(clone, old, new, damage, command):
    """Damage the active image; type the command, and what the doctor names; then all is well."""
    DAMAGES[damage](new)
    clone.type(*command, check=False)
    for _ in range(3):
        report = json.loads(clone.type("doctor.py", "--json", check=False).stdout)
        fixes = [
            each["fix"]
            for each in report["findings"]
            if each["topic"] == "image" and each["state"] != "ok"
        ]
        if not fixes:
            break
        done = type_commands(clone, fixes[0])
        if done.returncode:
            type_hint(clone, done)
    else:
        pytest.fail(str(report))
    assert clone.container_run(*MARK).stdout in ("new\n", "old\n")
    active = clone.containers / "versions" / clone.active()
    recorded = json.loads(record_of(active).read_text())["sha256"]
    assert recorded == f"sha256:{hashlib.sha256(active.read_bytes()).hexdigest()}"
