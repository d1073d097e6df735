"""The resolved configuration as one file, which a job runs with, and the check for secrets."""

from __future__ import annotations

import re

from lib.configuration.layers import Settings
from lib.configuration.schema import TABLES
from lib.script.errors import LongshipError

# Words of a variable's name that say what it holds; TOKENIZERS_PARALLELISM is no token.
_SECRET = (
    r"(?i)(?:^|_)(?:API)?"
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|KEY|CREDENTIAL|AUTH)S?(?:_|$)"
)
_LOGIN = r"://[^/@:\s]*:[^/@\s]+@"
# of one: MAX_TOKENS = "40960000" and SSH_AUTH_SOCK = "/run/x" hold none
_VALUE = r"(?![\d._]*$|[/~$]|\{user)\S{8,}"


def resolved(settings: Settings) -> str:
    """Return all values as a JSON file that is read like configuration.toml.

    With it, later changes of the configuration, the site or the stack change none of the values;
    only tables, such as ``environment.set``, gain new names of the site and the stack.

    Raises
    ------
    LongshipError
        If one of the values is a secret.
    """
    import json  # a launch does not pay for it

    refuse_secrets(settings)
    values = settings.configuration._asdict()
    values.update((table, values[table]._asdict()) for table in TABLES)
    values.update(machine=settings.machine.name, stack=settings.stack.name)
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def looks_secret(name: str) -> bool:
    """Tell whether a variable of this name holds what nobody but its user may see."""
    return re.search(_SECRET, name) is not None


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
    environment = configuration.environment._replace(set=others)
    changed = configuration._replace(environment=environment)
    return settings._replace(configuration=changed)


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
    if re.search(_LOGIN, value) or (variable.lower().endswith("_proxy") and "@" in value):
        return True
    return looks_secret(variable) and re.fullmatch(_VALUE, value) is not None


def toml_key(name: str) -> str:
    """Quote a key where TOML requires it."""
    import json

    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
