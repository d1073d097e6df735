"""Errors that the user can fix, reported in two lines without a traceback."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError


class InputError(Exception):
    """A wrong input: the message says what failed and on what, the hint what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def is_offline() -> bool:
    """Tell whether the Hugging Face libraries are offline."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def is_local(name: str) -> bool:
    """Tell whether a name is a path on this machine and not a name on the hub."""
    return name.startswith(("/", ".", "~")) or Path(name).exists()


def not_in_the_cache(kind: str, name: str) -> InputError:
    """Return the error for a model or dataset of the hub that has not been downloaded."""
    more = "" if kind == "model" else f' and kind = "{kind}"'
    return InputError(
        f"the {kind} {name} is not in the cache {os.environ.get('HF_HOME', '')}, "
        "and the Hugging Face libraries are offline",
        f'add an [[assets]] entry with repo = "{name}"{more} to configuration.toml, then: '
        "python3 set_up.py install (without network: set_up.py download elsewhere, then offline)",
    )


def check_model(name: str) -> None:
    """Report a missing model before PyTorch is imported.

    Parameters
    ----------
    name : str
        A directory, or a name on the hub.

    Raises
    ------
    InputError
        If the directory has no model, or the model is not in the cache and cannot be downloaded.
    """
    if is_local(name):
        if not (Path(name).expanduser() / "config.json").is_file():
            raise InputError(
                f"no model in the directory {name}",
                "name a directory with a config.json, or a model of the hub",
            )
        return
    try:
        if is_offline() and not try_to_load_from_cache(name, "config.json"):
            raise not_in_the_cache("model", name)
    except HFValidationError as error:
        message = f"neither a directory nor a name on the hub: {name}"
        raise InputError(message, "write a name on the hub as ORGANISATION/MODEL") from error
