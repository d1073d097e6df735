"""Records: flat JSON, as bash writes it beside images, overlays and in the folders of runs."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from lib.script.errors import LongshipError


def is_own(folder: Path) -> bool:
    """Tell whether a folder is the user's, and nobody else can write to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def read_record(record: Path, hint: str = "") -> dict[str, str]:
    """Read what bash has recorded (`write_facts`); nothing where there is no such file.

    Parameters
    ----------
    record : pathlib.Path
        The file.
    hint : str
        What to type where it is damaged; to delete it, unless given.

    Raises
    ------
    LongshipError
        If it cannot be read.
    """
    import json  # 3 ms that a launch without a record does not need

    try:
        return json.loads(record.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LongshipError(
            f"cannot read the record {record}: {error}", hint or f"rm {shlex.quote(str(record))}"
        ) from error
