"""Let a venv see the packages of an overlay and of the image, below its own.

A program of an overlay, such as torchrun, starts its workers with its own Python: they would not
see what the venv has. So the venv has a program of the same name that starts it with the venv's.
"""

import base64
import csv
import glob
import hashlib
import importlib.metadata
import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor

import resolve_packages
from resolve_packages import plain_name

VERSION = "python{}.{}".format(*sys.version_info)


def layer_image(venv):
    """Let the new venv see what the image's Python, which runs this, sees.

    A venv on top of a virtual environment is one on top of what that is based on: the packages
    between them are named in a file.
    """
    if sys.prefix != sys.base_prefix:
        _name_packages(venv, "~~longship_image.pth", f"{sys.prefix}/lib/{VERSION}/site-packages")


def print_packages():
    """Print the names of the packages that this Python sees."""
    print(*sorted(_found()))


def check(image, *requirements):
    """Print what this Python lacks of the image's packages, and of the files of requirements.

    The exit code is then 3, which is not that of an error of Python's. The requirements can be
    directories of repositories too.
    """
    repositories = list(filter(os.path.isdir, requirements))
    files = [each for each in requirements if each not in repositories]
    own = importlib.metadata.distributions(path=[_packages(sys.prefix)])
    indexed = [each for each in own if not each.read_text("direct_url.json")]
    resolve_packages.check_sources(map(_name, indexed), repositories, files)
    expected = dict.fromkeys(image.split(), "the image")
    for path, line in resolve_packages.required(files):
        name = resolve_packages.required_name(line)
        if name and ";" not in line:  # what is required only elsewhere
            expected[name] = path
    found = _found()
    lost = [f"{name} of {where}" for name, where in expected.items() if name not in found]
    if lost:
        print(*lost, sep="\n")
        sys.exit(3)


def print_damaged():
    """Print the names of this venv's packages of which a file is not as its wheel lists it."""
    listed = {}  # by path: checksums and packages of all that have such a file
    packages = _packages(sys.prefix)
    damaged = set()
    for record in glob.glob(f"{glob.escape(packages)}/*.dist-info/RECORD"):
        name = os.path.basename(os.path.dirname(record)).partition("-")[0]
        with open(record, newline="", encoding="utf-8", errors="replace") as file:
            rows = dict(row[:2] for row in csv.reader(file) if len(row) > 1)
        if os.path.relpath(record, packages) not in rows:  # it has been emptied
            damaged.add(name)
        for path, checksum in rows.items():
            if checksum.startswith("sha256="):
                path = os.path.normpath(os.path.join(packages, path))
                listed.setdefault(path, {})[checksum.rstrip("=")] = name
    with ThreadPoolExecutor() as pool:
        for expected, found in zip(listed.values(), pool.map(_checksum, listed)):
            if found not in expected:
                damaged.update(expected.values())
    print(*sorted(damaged), sep="\n", end="")


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


def _checksum(path):
    """Return the checksum of a file as a RECORD has it; "" if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return f"sha256={base64.urlsafe_b64encode(digest.digest()).decode().rstrip('=')}"


def _found():
    """Return the names of all packages that this Python sees, as installers compare them."""
    return set(map(_name, importlib.metadata.distributions()))


def _name(distribution):
    return plain_name(distribution.metadata["Name"] or "")


def _packages(venv):
    return os.path.join(venv, "lib", VERSION, "site-packages")


def _name_packages(venv, name, packages):
    """Name packages in a file that Python reads after the venv's own packages."""
    with open(os.path.join(_packages(venv), name), "w", encoding="utf-8") as file:
        file.write(f"import site; site.addsitedir({packages!r})\n")
