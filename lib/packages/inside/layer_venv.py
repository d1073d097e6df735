"""Let a venv see the packages of an overlay, below its own, and start the overlay's programs.

A program such as torchrun starts its workers with its own Python: from the overlay they would not
see what the venv has.
"""

import glob
import os
import shlex
import sys

_LONGEST = 127  # bytes of a first line, on Linux before 5.1


def layer(overlay):
    """Name the overlay's packages in a file that Python reads after the venv's own packages."""
    version = "python{}.{}".format(*sys.version_info)
    packages = f"{overlay}/lib/{version}/site-packages"
    own = os.path.join(sys.prefix, "lib", version, "site-packages")
    # such files are read in the order of their names: this one last
    with open(os.path.join(own, "~longship_overlay.pth"), "w", encoding="utf-8") as file:
        file.write(f"import site; site.addsitedir({packages!r})\n")
    for path in sorted(glob.glob(glob.escape(f"{overlay}/bin") + "/*")):
        if os.path.isfile(path):
            _copy_program(path, os.path.join(sys.prefix, "bin", os.path.basename(path)))


def _copy_program(path, own):
    """Write a Python program of the overlay with this Python in its first line."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        python, rest = split_program(file.read())
    if os.path.dirname(python) == os.path.dirname(path):
        with open(own, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(first_line(sys.executable) + rest)
        os.chmod(own, 0o755)


def first_line(python):
    """Return how a script names its Python; sh starts a path that a first line cannot contain."""
    if len(os.fsencode(python)) < _LONGEST - 2 and not any(each.isspace() for each in python):
        return f"#!{python}\n"
    quoted = python.replace("'", "'\"'\"'")
    return f"#!/bin/sh\n'''exec' '{quoted}' \"$0\" \"$@\"\n' '''\n"


def split_program(text):
    """Return the Python that a script names, and the lines after that; "" if it names none."""
    first, _, rest = text.partition("\n")
    if first != "#!/bin/sh":
        return first[len("#!") :] if first.startswith("#!") else "", rest
    start, found, rest = rest.partition("' '''\n")
    if not (found and start.startswith("'''exec' ")):
        return "", rest
    return shlex.split(start.partition("\n")[0])[1], rest
