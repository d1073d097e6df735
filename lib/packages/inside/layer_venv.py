"""Let a venv see the packages of an overlay and of the image, below its own.

A program of an overlay, such as torchrun, starts its workers with its own Python: they would not
see what the venv has. So the venv has a program of the same name that starts it with the venv's.
"""

import glob
import os
import shlex
import sys

VERSION = "python{}.{}".format(*sys.version_info)


def layer_image(venv):
    """Let the new venv see what the image's Python, which runs this, sees.

    A venv on top of a virtual environment is one on top of what that is based on: the packages
    between them are named in a file.
    """
    if sys.prefix != sys.base_prefix:
        _name_packages(venv, "~~longship_image.pth", f"{sys.prefix}/lib/{VERSION}/site-packages")


def layer(overlay):
    """Let the venv of this Python see the packages of the overlay, and have its programs."""
    # such files are read in the order of their names: those of the image come last
    packages = f"{overlay}/lib/{VERSION}/site-packages"
    _name_packages(sys.prefix, "~longship_overlay.pth", packages)
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


def _name_packages(venv, name, packages):
    """Name packages in a file that Python reads after the venv's own packages."""
    own = os.path.join(venv, "lib", VERSION, "site-packages")
    with open(os.path.join(own, name), "w", encoding="utf-8") as file:
        file.write(f"import site; site.addsitedir({packages!r})\n")
