"""Let a venv see the packages of an overlay, below its own, and start the overlay's programs.

A program such as torchrun starts its workers with its own Python: from the overlay they would not
see what the venv has. So the venv has a program of the same name that starts it with the venv's.
"""

import glob
import os
import shlex
import sys


def layer(overlay):
    """Name the overlay's packages in a file that Python reads after the venv's own packages."""
    version = "python{}.{}".format(*sys.version_info)
    packages = f"{overlay}/lib/{version}/site-packages"
    own = os.path.join(sys.prefix, "lib", version, "site-packages")
    # such files are read in the order of their names: this one last
    with open(os.path.join(own, "~longship_overlay.pth"), "w", encoding="utf-8") as file:
        file.write(f"import site; site.addsitedir({packages!r})\n")
    # the second is how installers name a Python whose path a first line cannot contain
    beginnings = (os.fsencode(f"#!{overlay}/bin/python"), b"#!/bin/sh\n'''exec' ")
    for path in filter(os.path.isfile, glob.glob(glob.escape(f"{overlay}/bin") + "/*")):
        with open(path, "rb") as file:
            is_program = file.read(max(map(len, beginnings))).startswith(beginnings)
        if is_program:
            own = os.path.join(sys.prefix, "bin", os.path.basename(path))
            text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(path)} "$@"\n'
            with open(own, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            os.chmod(own, 0o755)
