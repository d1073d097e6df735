"""All values put together again as one configuration file: what a job runs with."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from lib.configuration.layers import Settings
from lib.script.errors import LongshipError

# Words of a variable's name that say what it holds; TOKENIZERS_PARALLELISM is no token.
_SECRET = re.compile(
    r"(?:^|_)(?:API)?(?:TOKEN|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|KEY|CREDENTIAL|AUTH)S?(?:_|$)",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"://[^/@:\s]*:[^/@\s]+@")
# of one: MAX_TOKENS = "40960000" and SSH_AUTH_SOCK = "/run/x" hold none
_VALUE = re.compile(r"(?![\d._]*$|[/~$]|\{user)\S{8,}")


def resolved(settings: Settings) -> str:
    """Return all values as one file, for the same machine and stack.

    Read again as the configuration it gives the same settings. What the files of the site and the
    stack say later changes none of its values, but tables, such as ``environment.set``, gain what
    is new there, as they always do.

    Parameters
    ----------
    settings : Settings
        All layers put together.

    Returns
    -------
    str
        TOML.

    Raises
    ------
    LongshipError
        If one of them is a secret.
    """
    refuse_secrets(settings)
    values = dataclasses.asdict(settings.configuration)
    return write_toml({**values, "machine": settings.machine.name, "stack": settings.stack.name})


def looks_secret(name: str) -> bool:
    """Tell whether a variable of this name holds what nobody but its user may see."""
    return _SECRET.search(name) is not None


def refuse_secrets(settings: Settings) -> None:
    """Stop where environment.set holds one: launchers and records, which others can read, have it.

    Parameters
    ----------
    settings : Settings
        All layers put together.

    Raises
    ------
    LongshipError
        With how it is passed instead.
    """
    for error in refused_secrets(settings).values():
        raise error


def without_secrets(settings: Settings) -> Settings:
    """Return the settings that are left where those that are refused are taken out."""
    configuration, refused = settings.configuration, refused_secrets(settings)
    others = {k: v for k, v in configuration.environment.set.items() if k not in refused}
    environment = dataclasses.replace(configuration.environment, set=others)
    changed = dataclasses.replace(configuration, environment=environment)
    return dataclasses.replace(settings, configuration=changed)


def refused_secrets(settings: Settings) -> dict[str, LongshipError]:
    """Return what `refuse_secrets` says, by variable."""
    environment = settings.configuration.environment
    found = {}
    for variable, value in environment.set.items():
        hint = f"run: export {variable}=..."
        if variable in environment.secrets:
            what = "which environment.secrets declares a secret"
        elif _is_secret(variable, value):
            what = "which looks like a secret; others can read the files that contain it"
            hint = f'name it in environment.secrets = ["{variable}", ...], and {hint}'
        else:
            continue
        origin = settings.origins["environment.set"]
        found[variable] = LongshipError(
            f"environment.set in {origin} sets {variable}, {what}", f"delete that line, and {hint}"
        )
    return found


def _is_secret(variable: str, value: str) -> bool:
    """Tell a password, token or key from a number, a switch or the path of a file with one."""
    if _LOGIN.search(value) or (variable.lower().endswith("_proxy") and "@" in value):
        return True
    return looks_secret(variable) and _VALUE.fullmatch(value) is not None


def write_toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """Write values as TOML: what stands in no table first, then the tables.

    Parameters
    ----------
    tables : mapping
        Texts, numbers, lists of texts, mappings (tables), and lists of mappings.
    prefix : str
        The dotted name of the table that they stand in.
    """

    def is_table(value: Any) -> bool:
        return isinstance(value, Mapping)

    def is_list_of_tables(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and bool(value) and is_table(value[0])

    lines, after = [], []
    for name, value in tables.items():
        dotted = f"{prefix}.{toml_key(name)}" if prefix else toml_key(name)
        if is_table(value):
            after.append(f"\n[{dotted}]\n{write_toml(value, dotted)}")
        elif is_list_of_tables(value):
            after += [f"\n[[{dotted}]]\n{write_toml(each, dotted)}" for each in value]
        elif isinstance(value, (list, tuple)):
            lines.append(f"{toml_key(name)} = [{', '.join(map(_toml_text, value))}]\n")
        else:
            shown = value if isinstance(value, (int, float)) else _toml_text(value)
            lines.append(f"{toml_key(name)} = {shown}\n")
    return "".join((*lines, *after))


def toml_key(name: str) -> str:
    """Quote a key where TOML requires it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_text(name)


def _toml_text(text: str) -> str:
    """Quote a text: JSON's form is TOML's too, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
