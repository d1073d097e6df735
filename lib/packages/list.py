"""All overlays, listed: `build_overlay.py --list`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.configuration.tables import find_files
from lib.packages.overlay import overlay_link
from lib.runtimes.environment import Environment
from lib.runtimes.packages import OVERLAY_COMMAND
from lib.script.errors import printable
from lib.script.output import Report, as_json, columns, size_text
from lib.script.records import content_of, readable_values
from lib.store.store import find_versions, record_of, two_parts

_Row = dict[str, Any]
_WIDE = 142  # columns: each overlay is on one line


def list_overlays(environment: Environment) -> Report:
    """Describe all overlays and mark the active one."""
    base, link = environment.base, overlay_link(environment.packages)
    width = columns()
    lines = [line for each in _rows(link) for line in _lines(each, base, width)]
    if lines:
        lines.insert(0, _line(width, " ", "OVERLAY", "SIZE", "BUILT", "LAST USE", "REQUIREMENTS"))
    built = os.path.exists(link)
    if not built:
        lines.append(f"not built yet for the current requirements: {printable(str(link))}")
    build = "" if built else environment.settings.command(*OVERLAY_COMMAND)
    return Report("".join(f"{each}\n" for each in lines), build)


def overlays_as_json(environment: Environment) -> Report:
    """Describe the same overlays for a program; the images of each are on a line each."""
    _ = environment.base  # an image that cannot be used is an error, as above
    return as_json(_rows(overlay_link(environment.packages)))


def _rows(link: Path) -> Iterator[_Row]:
    """Describe all versions, oldest first."""
    pins = [(_day(each), content_of(each)) for each in find_files(link.parent, "pins/*")]
    versions = [each for each in find_versions(link, "*.sqsh") if each.file.exists()]
    for each in sorted(versions, key=lambda each: int(each.file.stat().st_mtime)):
        # a launcher's pin counts as a use
        uses = [day for day, pin in pins if os.fsencode(each.file.name) in pin]
        yield {
            "overlay": each.file.stem,
            "file": str(each.file),
            "bytes": each.size,
            "in_use": each.active,
            "last_use": max(_day(Path(f"{each.file}.used")), *uses, ""),
            "built": each.record.get("date", ""),
            "requirements": each.record.get("requirements", ""),
            "images": each.record.get("base", ""),
        }


def _day(file: Path) -> str:
    """Return the local date of a file; "" if it does not exist."""
    try:
        return time.strftime("%Y-%m-%d", time.localtime(file.stat().st_mtime))
    except OSError:
        return ""


def _lines(row: _Row, base: str, width: int) -> Iterator[str]:
    requirements = row["requirements"] or "-"
    room = 60 if width >= _WIDE else width - 36
    if len(requirements) > room:
        requirements = f"{requirements[: room - 3]}..."
    date, size = row["built"].partition("T")[0] or "-", size_text(row["bytes"])
    mark, used = "*" if row["in_use"] else " ", row["last_use"] or "never"
    yield _line(width, mark, row["overlay"], size, date, used, requirements)
    if readable_values(record_of(Path(row["file"]))).get("wanted") == "taken over":
        yield f"  not built by Longship: {printable(os.path.realpath(row['file']))}"
    images = row["images"].split("\n")
    if row["in_use"] and base in images:
        yield "  active"
    elif row["in_use"]:
        others = printable(", ".join(images))
        yield f"  for the current requirements, but for another image: {others}"


def _line(width: int, mark: str, name: str, *cells: str) -> str:
    size, date, used, requirements = cells
    end = f"{size:>8}  {date:<10} {used:<10} {requirements}"
    wide = width >= _WIDE
    return two_parts(f"{mark} {name:<46}" if wide else f"{mark} {name}", end, wide=wide)
