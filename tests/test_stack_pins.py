"""What the stacks are made from is pinned, and it is on record how each pin was resolved."""

import datetime
import re
from pathlib import Path

import pytest
from support.stacks import SHIPPED

from lib.configuration.stacks import load_stack
from lib.configuration.tables import read_toml

ROOT = Path(__file__).resolve().parents[1]
COMMIT = re.compile(r"[0-9a-f]{40}")


def pins_of(stack):
    """Give everything that a stack fetches: repositories, images, assets."""
    values = stack.configuration.values
    for each in values.get("repositories", ()):
        yield f"{each['url']} {each.get('ref', '')}"
    for each in values.get("assets", ()):
        yield f"{each['repo']} {each.get('revision', '')}"
    for image in stack.images.values():
        yield from (image,) if isinstance(image, str) else image.values()


def recorded(name):
    tables = read_toml(ROOT / f"stacks/{name}/pins.toml", "pins.toml")
    return {each["pin"]: each for each in tables["pins"]}


@pytest.mark.parametrize("name", SHIPPED)
def test_pins_are_those_on_record(name):
    wanted = {each for each in pins_of(load_stack(ROOT, name)) if "://" in each or " " in each}
    assert wanted <= recorded(name).keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_record_says_what_a_pin_is_and_since_when(name):
    for pin, entry in recorded(name).items():
        assert isinstance(entry["checked"], datetime.date) and entry["by"]
        assert not re.search(r"[: ](latest|main|master|)$", pin)
        if pin.startswith("docker://"):  # a digest, or said why there is none
            assert re.fullmatch(r"(sha256:[0-9a-f]{64})?", entry["resolved"])
        elif " " in pin:
            assert COMMIT.fullmatch(entry["resolved"])


@pytest.mark.parametrize("name", SHIPPED)
def test_packages_of_a_stack_are_pinned(name):
    file = load_stack(ROOT, name).configuration.values.get("packages.requirements")
    if name == "pytorch":  # ranges: a group's own training is not ours to hold still
        assert file is None
        return
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    packages = [line.split("#")[0].strip() for line in lines]
    for package in filter(None, packages):
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+( *;.*)?", package), package
