"""Byte-compile the packages of an environment."""

import contextlib
import functools
import multiprocessing
import os
import py_compile
from concurrent.futures import ProcessPoolExecutor

NOT_COMPILED = ("__pycache__", "test", "tests")  # no training imports the tests of a package
MODES = py_compile.PycInvalidationMode
TIME_AT = 8  # of the source's time, 4 bytes in a compiled file: https://peps.python.org/pep-0552/


def compile_all(directory, processes, time):
    """Compile all modules below a directory, at low priority; print a line for each.

    `processes` compile; 0 means one for each core. `time` is that of the sources: "" for the one
    that they have, seconds for the one that they will have, "any" for bytecode that Python compares
    with the content of its source. A file that is not Python, such as a template, stays as it is.
    """
    os.nice(10)  # of a login node
    processes = int(processes) or len(os.sched_getaffinity(0))
    # fork: the other ways would start this program again
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=be_silent) as pool:
        compile_one = functools.partial(compile_module, time)
        for path in pool.map(compile_one, modules(directory), chunksize=8):
            print(path, flush=True)


def modules(directory):
    """Return the sources below a directory."""
    found = []
    for folder, folders, files in os.walk(directory):
        folders[:] = set(folders).difference(NOT_COMPILED)
        found += [os.path.join(folder, each) for each in files if each.endswith(".py")]
    return found


def be_silent():
    """Show no warnings about the code of others.

    The modules that show one would be in memory from then on, and marshal writes the names that
    others use too in another form.
    """
    import warnings

    warnings.simplefilter("ignore")


def compile_module(time, path):
    """Compile a module, if it is one; return its path."""
    mode = MODES.CHECKED_HASH if time == "any" else MODES.TIMESTAMP
    with contextlib.suppress(py_compile.PyCompileError):
        compiled = py_compile.compile(path, doraise=True, invalidation_mode=mode)
        if time.isdigit():
            with open(compiled, "r+b") as file:
                file.seek(TIME_AT)
                file.write(int(time).to_bytes(4, "little"))
    return path
