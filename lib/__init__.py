"""The Python core of Longship: it computes bash scripts; bash does the work.

Importing it checks the Python version. So every Python 3 must be able to parse this file and the
entry scripts (LUMI's login nodes have 3.6): an older Python gets a message, not a SyntaxError.
"""

import os
import sys

VERSION = "2026.11.29"  # the date of the newest section of CHANGELOG.md
OLDEST_PYTHON = (3, 9)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def use_own_bytecode():
    """Let Python use bytecode of this repository only where nobody else could have written it.

    The started file has switched it off, before it imports this. Others can write to `__pycache__`
    in a clone that was made with the umask of a group, or below a default ACL. So bytecode is used
    only if they cannot enter the clone, or a directory above it; else its modules are compiled at
    each start, in 0.1 s. A bundle gets none either, as its checksums would no longer match.
    """
    sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    is_bundle = os.path.exists(os.path.join(os.path.dirname(ROOT), "SHA256SUMS"))
    if is_bundle or not _is_closed(os.path.realpath(ROOT)):
        _ignore_bytecode()


def _is_closed(path):
    """Tell whether nobody else can enter a directory, or one above it that is the user's."""
    found = os.stat(path)
    if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return True
    return path != os.path.dirname(path) and _is_closed(os.path.dirname(path))


def _ignore_bytecode():
    """Compile the modules of this repository at each start, and write no bytecode."""
    from importlib.machinery import (
        EXTENSION_SUFFIXES,
        ExtensionFileLoader,
        FileFinder,
        SourceFileLoader,
    )

    class Source(SourceFileLoader):
        def path_stats(self, path):
            raise OSError("without it, bytecode is neither read nor written")

    def find(directory):
        if not f"{directory}/".startswith(f"{ROOT}/"):  # that of .venv too
            raise ImportError
        loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (Source, [".py"])
        return FileFinder(directory, *loaders)

    sys.path_hooks.insert(0, find)
    sys.path_importer_cache.pop(ROOT, None)  # it has imported this file


def _check_python():
    """If this Python is too old, start again with `.venv`'s Python, or stop with a message."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    own = os.path.join(ROOT, ".venv", "bin", "python")
    if os.access(own, os.X_OK) and os.path.join(ROOT, ".venv") != sys.prefix:
        import contextlib

        with contextlib.suppress(OSError):  # it is for another architecture
            os.execv(own, [own] + sys.argv)
    wanted, found = (".".join(map(str, each[:2])) for each in (OLDEST_PYTHON, sys.version_info))
    sys.stderr.write(
        f"error: Longship needs Python {wanted} or newer; {sys.executable} is {found}\n"
        f"hint: {_newer_python()}\n"
    )
    sys.exit(1)


def _newer_python():
    """Return how to get a newer Python on this site; its facts are read without a TOML parser."""
    import glob
    import re

    for path in glob.glob(os.path.join(glob.escape(ROOT), "*", "site.toml")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        command = re.search(r'^newer_python = "(.+)"', text, re.MULTILINE)
        marks = re.findall(r'\bpath = "(.+?)"', text)
        if command and any(os.path.exists(mark) for mark in marks):
            return f"run: {command.group(1)}; then run the command again"
    return "use a newer Python: python3.11 " + sys.argv[0]


def _forget_working_directory():
    """Import nothing from where this is typed, which an empty entry of PYTHONPATH means."""
    try:
        here = os.getcwd()
    except OSError:  # deleted
        here = ""
    sys.path[:] = [path for path in sys.path if path not in ("", here) or here == ROOT]


def find_packages():
    """Put the packages of `.venv` on the path, those installed for this Python first.

    So `python3 container_run.py ...` works on a login node without activating anything.
    """
    import glob

    library = os.path.join(glob.escape(ROOT), ".venv", "lib")
    same = "python{}.{}".format(*sys.version_info)
    found = glob.glob(os.path.join(library, "*", "site-packages"))
    for directory in sorted(found, key=lambda path: path.split(os.sep)[-2] == same):
        if directory not in sys.path:
            sys.path.insert(1, directory)


def start(main):
    """Run an entry script; Ctrl-C prints one line, even while modules are still being imported."""
    import _signal  # importing `signal` takes a millisecond
    import gc

    use_own_bytecode()
    gc.set_threshold(100_000)  # modules are kept: to search them for garbage takes 3 ms of a launch

    # not an exception: Python would drop one that comes during its clean-up
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupted)
    _open_streams()
    main()


def _interrupted(*_):
    os.write(2, b"error: interrupted before anything was started\n")
    os._exit(130)


def _open_streams():
    """Open the standard streams that the caller has closed: other files would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: SIM115


os.environ.pop("PYTHONSAFEPATH", None)  # the scripts and train.py import what is beside them
_check_python()
_forget_working_directory()
