"""configuration.md: every key with type, default and meaning, and who else sets it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib import ROOT
from lib.configuration.paths import FIELDS
from lib.configuration.schema import KEYS, TABLES, entry_name
from lib.configuration.sites import load_machines
from lib.configuration.stacks import load_stack, stack_names
from writers.markdown import code, first_line, keys_table, kind, page, plain, table, value

_INTRO = """\
This page lists the keys of `configuration.toml`. Every key has a default, so an empty file works.
An unknown key, a wrong type or an invalid value is an error that names file and key.
`python3 doctor.py` shows every value with its source."""

_LAYERS = """\
Values are read in this order, and later ones override earlier ones. Tables, such as
`environment.set`, are merged name by name, `[[repositories]]` and `[[assets]]` entry by entry.

1. the defaults on this page
2. `[configuration]` of `stacks/<stack>/stack.toml`
3. `configuration` of all machines in `<site>/site.toml`, then of the machine
4. `configuration.toml`, then its `[stacks.NAME]`, then its `[machines.NAME]`
5. `configuration.local.toml`, in the same way; git ignores this file
6. the variables `LONGSHIP_MACHINE` and `LONGSHIP_STACK`
7. `--machine` and `--stack`

`--configuration FILE`, or `LONGSHIP_CONFIGURATION`, replaces `configuration.toml` by another file;
`<name>.local.toml` next to that file is then the fifth layer."""

_TABLES_AGAIN = """\
`[stacks.NAME]` and `[machines.NAME]` override any of the tables for one stack or one machine. They
cannot set `machine`, and `[stacks.NAME]` cannot set `stack`:

```toml
[stacks.megatron-lm]
training.tensor_parallel = 4

[machines.jwb]
project.account = "trustllm-eu"
```"""

_PATHS = """\
Paths can contain these placeholders. They are replaced once; no shell evaluates them. `[paths]`,
`binds`, `token_files` and `work_dir` must then be absolute; other paths can be relative to the
repository."""


def configuration_page() -> str:
    """Return the page."""
    parts = [_INTRO, "## Order of precedence", _LAYERS, "## Top of the file", _keys("")]
    for name, declared in TABLES.items():
        about = first_line(declared).partition(": ")[2]
        parts += [f"## `[{name}]`", f"{about[0].upper()}{about[1:]}.", _keys(f"{name}.")]
    for name, key in KEYS.items():
        if key.entries:
            parts += [f"## `[[{name}]]`", _entries_about(name), keys_table(key.entries)]
    parts += ["## `[training]`", _training(), "## One stack, one machine", _TABLES_AGAIN]
    parts += ["## Placeholders in paths", _PATHS, _placeholders()]
    parts += ["## Values of the sites and stacks", _given_table()]
    return page("configuration.toml", *parts)


def _keys(prefix: str) -> str:
    rows = []
    for dotted, key in KEYS.items():
        name = dotted.removeprefix(prefix)
        if (
            dotted.startswith(prefix)
            and "." not in name
            and not key.entries
            and dotted != "training"
        ):
            rows.append(
                (code(name), kind(key), value(key.default), plain(key.help), _givers(dotted))
            )
    return table(("key", "type", "default", "meaning", "also set by"), rows)


def _entries_about(name: str) -> str:
    about = KEYS[name].help.capitalize()
    return f"{about}, one table each. An entry with the same name changes that of the stack."


def _training() -> str:
    links = ", ".join(
        f"[{each}](../../stacks/{each}/README.md)" for each in stack_names(Path(ROOT))
    )
    about = KEYS["training"].help.capitalize()
    return f"{about}. Its `stack.toml` lists them with their defaults: {links}."


def _placeholders() -> str:
    rows = [(code(f"{{{name}}}"), about) for name, about in FIELDS.items()]
    rows += [
        ("`~` at the start", "your home directory"),
        ("`$NAME`, `${NAME}`", "an environment variable, which must be set"),
    ]
    return table(("placeholder", "meaning"), rows)


def _givers(dotted: str) -> str:
    """Name the directories of the sites and stacks that set a key."""
    folders = dict.fromkeys(re.sub(r".*/([\w-]+)/.*", r"\1", where) for _, where in _given(dotted))
    return f"[{', '.join(folders)}](#values-of-the-sites-and-stacks)" if folders else ""


def _given(dotted: str) -> list[tuple[Any, str]]:
    """Return the values that sites and stacks set for a key, each with a link to its file."""
    return [(given, where) for key, given, where in _all_given() if key == dotted]


def _all_given() -> Iterator[tuple[str, Any, str]]:
    root = Path(ROOT)
    for machine in load_machines(root).values():
        for dotted, given in machine.configuration.values.items():
            yield dotted, given, f"[{machine.name}](../../{machine.site_file})"
    for name in stack_names(root):
        for dotted, given in load_stack(root, name).configuration.values.items():
            yield dotted, given, f"[{name}](../../stacks/{name}/stack.toml)"


def _given_table() -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for dotted in KEYS:
        for given, where in _given(dotted):
            shown = (
                ", ".join(map(_entry, given)) if KEYS[dotted].entries else value(given) or '`""`'
            )
            rows.setdefault((dotted, shown), []).append(where)
    return table(
        ("key", "value", "set by"),
        ((code(dotted), shown, ", ".join(who)) for (dotted, shown), who in rows.items()),
    )


def _entry(entry: dict[str, Any]) -> str:
    version = entry.get("ref") or entry.get("revision") or ""
    return code(f"{entry_name(entry)} {version[:12]}".strip())
