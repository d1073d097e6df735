"""What the user can mend: told in two lines, without a traceback."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError


class InputError(Exception):
    """Something is wrong with what the user gave.

    Parameters
    ----------
    message : str
        What, and where.
    hint : str
        What to type.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def first_line(error: Exception) -> str:
    """Return the first line that a library's error says."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def is_offline() -> bool:
    """Tell whether the Hugging Face libraries may use no network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def is_local(name: str) -> bool:
    """Tell whether a name is a path of this machine and not one on the hub."""
    return name.startswith(("/", ".", "~")) or Path(name).exists()


def not_in_the_cache(kind: str, name: str) -> InputError:
    """Say that a model or dataset of the hub is not here."""
    more = "" if kind == "model" else f' and kind = "{kind}"'
    return InputError(
        f"the {kind} {name} is not in the cache {os.environ.get('HF_HOME', '')}, "
        "and the hub is not asked from here",
        f'add an [[assets]] entry with repo = "{name}"{more} to configuration.toml, then: '
        "python3 set_up.py install (without network: download elsewhere, then offline)",
    )


def check_model(name: str) -> None:
    """Tell of a model that is not there before PyTorch is imported.

    Parameters
    ----------
    name : str
        A folder, or a name on the hub.

    Raises
    ------
    InputError
        If there is no such folder, or the model would have to be fetched and cannot be.
    """
    if is_local(name):
        if not (Path(name).expanduser() / "config.json").is_file():
            raise InputError(
                f"there is no model in the folder {name}",
                "name a folder with config.json, or a model of the hub",
            )
        return
    try:
        if is_offline() and not try_to_load_from_cache(name, "config.json"):
            raise not_in_the_cache("model", name)
    except HFValidationError as error:
        message = f"{name} is no folder, and no name on the hub"
        raise InputError(message, "a name is ORGANISATION/MODEL") from error
