"""Stacks: one software stack per ``stack.toml`` in a directory under ``stacks/``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lib.configuration.schema import Layer, check_layer
from lib.configuration.tables import (
    Key,
    check_table,
    check_value,
    find_files,
    keys_of,
    read_toml,
)
from lib.script.errors import LongshipError, suggest

FILE = {
    "description": Key("string", "one-line description"),
    "images": Key(
        "table",
        "source of the image by GPU vendor, one for all architectures, or one for each",
    ),
    "torch": Key("string", "requirements file with PyTorch, for images that have none"),
    "training": Key("table", "settings of a group, one table per setting"),
    "metrics": Key("table", "names of the metrics, for `submit.py report RUN`"),
    "configuration": Key("table", "the stack's values for the keys of configuration.toml"),
}
IMAGES = {
    "cuda": Key("string_by_arch", "for NVIDIA GPUs"),
    "rocm": Key("string_by_arch", "for AMD GPUs"),
    "cpu": Key("string_by_arch", "for machines without a GPU"),
}
METRICS = {
    "files": Key(
        "list",
        "patterns relative to the training's results, which a job links as `<run>/outputs`: JSON "
        "Lines with `step` and `time`, or events of TensorBoard",
        default=("metrics.jsonl",),
    ),
    "loss": Key("string", "name of the training loss", default="loss"),
    "validation_loss": Key("string", "name of the validation loss", default="validation_loss"),
    "speed": Key("string", "name of the tokens per second of all GPUs", default="tokens_per_s"),
}

# What a setting can be. A ``path`` or one of ``paths`` that begins with a root is checked and shown
# inside.
KINDS = {
    "string": Key("string", "any string", default=""),
    "integer": Key("integer", "any integer", default=0),
    "number": Key("number", "any number", default=0),
    "parallel": Key("integer", "the product of all of them divides the GPUs of a job", default=0),
    "path": Key("string", "checked and bound; or a name on the Hugging Face Hub", default=""),
    "paths": Key("list", "paths as above, or patterns", default=()),
}
_FOLDER = re.compile(r"\w[\w.+-]*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Setting(NamedTuple):
    """A setting that a group gives the stack's ``run_training.sh`` in [training]."""

    kind: Annotated[str, "kind of value", tuple(KINDS)] = "string"
    default: Annotated[Any, "value if the configuration has none", "value"] = None
    about: Annotated[str, "one-line description"] = ""
    within: Annotated[
        str, "the `parallel` setting that this one divides, if it does not divide the world size"
    ] = ""
    step: Annotated[
        str,
        "jobs before which its path is checked: `training`, `data` or `both`",
        ("training", "data", "both"),
    ] = "training"


SETTING = keys_of(Setting)


class Stack(NamedTuple):
    """A software stack, which has the name of its directory."""

    name: str
    configuration: Layer
    settings: Mapping[str, Setting]
    images: Mapping[str, Any] = {}
    metrics: Mapping[str, Any] = {}
    torch: str = ""
    description: str = ""


def stack_names(root: Path) -> list[str]:
    """Return the names of all stacks."""
    return [each.parent.name for each in find_files(root, "stacks/*/stack.toml")]


def load_stack(root: Path, name: str) -> Stack:
    """Read one stack."""
    path = root / "stacks" / name / "stack.toml"
    if not _FOLDER.fullmatch(name) or not path.is_file():
        raise LongshipError(f'unknown stack: "{name}"', suggest(name, stack_names(root)))
    file = f"stacks/{name}/stack.toml"
    tables = read_toml(path, file)
    facts = check_table(tables, FILE, file)
    check_table(facts.get("images", {}), IMAGES, file, "images")
    given = check_table(facts.get("metrics", {}), METRICS, file, "metrics")
    facts["metrics"] = {**{name: key.default for name, key in METRICS.items()}, **given}
    layer = check_layer(facts.pop("configuration", {}), file, "configuration")
    return Stack(name, layer, _settings(facts.pop("training", {}), file), **facts)


def _settings(table: Mapping[str, Any], file: str) -> dict[str, Setting]:
    found = {}
    for name, entry in table.items():
        dotted = f"training.{name}"
        if not _NAME.fullmatch(name):
            raise LongshipError(
                f'{file}: "{dotted}" cannot name a setting',
                "use lower case letters, digits and _: it becomes the name of a variable",
            )
        setting = Setting(**check_table(entry, SETTING, file, dotted))
        kind = KINDS[setting.kind]
        if setting.default is None:
            setting = setting._replace(default=kind.default)
        check_value(f"{dotted}.default", setting.default, kind, file)
        found[name] = setting
    for name, setting in found.items():
        if setting.within and setting.within not in found:
            raise LongshipError(
                f'{file}: training.{name}: unknown setting "{setting.within}"',
                suggest(setting.within, list(found)),
            )
    return found


def check_settings(stack: Stack, given: Mapping[str, Any], origin: str) -> None:
    """Stop if [training], whose last value comes from an origin, does not fit the stack."""
    for name, value in given.items():
        if name not in stack.settings:
            known = list(stack.settings)
            hint = suggest(name, known) if known else f"stack {stack.name} has no settings"
            raise LongshipError(
                f'stack {stack.name} has no setting "training.{name}", which {origin} has',
                f"{hint}; or move a setting of another stack to [stacks.NAME.training]",
            )
        setting = stack.settings[name]
        key = KINDS[setting.kind]._replace(help=setting.about)
        check_value(f"training.{name}", value, key, origin)
