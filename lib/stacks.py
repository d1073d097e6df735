"""Stacks: a framework each, from the ``stack.toml`` of its folder under ``stacks/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lib.configuration import Layer, check_layer
from lib.errors import LongshipError, near_miss
from lib.tables import Key, check_table, read_toml

_FILE = {
    "description": Key("text"),
    "images": Key("texts"),
    "torch": Key("text"),
    "requirements": Key("list"),
    "configuration": Key("table"),
}
_IMAGES = {"cuda": Key("text"), "rocm": Key("text"), "cpu": Key("text")}


class Stack(NamedTuple):
    """What a software stack needs.

    Parameters
    ----------
    name : str
        The folder's name.
    description : str
        One line.
    images : mapping of str to str
        Where the image comes from, by GPU vendor: ``cuda``, ``rocm``, ``cpu``.
    torch : str
        The requirements file with the PyTorch for images that have none; may be empty.
    requirements : tuple of str
        Packages besides those of ``packages.requirements``.
    configuration : Layer
        The stack's values for the keys of configuration.toml.
    """

    name: str
    description: str
    images: Mapping[str, str]
    torch: str
    requirements: tuple[str, ...]
    configuration: Layer


def load_stack(root: Path, name: str) -> Stack:
    """Read one stack.

    Raises
    ------
    LongshipError
        If there is no such folder, or its file has an unknown key.
    """
    path = root / "stacks" / name / "stack.toml"
    if not path.is_file():
        there = sorted(each.parent.name for each in root.glob("stacks/*/stack.toml"))
        raise LongshipError(f'there is no stack "{name}"', near_miss(name, there))
    tables, source = read_toml(path, f"stacks/{name}/stack.toml")
    facts = check_table(tables, _FILE, source)
    check_table(facts.get("images", {}), _IMAGES, source, "images")
    return Stack(
        name=name,
        description=facts.get("description", ""),
        images=facts.get("images", {}),
        torch=facts.get("torch", ""),
        requirements=facts.get("requirements", ()),
        configuration=check_layer(facts.get("configuration", {}), source, "configuration"),
    )
