"""The versions of images, listed: `move_built_container_to_active.py --list`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from lib.configuration.tables import find_files
from lib.runtimes.environment import Environment
from lib.runtimes.image import active_image, check_usable
from lib.runtimes.runtime import answer_lines
from lib.script.errors import printable
from lib.script.execute import read_output
from lib.script.output import Report, as_json, columns, number, size_text
from lib.script.records import content_of
from lib.script.render import render
from lib.store.store import (
    Version,
    active_version,
    find_versions,
    read_version,
    record_of,
    two_parts,
)

_Row = dict[str, Any]
_MOVE = ("python3", "move_built_container_to_active.py")
_BUILD = ("python3", "build_container.py")
_PROBE_SECONDS = 60  # a docker client without a daemon can wait for minutes
_WIDE = 120  # columns: each version is on one line
_DASHES = str.maketrans("", "", "-:Z")


def list_images(env: Environment) -> Report:
    """Describe all versions and mark the active one."""
    active, others = _images(env)
    width = columns()
    files = [each.file for image in (active, *others) for each in _versions(image)]
    damages = find_damages(files, answer_lines(env))
    lines = list(_lines(active, width, damages))
    for each in others:
        lines += ["", f"not configured: {each.name}", *_lines(each, width, damages)]
    if others or _versions(active):
        head = {"version": "VERSION", "built": "BUILT", "digest": "DIGEST", "source": "SOURCE"}
        lines.insert(0, _line(width, " ", head, "SIZE"))
    command, following = env.settings.command, ""
    if new_image(active):
        following = command(*_MOVE)
    elif os.path.islink(active) and not os.path.exists(active):
        following = f"{command(*_MOVE)} --use VERSION, or {command(*_BUILD)}"
    elif not os.path.exists(active):
        following = command(*_BUILD)
    return Report("".join(f"{each}\n" for each in lines), following)


def images_as_json(env: Environment) -> Report:
    """Describe the same versions for a program."""
    active, others = _images(env)
    return as_json(row for each in (active, *others) for row in _rows(each))


def _images(env: Environment) -> tuple[Path, list[Path]]:
    """Return the path of the active image, and what it would be for other names with versions."""
    paths = env.paths
    check_usable(env.runtime, env.source)
    active = active_image(env.runtime, env.source, paths)
    versions = find_files(paths.containers, f"versions/*_{paths.arch}_[0-9]*_*{active.suffix}")
    names = dict.fromkeys(each.name.rsplit("_", 2)[0] + active.suffix for each in versions)
    return active, [paths.containers / each for each in names if each != active.name]


def _versions(active: Path) -> list[Version]:
    return find_versions(active, f"{glob.escape(active.stem)}_[0-9]*_*{active.suffix}")


def new_image(active: Path) -> Path | None:
    """Return the image that is built and not yet active."""
    new = active.parent / "build" / active.name
    return new if os.path.exists(new) and os.path.exists(record_of(new)) else None


def _rows(active: Path) -> Iterator[_Row]:
    """Describe the versions of an image, then a file in its place, then the new image."""
    for each in _versions(active):
        since = _active_since(active, each.file.name) if each.active else ""
        yield _row(active, each, each.file.name, since)
    if os.path.isfile(active) and not os.path.islink(active):
        yield _row(active, read_version(active, active=True), "")
    new = new_image(active)
    if new:
        version = read_version(new)
        date = version.record.get("date", "").translate(_DASHES)
        checksum = version.record.get("sha256", "").rpartition("sha256:")[2][:12]
        yield _row(active, version, f"{active.stem}_{date}_{checksum}{active.suffix}")


def _row(active: Path, version: Version, name: str, since: str = "") -> _Row:
    begin = f"{active.stem}_"
    size = number(version.record.get("bytes", ""))  # docker's and podman's file contains only a tag
    return {
        "image": active.name,
        "version": name[len(begin) * name.startswith(begin) :].rpartition(".")[0],
        "file": str(version.file),
        "built": version.record.get("date", ""),
        "bytes": version.size if size is None else size,
        "digest": version.record.get("digest", ""),
        "source": version.record.get("source", ""),
        "in_use": version.active,
        "since": since,
    }


def _active_since(active: Path, name: str) -> str:
    """Return since when a version is active, as far as known."""
    history = content_of(active.parent / f"versions/{active.name}.history")
    lines = history.decode(errors="surrogateescape").split("\n")
    changes = (each.split() for each in lines)  # time, kind, from, to
    return ([""] + [each[0] for each in changes if each[3:4] == [name]])[-1]


def _lines(active: Path, width: int, damages: Mapping[str, str]) -> Iterator[str]:
    rows = list(_rows(active))
    new = rows.pop() if new_image(active) else None
    foreign = rows.pop() if rows and not rows[-1]["version"] else None
    for row in rows:
        yield _line(width, "*" if row["in_use"] else " ", row)
        if row["in_use"]:
            yield "  active" + f" since {printable(row['since'])}" * bool(row["since"])
        if damages[row["file"]]:
            yield f"  damaged: {printable(damages[row['file']])}"
    if foreign:
        yield f"active: {printable(foreign['file'])}, not built by Longship"
    elif not os.path.islink(active):
        yield "no active image"
    elif not os.path.exists(active):
        yield f"active: {printable(active_version(active))}, which is missing"
    if new:
        yield "new image, not yet active:"
        yield _line(width, "+", new)


def _line(width: int, mark: str, row: _Row, size: str = "") -> str:
    date, digest, source = (row[each] or "-" for each in ("built", "digest", "source"))
    wide = width >= _WIDE
    begin = f"{mark} {row['version']:<29} {date:<20} {size or size_text(row['bytes']):>8}"
    end = f"{digest[:19]:<19}  {source[: width - (84 if wide else 25)]}"
    return two_parts(begin, end, wide=wide)


def find_damages(files: Sequence[Path], answers: Sequence[str] = ()) -> dict[str, str]:
    """Return by file how images differ from their records, without checksums: those take minutes.

    ``image_damage`` decides it, as for the scripts that activate and delete versions; the answers
    are the lines of the runtime.
    """
    plan = 'for file in "$@"; do image_damage "$file"; printf "damage: %s\\n" "$REPLY"; done'
    command = ["bash", "-c", render("damages", [*answers, plan]), "damages", *map(str, files)]
    text = read_output(command, _PROBE_SECONDS).text if files else ""
    found = re.findall("^damage: (.*)", text, re.MULTILINE)
    return dict(zip(map(str, files), chain(found, repeat("the image cannot be checked"))))
