"""Byte-compile the packages of an environment, and keep their bytecode for the next one.

Bytecode is a function of the source, its path and time, and of Python. So that of each package is
kept in one file, named by a checksum of these. The file begins with a checksum of the rest, so one
that is damaged is not used.
"""

import contextlib
import functools
import hashlib
import marshal
import multiprocessing
import os
import py_compile
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import cache_from_source

NOT_COMPILED = ("__pycache__", "test", "tests")  # no training imports the tests of a package
KEPT_DAYS = 60  # after the last use
DIGEST = hashlib.sha256().digest_size
MODE = py_compile.PycInvalidationMode.TIMESTAMP


def compile_all(directory, processes, kept):
    """Compile all modules below a directory, at low priority; print a line for each.

    `processes` compile; 0 means one for each core. `kept` is the directory with the bytecode of
    earlier environments; without one, "", everything is compiled. A file that is not Python, such
    as a template, stays as it is.
    """
    os.nice(10)  # of a login node
    packages = modules_by_package(directory)
    # the largest first: they end last
    names = sorted(packages, key=lambda name: -len(packages[name]))
    processes = int(processes) or len(os.sched_getaffinity(0))
    # fork: the other ways would start this program again
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=be_silent) as pool:
        find = functools.partial(find_kept, directory, kept)
        files = list(pool.map(find, names, map(packages.get, names)))
        missing = [(file, packages[name]) for file, name in zip(files, names) if file]
        sources = [path for _, paths in missing for path in paths]
        for path in pool.map(compile_module, sources, chunksize=8):
            print(path, flush=True)
    if kept:
        for file, paths in missing:
            keep(directory, file, paths)
        remove_old(kept)


def modules_by_package(directory):
    """Return the sources below a directory, by the name of their package in `site-packages`."""
    packages = {}
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(set(folders).difference(NOT_COMPILED))
        # lib/python3.11/site-packages/NAME/...
        parts = os.path.relpath(folder, directory).split(os.sep)
        sources = [os.path.join(folder, each) for each in sorted(files) if each.endswith(".py")]
        packages.setdefault(parts[2] if len(parts) > 2 else "modules", []).extend(sources)
    return {name: sources for name, sources in packages.items() if sources}


def find_kept(directory, kept, name, paths):
    """Write the bytecode of a package that is kept; return its file if it must be compiled."""
    if not kept:
        return name
    file = os.path.join(kept, f"{name}-{checksum(directory, paths)}")
    return "" if restore(directory, file) else file


def checksum(directory, paths):
    """Return a checksum of everything that the bytecode of these modules depends on."""
    found = hashlib.sha256(f"{sys.version}\0{directory}\0".encode())
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        mtime = int(os.stat(path).st_mtime)
        found.update(f"{os.path.relpath(path, directory)}\0{mtime}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


def be_silent():
    """Show no warnings about the code of others.

    The modules that show one would be in memory from then on, and marshal writes the names that
    others use too in another form.
    """
    import warnings

    warnings.simplefilter("ignore")


def compile_module(path):
    """Compile a module, if it is one; return its path."""
    with contextlib.suppress(py_compile.PyCompileError):
        py_compile.compile(path, doraise=True, invalidation_mode=MODE)
    return path


def restore(directory, file):
    """Write the bytecode of a package from the file that it is kept in; return whether it is."""
    try:
        with open(file, "rb") as kept:
            digest, content = kept.read(DIGEST), kept.read()
    except FileNotFoundError:
        return False
    if hashlib.sha256(content).digest() != digest:
        return False
    for path, code in marshal.loads(content):
        path = os.path.join(directory, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # one that a wheel brings can be a link to uv's cache
        with open(path, "wb") as compiled:
            compiled.write(code)
    os.utime(file)
    return True


def keep(directory, file, paths):
    """Write the bytecode of a package to the file that it is kept in."""
    content = []
    for path in map(cache_from_source, paths):
        if os.path.exists(path):
            with open(path, "rb") as compiled:
                content.append((os.path.relpath(path, directory), compiled.read()))
    written = marshal.dumps(content)
    partial = f"{file}.{os.getpid()}"
    with open(partial, "wb") as kept:
        kept.write(hashlib.sha256(written).digest())
        kept.write(written)
    os.replace(partial, file)


def remove_old(kept):
    """Delete what no environment has used for long."""
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for each in os.scandir(kept):
        if each.stat().st_mtime < oldest:
            os.unlink(each.path)
