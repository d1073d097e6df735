"""Byte-compile an installed environment, and write a manifest of its inputs.

The result is packed and mounted read-only, so nothing can be compiled later; it must not depend on
when, by whom or where it was built.
"""

import concurrent.futures
import contextlib
import functools
import glob
import hashlib
import importlib.util
import json
import marshal
import os
import py_compile
import re
import sys
import warnings


def freeze(prefix, time, cache, processors, work, *facts):
    """Freeze an environment, with its own Python.

    `time` is the modification time of every file once it is packed, `cache` a file that keeps the
    compiled files for the next build, `processors` the number of processes, 0 for one per
    processor. requirements.txt and pins.txt of `work` go into the manifest with the facts NAME
    VALUE.
    """
    remove_installer_files(prefix)
    cache = f"{cache}-{sys.version.split()[0]}"
    compile_all(os.path.join(prefix, "lib"), int(time), cache, int(processors))
    write_manifest(prefix, work, facts)


def remove_installer_files(prefix):
    """Remove files of the installers; uv records when it saw a wheel."""
    for name in (".lock", ".gitignore", "CACHEDIR.TAG"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(prefix, name))
    pattern = os.path.join(glob.escape(prefix), "lib/*/site-packages/*.dist-info/uv_*.json")
    for path in glob.glob(pattern):
        folder, name = os.path.split(path)
        if name in ("uv_cache.json", "uv_build.json"):
            os.remove(path)
            record = os.path.join(folder, "RECORD")
            with open(record, encoding="utf-8", newline="") as file:
                lines = file.readlines()
            # a new file: the old one may be a link to one in uv's cache
            replace(record, "".join(each for each in lines if f"/{name}," not in each).encode())


def replace(path, content):
    """Write a file under another name first."""
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content)
    os.replace(partial, path)


def key_of(path, time):
    """Return the key of a compiled file: a checksum of time, path and content of its source."""
    digest = hashlib.blake2b(os.fsencode(f"{time} {path}") + b"\0", digest_size=16)
    with open(path, "rb") as file:
        digest.update(file.read())
    return digest.digest()


def compile_file(path, time):
    """Compile one file, for the time that it is packed with; skip a template that is not Python."""
    warnings.simplefilter("ignore")
    try:
        # by time and not by hash: a file that is bound over one of these (patched_files) is noticed
        mode = py_compile.PycInvalidationMode.TIMESTAMP
        compiled = py_compile.compile(path, doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, ValueError, RecursionError):
        return
    # The source itself may be a hard link to one in the installer's cache: it keeps its own time.
    with open(compiled, "r+b") as file:
        file.seek(8)  # https://peps.python.org/pep-0552/#specification
        file.write(time.to_bytes(4, "little"))


def compile_all(folder, time, cache, processors):
    """Compile every file of a directory, with `time` as the time of its source.

    Files that the cache has are taken from there.
    """
    sources = [
        os.path.join(path, file)
        for path, _, files in os.walk(folder)
        for file in files
        if file.endswith(".py")
    ]
    keys = {path: key_of(path, time) for path in sources}
    known = read_cache(cache)
    for path in keys:
        if keys[path] in known:
            target = importlib.util.cache_from_source(path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(known[keys[path]])
    missing = [path for path in keys if keys[path] not in known]
    with concurrent.futures.ProcessPoolExecutor(processors or None) as pool:
        compiled = pool.map(functools.partial(compile_file, time=time), missing, chunksize=20)
        for count, _ in enumerate(compiled, 1):
            if count % 100 == 0 and sys.stderr.isatty():
                sys.stderr.write(f"\r\033[K      {count} of {len(missing)} files")
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
    # what can never be compiled is missing each time
    if any(os.path.exists(importlib.util.cache_from_source(path)) for path in missing):
        write_cache(cache, keys)


def read_cache(path):
    """Return the compiled files of earlier builds, by `key_of`; none if the cache was changed.

    It begins with its checksum. A cache that others can write to is not used; those who can write
    to the overlays, which are in the same directory, can replace it.
    """
    try:
        with open(path, "rb") as file:
            digest, content = file.read(hashlib.sha256().digest_size), file.read()
            shared = os.fstat(file.fileno()).st_mode & 0o022
    except OSError:
        return {}
    if shared or hashlib.sha256(content).digest() != digest:
        return {}
    return dict(marshal.loads(content))


def write_cache(path, keys):
    """Store all compiled files."""
    found = {}
    for source, key in keys.items():
        compiled = importlib.util.cache_from_source(source)
        if os.path.exists(compiled):
            with open(compiled, "rb") as file:
                found[key] = file.read()
    content = marshal.dumps(found)
    replace(path, hashlib.sha256(content).digest() + content)


def write_manifest(prefix, work, facts):
    """Write the inputs of the overlay, the last of its files."""
    manifest = dict(zip(facts[::2], facts[1::2]))
    with open(os.path.join(work, "requirements.txt"), encoding="utf-8") as text:
        manifest["requirements"] = text.read()
    # without hashes: online they are those of all files of a version, offline of the one used
    with open(os.path.join(work, "pins.txt"), encoding="utf-8") as text:
        pins = [
            re.split(r" \\| --hash", line)[0].strip() for line in text if line[0] not in " #-\n"
        ]
    lock = "".join(f"{pin}\n" for pin in sorted(pins))
    manifest["lock"] = re.sub(r"(://)[^/@\s]+@", r"\1", lock)  # no passwords
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    replace(os.path.join(prefix, "longship-overlay.json"), text.encode())
