"""Make an installed environment the same for everybody who installs it, and byte-compile it.

Runs inside the environment, with its own Python. It is packed afterwards and mounted read-only, so
nothing can be compiled later; and nothing in it may tell when, by whom or where it was made.

Usage: python freeze_packages.py PREFIX TIME CACHE PROCESSORS WORK [NAME VALUE]...

TIME is what every file's time will be. CACHE is a file, which keeps what was compiled for the next
build. PROCESSORS is how many compile, 0 for all. WORK holds requirements.txt and pins.txt, which go
into the manifest together with the facts NAME VALUE.
"""

import concurrent.futures
import hashlib
import importlib.util
import json
import marshal
import os
import py_compile
import sys
import warnings

import program

MANIFEST = "longship-overlay.json"
# what installers leave for themselves
_LEFT = (".lock", ".gitignore", "CACHEDIR.TAG")


def files_below(folder):
    """Give every file below a folder, in the same order everywhere."""
    for path, folders, files in os.walk(folder):
        folders.sort()
        yield from (os.path.join(path, file) for file in sorted(files))


def normalise(prefix, time):
    """Give all files one time and one of two modes, whatever the umask of who installed them."""
    for name in _LEFT:
        path = os.path.join(prefix, name)
        if os.path.exists(path):
            os.remove(path)
    for path, folders, _ in os.walk(prefix):
        for folder in folders:
            _set_mode(os.path.join(path, folder), 0o755)
    for path in files_below(prefix):
        if not os.path.islink(path):
            _set_mode(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)
            os.utime(path, (time, time))
    os.chmod(prefix, 0o755)


def _set_mode(path, mode):
    if not os.path.islink(path):
        os.chmod(path, mode)


def key_of(source, path):
    """Return what tells one compiled file from another: the source, and the path that it names."""
    digest = hashlib.blake2b(os.fsencode(path) + b"\0", digest_size=16)
    with open(source, "rb") as file:
        digest.update(file.read())
    return digest.digest()


def compile_file(path):
    """Compile one file beside it; a template that is no Python yet stays as it is."""
    warnings.simplefilter("ignore")
    try:
        # by time and not by hash: a file that is bound over one of these (patched_files) is noticed
        mode = py_compile.PycInvalidationMode.TIMESTAMP
        py_compile.compile(path, doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, ValueError, RecursionError):
        return


def compile_all(folder, cache, processors):
    """Compile every file below a folder; those that the cache has are taken from there.

    Parameters
    ----------
    folder : str
        Where the packages are.
    cache : str
        The file; the Python's version is added to its name.
    processors : int
        How many processes compile; 0 for one per processor.
    """
    cache = f"{cache}-{sys.version.split()[0]}"
    sources = [path for path in files_below(folder) if path.endswith(".py")]
    keys = {path: key_of(path, path) for path in sources}
    known = read_cache(cache)
    for path in sources:
        compiled = known.get(keys[path])
        if compiled is not None:
            target = importlib.util.cache_from_source(path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(compiled)
    missing = [path for path in sources if keys[path] not in known]
    with concurrent.futures.ProcessPoolExecutor(processors or None) as pool:
        for _ in pool.map(compile_file, missing, chunksize=20):
            pass
    write_cache(cache, keys)


def read_cache(path):
    """Return what was compiled before, by `key_of`; nothing where the file is damaged."""
    try:
        with open(path, "rb") as file:
            return dict(marshal.load(file))
    except (OSError, EOFError, ValueError, TypeError):
        return {}


def write_cache(path, keys):
    """Keep what is compiled now."""
    found = {}
    for source, key in keys.items():
        compiled = importlib.util.cache_from_source(source)
        if os.path.exists(compiled):
            with open(compiled, "rb") as file:
                found[key] = file.read()
    partial = f"{path}.{os.getpid()}.partial"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(partial, "wb") as file:
        marshal.dump(found, file)
    os.replace(partial, path)


def write_manifest(prefix, work, facts):
    """Write what it was made from, the last of its files."""
    manifest = dict(zip(facts[::2], facts[1::2]))
    for name, file in (("requirements", "requirements.txt"), ("lock", "pins.txt")):
        with open(os.path.join(work, file), encoding="utf-8") as text:
            manifest[name] = text.read()
    path = os.path.join(prefix, MANIFEST)
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, sort_keys=True)
        file.write("\n")
    os.chmod(f"{path}.partial", 0o644)
    os.replace(f"{path}.partial", path)


def main(prefix, time, cache, processors, work, *facts):
    """Do all of it."""
    normalise(prefix, int(time))
    compile_all(os.path.join(prefix, "lib"), cache, int(processors))
    normalise(prefix, int(time))
    write_manifest(prefix, work, facts)


if __name__ == "__main__":
    program.start(main)
