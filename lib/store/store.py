"""The versions of an image or an overlay, as lists show them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lib.configuration.tables import find_files
from lib.script.errors import printable
from lib.script.records import readable_values


class Version(NamedTuple):
    """A version: its file, its size in bytes, and the values of its record."""

    file: Path
    size: int
    record: Mapping[str, str]
    active: bool


def find_versions(link: Path, pattern: str) -> list[Version]:
    """Return the versions whose names match, by name; the link leads to the active one."""
    files, active = find_files(link.parent, f"versions/{pattern}"), active_version(link)
    return [read_version(each, active=each.name == active) for each in files]


def read_version(file: Path, *, active: bool = False) -> Version:
    """Read the record of a version."""
    size = (file.stat() if file.exists() else file.lstat()).st_size
    return Version(file, size, readable_values(record_of(file)), active)


def record_of(file: Path) -> Path:
    """Return the path of a version's record."""
    return file.with_name(f"{file.name}.json")


def active_version(link: Path) -> str:
    """Return the file name of the active version; "" if none is active."""
    return os.path.basename(os.readlink(link)) if os.path.islink(link) else ""


def two_parts(begin: str, end: str, *, wide: bool) -> str:
    """Return a line of a list: in two lines where the terminal is narrow."""
    return printable(begin) + ("  " if wide else "\n    ") + printable(end)
