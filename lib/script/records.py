"""Records: flat JSON that bash writes next to images and overlays, and in run directories."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from lib.script.errors import LongshipError

LARGEST = 1 << 26  # bytes of a file that is read as a whole
_LARGEST_RECORD = 1 << 22
_VALUE = r'(?m)^  "(\w+)": "(.*)"'  # as bash reads it: a value on each line


def read_record(record: Path, hint: str = "") -> dict[str, str]:
    """Read a record (`record_write`); {} if it does not exist.

    The hint is for a damaged record; the default is to delete it.
    """
    import json  # 3 ms that a launch without a record does not need

    try:
        found = json.loads(read_file(record, _LARGEST_RECORD).decode(errors="surrogateescape"))
        if not isinstance(found, dict):
            raise ValueError("expected an object")
        return {name: value for name, value in found.items() if isinstance(value, str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LongshipError(
            f"cannot read the record {record}: {error}", hint or f"rm {shlex.quote(str(record))}"
        ) from error


def readable_values(record: Path, owner: int | None = None) -> dict[str, str]:
    """Return what can be read of a record: a report shows damaged and foreign records too."""
    text = content_of(record, _LARGEST_RECORD, owner=owner).decode(errors="surrogateescape")
    return {name: _unescaped(value) for name, value in reversed(re.findall(_VALUE, text))}


def open_file(path: Path, *, follow: bool = True, owner: int | None = None) -> BinaryIO:
    """Open a regular file to read it; with another, such as a FIFO, a script would wait forever.

    With an owner, it must be that user's: a link of a colleague can lead to what only its reader
    may read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    number = os.open(path, flags)
    found = os.fstat(number)
    problem = "" if stat.S_ISREG(found.st_mode) else "it is not a regular file"
    if owner not in (None, found.st_uid):
        problem = "it does not belong to the owner of the run"
    if problem:
        os.close(number)
        raise OSError(errno.EINVAL, problem, str(path))
    return os.fdopen(number, "rb")


def read_file(
    file: Path, most: int = LARGEST, *, follow: bool = True, owner: int | None = None
) -> bytes:
    """Return the content of a regular file; one with more bytes is an OSError."""
    with open_file(file, follow=follow, owner=owner) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(file))
    return content


def content_of(
    file: Path, most: int = LARGEST, *, follow: bool = True, owner: int | None = None
) -> bytes:
    """Return the content of a regular file, nothing if it cannot be read."""
    with suppress(OSError):
        return read_file(file, most, follow=follow, owner=owner)
    return b""


def _unescaped(text: str) -> str:
    """Return the string that stands between quotes in JSON, or the text itself if it is damaged."""
    import json

    try:
        value = json.loads(f'"{text}"')
        value.encode(errors="surrogateescape")  # half a character cannot be printed
    except ValueError:
        return text
    return value


def seconds_before(run: Path, record: Mapping[str, str]) -> int:
    """Return how long a requeued job has run before, all attempts together."""
    started, ended = record.get("started", ""), record.get("ended", "")
    if not ended:  # its node was lost: Slurm submits the job again at that moment
        found = re.search(rb" SubmitTime=([0-9T:-]+)", content_of(run / "slurm.txt"))
        ended = found[1].decode() if found else ""
    return earlier_seconds(record) + max(0, seconds_between(started, ended))


def first_start(record: Mapping[str, str]) -> str:
    """Return when a job began; ``started`` is the last start of one that was requeued."""
    return record.get("first_started") or record.get("started", "")


def earlier_seconds(record: Mapping[str, str]) -> int:
    """Return how long the attempts before the last one ran; 0 if the record is damaged."""
    found = re.fullmatch("[0-9]{1,12}", record.get("earlier_seconds", ""))
    return int(found[0]) if found else 0


def seconds_between(first: str, last: str) -> int:
    """Return the time between two times of a record; 0 if one of them is not a time."""
    from datetime import datetime

    try:
        times = (datetime.fromisoformat(each.replace("Z", "+00:00")) for each in (first, last))
        begin, end = (int(each.timestamp()) for each in times)
    except (ValueError, OverflowError):
        return 0
    return end - begin
