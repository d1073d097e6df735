"""All layers merged into one value, from which a script is computed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lib.configuration.schema import Configuration, Layer, check_layer, combine
from lib.configuration.sites import Machine, read_sites, recognise
from lib.configuration.stacks import Stack, check_settings, load_stack, stack_names
from lib.configuration.tables import Key, check_value, read_toml
from lib.script.command import call
from lib.script.errors import LongshipError, suggest


class Settings(NamedTuple):
    """Everything that a script is computed from."""

    root: Path  # the repository
    machine: Machine
    stack: Stack
    configuration: Configuration
    origins: Mapping[str, str]  # of each value, by dotted key
    files: tuple[str, ...]  # of configuration, whether they exist or not, stack and sites
    environ: Mapping[str, str]  # of the caller
    typed_options: tuple[str, ...]  # of all scripts: the commands of hints must have them too

    def command(self, *words: str) -> str:
        """Return a command for a hint."""
        typed = (each for each in self.typed_options if each.partition("=")[0] not in words)
        return call(*words, *typed)


_TYPED = ("machine", "stack", "configuration")
# Keys that cannot depend on the stack or the machine, because they choose it.
_CHOSEN = {"stacks": {"stack", "machine"}, "machines": {"machine"}}


def load_settings(root: Path, options: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """Read the files that apply; later layers win over earlier ones.

    The order is: built-in defaults, the stack, the site, configuration.toml with its tables of
    stack and machine, configuration.local.toml likewise, environment variables, the command line.
    Options are ``machine``, ``stack`` and ``configuration``, absent or empty if not given.
    """
    path = options.get("configuration") or environ.get("LONGSHIP_CONFIGURATION") or ""
    main = Path(path) if path else root / "configuration.toml"
    if path and not os.path.isfile(main):
        raise LongshipError(
            f"configuration file not found: {path}", "check the path given to --configuration"
        )
    local = main.with_name(f"{main.stem}.local.toml")
    sites = read_sites(root)
    names = [name for site in sites for name in site.marks]
    # the complete one of a job or a run is JSON, and has no personal overrides
    own = [main] if main.suffix == ".json" else [main, local]
    files = [_read(each, root, names) for each in own if os.path.lexists(each)]
    last = [
        Layer("environment", _chosen(lambda key: environ.get(f"LONGSHIP_{key.upper()}"))),
        Layer("command line", _chosen(options.get)),
    ]

    def layers(*tables: str) -> list[Layer]:
        return [each[name] for each in files for name in ("", *tables) if name in each]

    name = combine([*layers(), *last])[0].machine
    if name == "auto":
        name = recognise(sites, environ, os.uname().nodename)
    _check_known("machine", name, names)

    machine = next(each for each in sites if name in each.marks).machines()[name]
    site = machine.configuration
    named = f"machines.{name}"
    stack = load_stack(root, combine([site, *layers(named), *last])[0].stack)
    chosen = layers(f"stacks.{stack.name}", named)
    configuration, origins = combine([stack.configuration, site, *chosen, *last])
    check_settings(stack, configuration.training, origins["training"])
    site_files = [root / each.file for each in sites]
    looked_at = [main, local, root / "stacks" / stack.name / "stack.toml", *site_files]
    return Settings(
        root=root,
        machine=machine,
        stack=stack,
        configuration=configuration,
        origins=origins,
        files=tuple(map(str, looked_at)),
        environ=environ,
        typed_options=tuple(f"--{key}={options[key]}" for key in _TYPED if options.get(key)),
    )


def _chosen(value_of: Any) -> dict[str, str]:
    """Return machine and stack where a source names them."""
    found = {key: value_of(key) for key in ("machine", "stack")}
    return {key: value for key, value in found.items() if value}


def _read(path: Path, root: Path, known: list[str]) -> dict[str, Layer]:
    """Return the layers of a file by its tables of stacks and machines; "" is the general one."""
    inside = path.parent.resolve() == root
    shown = path.name if inside else str(path)
    tables = read_toml(path, shown)
    there = {"machines": known, "stacks": stack_names(root)}
    layers: dict[str, Layer] = {}
    for kind, names in there.items():
        layers.update(_named_layers(kind, tables, shown, names))
    layers[""] = general = check_layer(tables, shown)
    for kind, names in (("machine", ["auto", *known]), ("stack", there["stacks"])):
        if kind in general.values:
            _check_known(kind, general.values[kind], names, f"{shown}: ")
    return layers


def _check_known(kind: str, name: str, there: list[str], location: str = "") -> None:
    if name not in there:
        more = "; full names: docs/sites.md" if kind == "machine" else ""
        raise LongshipError(f'{location}unknown {kind}: "{name}"', suggest(name, there) + more)


def _named_layers(
    kind: str, tables: dict[str, Any], shown: str, there: list[str]
) -> dict[str, Layer]:
    """Take [machines.NAME] or [stacks.NAME] out of the tables of a file."""
    named = check_value(kind, tables.pop(kind, {}), Key("table"), shown)
    for name, table in named.items():
        _check_known(kind[:-1], name, there, f"{shown}: ")
        for key in _CHOSEN[kind] & check_value(f"{kind}.{name}", table, Key("table"), shown).keys():
            raise LongshipError(
                f"{shown}: [{kind}.{name}] cannot set the {key}",
                "set it at the top level of the file",
            )
    dotted = {f"{kind}.{name}": table for name, table in named.items()}
    return {name: check_layer(table, shown, name) for name, table in dotted.items()}
