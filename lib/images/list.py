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
from lib.script.records import content_of, readable_values
from lib.script.render import render

_Row = dict[str, Any]
_MOVE = "python3 move_built_container_to_active.py"
_BUILD = "python3 build_container.py"
_PROBE_SECONDS = 60  # a docker client without a daemon can wait for minutes
_WIDE = 120  # columns: each version is on one line
_DASHES = str.maketrans("", "", "-:Z")


def list_images(env: Environment) -> Report:
    """Describe all versions and mark the active one."""
    active, others = _images(env)
    width = columns()
    files = [file for each in (active, *others) for file in _versions(each)]
    damages = find_damages(files, answer_lines(env))
    lines = list(_lines(active, width, damages))
    for each in others:
        lines += ["", f"not configured: {each.name}", *_lines(each, width, damages)]
    if others or _versions(active):
        head = {"version": "VERSION", "built": "BUILT", "digest": "DIGEST", "source": "SOURCE"}
        lines.insert(0, _line(width, " ", head, "SIZE"))
    following = ""
    if new_image(active):
        following = _MOVE
    elif not os.path.exists(active):
        following = f"{_MOVE} --use VERSION, or {_BUILD}" if os.path.islink(active) else _BUILD
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


def _versions(active: Path) -> list[Path]:
    return find_files(active.parent, f"versions/{glob.escape(active.stem)}_[0-9]*_*{active.suffix}")


def new_image(active: Path) -> Path | None:
    """Return the image that is built and not yet active."""
    new = active.parent / "build" / active.name
    return new if os.path.exists(new) and os.path.exists(_record(new)) else None


def _record(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _rows(active: Path) -> Iterator[_Row]:
    """Describe the versions of an image, then a file in its place, then the new image."""
    used, since = _active_version(active)
    for file in _versions(active):
        in_use = file.name == used
        yield _row(active, file, file.name, in_use=in_use, since=since if in_use else "")
    if os.path.isfile(active) and not os.path.islink(active):
        yield _row(active, active, "", in_use=True)
    new = new_image(active)
    if new:
        values = readable_values(_record(new))
        date = values.get("date", "").translate(_DASHES)
        checksum = values.get("sha256", "").rpartition("sha256:")[2][:12]
        yield _row(active, new, f"{active.stem}_{date}_{checksum}{active.suffix}")


def _row(active: Path, file: Path, version: str, *, in_use: bool = False, since: str = "") -> _Row:
    values = readable_values(_record(file))
    begin = f"{active.stem}_"
    size = number(values.get("bytes", ""))  # docker's and podman's file contains only a tag
    return {
        "image": active.name,
        "version": version[len(begin) * version.startswith(begin) :].rpartition(".")[0],
        "file": str(file),
        "built": values.get("date", ""),
        "bytes": file.lstat().st_size if size is None else size,
        "digest": values.get("digest", ""),
        "source": values.get("source", ""),
        "in_use": in_use,
        "since": since,
    }


def _active_version(active: Path) -> tuple[str, str]:
    """Return the file name of the active version, and since when it is active, as far as known."""
    if not os.path.islink(active):
        return "", ""
    used = os.path.basename(os.readlink(active))
    history = content_of(active.parent / f"versions/{active.name}.history")
    lines = history.decode(errors="surrogateescape").split("\n")
    changes = (each.split() for each in lines)  # time, kind, from, to
    return used, ([""] + [each[0] for each in changes if each[3:4] == [used]])[-1]


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
        yield f"active: {printable(_active_version(active)[0])}, which is missing"
    if new:
        yield "new image, not yet active:"
        yield _line(width, "+", new)


def _line(width: int, mark: str, row: _Row, size: str = "") -> str:
    date, digest, source = (row[each] or "-" for each in ("built", "digest", "source"))
    begin = f"{mark} {row['version']:<29} {date:<20} {size or size_text(row['bytes']):>8}"
    end = f"{digest[:19]:<19}  {source[: width - (84 if width >= _WIDE else 25)]}"
    return printable(begin) + ("  " if width >= _WIDE else "\n    ") + printable(end)


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
