"""Describe a Python: its version, its C library, and its packages.

Runs inside an image; read_archive.py describes an image that cannot run on this machine. For each
package it writes a wheel with nothing but the metadata: so a resolver knows which packages exist
already, and what they require.

Usage: python describe_image.py DIR
"""

import importlib.metadata
import os
import platform
import re
import sys
import zipfile

import program

# a venv on top of the image has these of its own
NOT_OF_THE_IMAGE = {"pip"}


def normalised(name):
    """Return a package's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write_description(folder, python, glibc, metadata):
    """Write ``python``, ``glibc``, ``packages.txt`` and ``wheels/``, which describe the target.

    `metadata` gives the METADATA of each package; the first one of a name counts, as in an import.
    """
    wheels = os.path.join(folder, "wheels")
    os.makedirs(wheels, exist_ok=True)
    found = {}
    for text in metadata:
        header = text.replace("\r\n", "\n").partition("\n\n")[0]
        # a version that the name of a wheel cannot contain is in no index either
        fields = dict(re.findall(r"^(Name|Version): *([\w.+!-]+) *$", header, re.MULTILINE))
        name = normalised(fields.get("Name", ""))
        usable = len(fields) == 2 and "-" not in fields["Version"]
        if usable and name not in NOT_OF_THE_IMAGE and name not in found:
            found[name] = fields["Version"]
            _write_wheel(wheels, name.replace("-", "_"), fields["Version"], header)
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    for name, text in (("packages.txt", pins), ("glibc", glibc), ("python", python)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def _write_wheel(folder, name, version, header):
    info = f"{name}-{version}.dist-info"
    path = os.path.join(folder, f"{name}-{version}-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", header + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def main(folder):
    """Describe the Python that runs this script."""
    own = [
        each.read_text("METADATA") or each.read_text("PKG-INFO") or ""
        for each in importlib.metadata.distributions()
    ]
    python = "{}.{}".format(*sys.version_info)
    write_description(folder, python, platform.libc_ver()[1], own)


if __name__ == "__main__":
    program.start(main)
