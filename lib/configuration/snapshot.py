"""The resolved configuration as one file, which a job runs with, and the check for secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lib.configuration.layers import Settings
from lib.configuration.schema import TABLES, EnvironmentKeys
from lib.script.errors import LongshipError
from lib.script.secrets import LOGIN, NAME, has_secret

# Words of a variable's name that say what it holds; TOKENIZERS_PARALLELISM is no token.
_SECRET = rf"(?i)(?:{NAME}|(?:^|_)(?:key|pass|auth))s?(?:_|$)"
# of one: MAX_TOKENS = "40960000" and SSH_AUTH_SOCK = "/run/x" hold none
_VALUE = r"(?![\d._]*$|[/~$]|\{user)\S{8,}"


def resolved(settings: Settings) -> str:
    """Return all values as a JSON file that is read like configuration.toml.

    With it, later changes of the configuration, the site or the stack change none of the values;
    only tables, such as ``environment.set``, gain new names of the site and the stack.
    """
    import json  # a launch does not pay for it

    refuse_secrets(settings.configuration.environment, settings.origins)
    values = settings.configuration._asdict()
    values.update((table, values[table]._asdict()) for table in TABLES)
    values.update(machine=settings.machine.name, stack=settings.stack.name)
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def looks_secret(name: str) -> bool:
    """Tell whether a variable of this name holds what nobody but its user may see."""
    return re.search(_SECRET, name) is not None


def refuse_secrets(environment: EnvironmentKeys, origins: Mapping[str, str]) -> None:
    """Stop if environment.set contains a secret: others can read launchers and records."""
    for error in refused_secrets(environment, origins).values():
        raise error


def without_secrets(settings: Settings) -> Settings:
    """Return the settings without the secrets in environment.set."""
    configuration = settings.configuration
    environment = configuration.environment
    refused = refused_secrets(environment, settings.origins)
    others = {name: text for name, text in environment.set.items() if name not in refused}
    changed = configuration._replace(environment=environment._replace(set=others))
    return settings._replace(configuration=changed)


def refused_secrets(
    environment: EnvironmentKeys, origins: Mapping[str, str]
) -> dict[str, LongshipError]:
    """Return the error for each secret in environment.set, by variable."""
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
        origin = origins["environment.set"]
        found[variable] = LongshipError(
            f"environment.set in {origin} sets {variable}, {what}", f"delete that line, and {hint}"
        )
    return found


def _is_secret(variable: str, value: str) -> bool:
    """Tell a password, token or key from a number, a switch or the path of a file with one."""
    if re.search(LOGIN, value) or (variable.lower().endswith("_proxy") and "@" in value):
        return True
    if has_secret(value.encode(errors="surrogateescape")):
        return True
    return looks_secret(variable) and re.fullmatch(_VALUE, value) is not None


def toml_key(name: str) -> str:
    """Quote a key where TOML requires it."""
    import json

    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
