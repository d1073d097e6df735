"""The files of a bundle: their names and checksums; all cores hash and copy them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import BinaryIO, Callable

from lib.script.errors import LongshipError, print_messages, write_error
from lib.script.records import open_file, read_file
from lib.script.worker import in_parallel, stopping


def is_inside(name: str) -> bool:
    """Tell whether a name is of a file below a directory, and can be stored in SHA256SUMS."""
    return not {"", ".", ".."} & set(name.split("/")) and not re.search(r"[\0-\x1f\x7f\\]", name)


def read_lines(path: str) -> list[str]:
    """Return the complete lines of a file; none if it does not exist."""
    with suppress(FileNotFoundError):
        return _lines_of(path)
    return []


def _lines_of(path: str) -> list[str]:
    return os.fsdecode(read_file(Path(path), follow=False)).split("\n")[:-1]


def replace_file(path: str, lines: Iterable[str]) -> None:
    """Write a file of lines; at any moment it is the old one or the complete new one."""
    with open(f"{path}.partial", "wb") as file:
        file.writelines(os.fsencode(f"{line}\n") for line in lines)
    os.replace(f"{path}.partial", path)


def write_sums(path: str, sums: Mapping[str, str], *header: str) -> None:
    """Write the checksum of each file, as sha256sum does, and how many there are."""
    lines = [f"{sums[name]}  {name}" for name in sorted(sums, key=os.fsencode)]
    replace_file(path, [*header, *lines, f"# {len(sums)} files in all"])


def read_sums(path: str, hint: str = "copy the bundle again, or pack it again") -> dict[str, str]:
    """Return the checksums of such a list, by name; stop if it is not complete."""
    sums: dict[str, str] = {}
    try:
        lines = _lines_of(path)
    except OSError as error:
        message = f"{path} is missing, or not a regular file: {error.strerror}"
        raise LongshipError(message, hint) from error
    for line in lines:
        name = line[66:]
        if re.match("[0-9a-f]{64}  ", line) and is_inside(name) and name not in sums:
            sums[name] = line[:64]
        elif not line.startswith("# "):
            raise LongshipError(f"{path} has an invalid line: {quote(line)}", hint)
    if lines[-1:] != [f"# {len(sums)} files in all"]:
        raise LongshipError(f"{path} is truncated", hint)
    return sums


def walk(directory: str) -> list[str]:
    """Return the name of each file and link below a directory."""
    found = []
    for base, directories, names in os.walk(directory):
        links = [each for each in directories if os.path.islink(f"{base}/{each}")]
        found += [f"{base}/{name}"[len(directory) + 1 :] for name in sorted((*names, *links))]
    return found


def verify(bundle: str) -> int:
    """Compare every file of a bundle with its checksum; return how many there are.

    What packing has not put there is not judged: it is not unpacked.
    """
    sums = read_sums(f"{bundle}/SHA256SUMS")
    found = hash_files(bundle, sums)
    wrong = [name for name in sums if found[name] != sums[name]]
    for name in wrong:
        there = os.path.lexists(f"{bundle}/{name}")
        print_messages(**{"corrupt" if there else "missing": quote(name)})
    if wrong:
        raise LongshipError(
            f"{len(wrong)} files of the bundle do not match their checksums: {bundle}",
            "delete the corrupt files; then copy the bundle again (rsync -a --checksum), or run "
            "the same pack again",
        )
    return len(sums)


def hash_files(directory: str, names: Iterable[str]) -> dict[str, str]:
    """Return the checksum of each of these files; "" for what is no file, or cannot be read."""

    def hash_one(name: str) -> str:
        with suppress(OSError), open_file(Path(directory, name), follow=False) as file:
            return _hash(file)
        return ""

    return _with_all_cores(hash_one, names)


def copy_files(
    directory: str, sources: Mapping[str, str], sums: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Copy files to a directory, SOURCES by their name there; return their checksums.

    A file is complete, and matches SUMS if there are any; or it does not exist.
    """

    def copy_one(name: str) -> str:
        target, source = f"{directory}/{name}", sources[name]
        partial = f"{temporary}/{threading.get_ident()}"
        try:
            checksum = _copy(source, partial)
            if sums and checksum != sums[name]:
                hint = "copy the bundle again: rsync -a --checksum copies only what differs"
                raise LongshipError(f"{source} is corrupt", hint)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(partial, target)
        except OSError as error:
            with suppress(OSError):
                os.unlink(partial)
            message = f"cannot copy {source} to {target}"
            hint = "fix the reason given, then run the same command again"
            raise write_error(temporary, message, hint, error) from error
        return checksum

    temporary = f"{directory}/.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    copied = _with_all_cores(copy_one, sources)
    os.rmdir(temporary)
    return copied


def _with_all_cores(function: Callable[[str], str], items: Iterable[str]) -> dict[str, str]:
    """Return what a function returns for each item; the first error ends the work."""
    results, errors = {}, []

    def call(item: str) -> None:
        try:
            if not errors and not stopping.is_set():
                results[item] = function(item)
        except Exception as error:  # raised below, when no other thread works any more
            errors.append(error)

    in_parallel(call, items, len(os.sched_getaffinity(0)), "files")
    if errors:
        raise errors[0]
    return results


def _copy(source: str, partial: str) -> str:
    """Copy a file with its time, and with its mode as the umask allows; return its checksum."""
    with open_file(Path(source), follow=False) as file:
        found = os.fstat(file.fileno())
        mode = found.st_mode & 0o777 | 0o200
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT, mode), "wb") as copy:
            checksum = _hash(file, copy)
            copy.flush()
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
    return checksum


def _hash(file: BinaryIO, copy: BinaryIO | None = None) -> str:
    """Return the checksum of a file, and copy it on the way."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        if stopping.is_set():
            raise InterruptedError
        digest.update(buffer[:count])
        if copy:
            copy.write(buffer[:count])
    return digest.hexdigest()
