"""The Python core of Longship: it computes bash scripts, bash does the work.

Importing it checks the Python version. So this file, and the entry scripts that import it, must
be readable by every Python 3 (LUMI's login nodes have 3.6), or the user meets a SyntaxError where
this file has a sentence to say.
"""

import os
import sys

OLDEST_PYTHON = (3, 9)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# In a bundle nothing is written: it would no longer be what its checksums say.
if os.path.exists(os.path.join(os.path.dirname(ROOT), "SHA256SUMS")):
    sys.dont_write_bytecode = True
    try:  # Python has written this file's own before it ran it
        os.unlink(__spec__.cached)
        os.rmdir(os.path.dirname(__spec__.cached))
    except OSError:
        pass


def _check_python():
    """Stop with a sentence, or start again with `.venv`'s Python, where this one is too old."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    own = os.path.join(ROOT, ".venv", "bin", "python")
    if os.access(own, os.X_OK) and os.path.join(ROOT, ".venv") != sys.prefix:
        os.execv(own, [own] + sys.argv)
    wanted, found = (".".join(map(str, each[:2])) for each in (OLDEST_PYTHON, sys.version_info))
    sys.stderr.write(
        f"error: Longship needs Python {wanted} or newer; {sys.executable} is {found}\n"
        f"hint: {_newer_python()}\n"
    )
    sys.exit(1)


def _newer_python():
    """Say how the site at hand gives a newer Python, without a TOML parser to read its facts."""
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


def find_packages():
    """Put the packages of `.venv` on the path, those made for this Python first.

    So `python3 container_run.py ...` works on a login node without activating anything.
    """
    import glob

    library = os.path.join(glob.escape(ROOT), ".venv", "lib")
    same = "python{}.{}".format(*sys.version_info)
    found = glob.glob(os.path.join(library, "*", "site-packages"))
    for folder in sorted(found, key=lambda path: path.split(os.sep)[-2] == same):
        if folder not in sys.path:
            sys.path.insert(1, folder)


def start(main):
    """Run an entry script; Ctrl-C is told in a line, also while modules are still read."""
    import _signal  # `signal` takes a millisecond to be read

    # no exception: Python drops one that comes while it cleans up, and goes on
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupted)
    _open_streams()
    main()


def _interrupted(*_):
    os.write(2, b"error: interrupted before anything was started\n")
    os._exit(130)


def _open_streams():
    """Open the standard streams that the caller has closed: files would take their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the first number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: SIM115


_check_python()
