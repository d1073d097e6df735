"""Stacks: a framework each, from the ``stack.toml`` of its folder under ``stacks/``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lib.configuration.schema import Layer, check_layer
from lib.configuration.tables import Key, Source, check_table, check_value, find_files, read_toml
from lib.script.errors import LongshipError, suggest

# What a stack.toml takes; `Stack` and `Setting` say what each of them is.
FILE = {
    "description": Key("string"),
    "images": Key("table"),
    "torch": Key("string"),
    "training": Key("table", "settings of a group, one table per setting"),
    "configuration": Key("table"),
}
IMAGES = {
    "cuda": Key("string_by_arch", "for NVIDIA GPUs"),
    "rocm": Key("string_by_arch", "for AMD GPUs"),
    "cpu": Key("string_by_arch", "for machines without a GPU"),
}

# What a setting can be. A ``path`` or one of ``paths`` that begins with a root is checked and shown
# inside.
KINDS = {
    "string": Key("string", "any string", default=""),
    "integer": Key("integer", "any integer", default=0),
    "parallel": Key("integer", "the product of all of them divides the GPUs of a job", default=0),
    "path": Key("string", "checked and bound; or a name on the Hugging Face Hub", default=""),
    "paths": Key("list", "paths as above, or patterns", default=()),
}
SETTING = {
    "kind": Key("string", "kind of value", choices=tuple(KINDS), default="string"),
    "default": Key("value"),
    "about": Key("string"),
    "within": Key("string"),
    "step": Key("string", choices=("training", "data", "both"), default="training"),
}
_FOLDER = re.compile(r"\w[\w.+-]*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Setting(NamedTuple):
    """What a stack lets a group set in [training], for its ``run_training.sh``.

    Parameters
    ----------
    kind : str
        ``string``, ``integer``, ``parallel``, ``path`` or ``paths``.
    default : str, int or tuple of str
        Value if the configuration has none.
    about : str
        One-line description.
    within : str
        The ``parallel`` setting that this one divides, if it does not divide the world size.
    step : str
        Jobs before which its path is checked: ``training``, ``data`` or ``both``.
    """

    kind: str
    default: Any
    about: str
    within: str
    step: str


class Stack(NamedTuple):
    """What a software stack needs.

    Parameters
    ----------
    name : str
        The folder's name.
    description : str
        One-line description.
    images : mapping of str to str or mapping
        Source of the image by GPU vendor: ``cuda``, ``rocm``, ``cpu``; one for all architectures,
        or one for each.
    torch : str
        Requirements file with PyTorch, for images that have none; can be empty.
    settings : mapping of str to Setting
        By name, in order.
    configuration : Layer
        The stack's values for the keys of configuration.toml.
    """

    name: str
    description: str
    images: Mapping[str, Any]
    torch: str
    settings: Mapping[str, Setting]
    configuration: Layer


def stack_names(root: Path) -> list[str]:
    """Return the names of all stacks."""
    return [each.parent.name for each in find_files(root, "stacks/*/stack.toml")]


def load_stack(root: Path, name: str) -> Stack:
    """Read one stack.

    Raises
    ------
    LongshipError
        If there is no such folder, or its file has an unknown key.
    """
    path = root / "stacks" / name / "stack.toml"
    if not _FOLDER.fullmatch(name) or not path.is_file():
        raise LongshipError(f'unknown stack: "{name}"', suggest(name, stack_names(root)))
    tables, source = read_toml(path, f"stacks/{name}/stack.toml")
    facts = check_table(tables, FILE, source)
    check_table(facts.get("images", {}), IMAGES, source, "images")
    return Stack(
        name=name,
        description=facts.get("description", ""),
        images=facts.get("images", {}),
        torch=facts.get("torch", ""),
        settings=_settings(facts.get("training", {}), source),
        configuration=check_layer(facts.get("configuration", {}), source, "configuration"),
    )


def _settings(table: Mapping[str, Any], source: Source) -> dict[str, Setting]:
    found = {}
    for name, entry in table.items():
        dotted = f"training.{name}"
        if not _NAME.fullmatch(name):
            raise LongshipError(
                f'{source.location(dotted)}: "{name}" cannot name a setting',
                "small letters, digits and _: it becomes the name of a variable",
            )
        facts = check_table(entry, SETTING, source, dotted)
        kind = facts.get("kind", "string")
        default = facts.get("default", KINDS[kind].default)
        check_value(f"{dotted}.default", default, KINDS[kind], source.location(dotted))
        about, within = facts.get("about", ""), facts.get("within", "")
        step = facts.get("step", SETTING["step"].default)
        found[name] = Setting(kind, default, about, within, step)
    for name, setting in found.items():
        if setting.within and setting.within not in found:
            raise LongshipError(
                f'{source.location(f"training.{name}")}: there is no setting "{setting.within}"',
                suggest(setting.within, list(found)),
            )
    return found


def check_settings(stack: Stack, given: Mapping[str, Any], origin: str) -> None:
    """Stop where [training] has what the stack does not know.

    Parameters
    ----------
    stack : Stack
        The one in use.
    given : mapping
        The values of ``training``.
    origin : str
        Where the last of them stands, for the message.

    Raises
    ------
    LongshipError
        For an unknown name, or a value of another kind.
    """
    for name, value in given.items():
        if name not in stack.settings:
            beside = suggest(name, list(stack.settings)) if stack.settings else "it has none"
            raise LongshipError(
                f'stack {stack.name} has no setting "training.{name}", which {origin} has',
                f"{beside}; what is for another stack stands below [stacks.NAME.training]",
            )
        setting = stack.settings[name]
        key = KINDS[setting.kind]._replace(help=setting.about)
        check_value(f"training.{name}", value, key, origin)
