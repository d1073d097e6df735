"""A directory of wheels for one target: which of its files fit, and its two lists.

Two files name what one stack needs on one architecture: ``<name>.lock``, what is installed, and
``<name>.sha256``, every file, with what repositories need to be built.
"""

import concurrent.futures
import glob
import hashlib
import os
import re
import sys

import resolve_packages
from pip._vendor.packaging import tags, utils

_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")


class Wanted:
    """One package of the wheelhouse; not `installed` if only a build needs it."""

    def __init__(self, pin, line, installed):
        self.name, _, self.version = pin.partition("==")
        if not self.version:
            sys.exit(
                f"cannot download {pin}, a requirement with a URL: download its wheel into a "
                "directory, and add that with --find-links"
            )
        self.line = line
        self.installed = installed
        self.hashes = set(re.findall(r"--hash=sha256:([0-9a-f]+)", line))
        self.key = (utils.canonicalize_name(self.name), utils.Version(self.version))


class Wheelhouse:
    """The directory, as seen by one target; `name` is that of its lists: ``pytorch_arm64``."""

    def __init__(self, folder, name, arch, python, glibc):
        self.folder = folder
        self.name = name
        self.arch = arch
        machine = resolve_packages.MACHINES[arch]
        newest = int(glibc.partition(".")[2] or 28)
        self.platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
        self.platforms += [f"{each}_{machine}" for each in _LEGACY]
        self.own_platform = f"linux_{machine}"  # what is built for one machine alone
        version = tuple(map(int, python.split(".")))
        platforms = [*self.platforms, self.own_platform]
        self._tags = {
            *tags.cpython_tags(version, platforms=platforms),
            *tags.compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        }
        self._digests = {}

    def path(self, file):
        """Return the path of a file in the folder."""
        return os.path.join(self.folder, file)

    def fits(self, file):
        """Return whether the target can use a file, by its name."""
        try:
            return bool(utils.parse_wheel_filename(file)[3] & self._tags)
        except utils.InvalidWheelFilename:
            return False

    def held(self, wanted):
        """Return the file of each package that exists and is undamaged."""
        files = {}
        for file in sorted(os.listdir(self.folder)):
            if self.fits(file):
                name, version = utils.parse_wheel_filename(file)[:2]
                files.setdefault((name, version), []).append(file)
        needed = [file for each in wanted for file in files.get(each.key, ())]
        self._read(needed)
        built = self._recorded()
        return {
            each: file
            for each in wanted
            for file in files.get(each.key, ())
            if self._digests[file] in each.hashes or built.get(file) == self._digests[file]
        }

    def digest(self, file):
        """Return the sha256 of a file, in hexadecimal digits."""
        self._read([file])
        return self._digests[file]

    def _read(self, files):
        missing = [file for file in files if file not in self._digests]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            self._digests.update(zip(missing, pool.map(_sha256, map(self.path, missing))))

    def _recorded(self):
        """Return the checksums of all lists: no index has wheels that were built here."""
        found = {}
        for path in glob.glob(self.path("*.sha256")):
            with open(path, encoding="utf-8") as lines:
                found.update(reversed(line.rstrip("\n").split("  ")) for line in lines)
        return found

    def record_built(self, file):
        """Record a wheel that was built here from its sdist, before all is complete."""
        with open(self.path(f"{self.name}_built.sha256"), "a", encoding="utf-8") as lines:
            lines.write(f"{self.digest(file)}  {file}\n")

    def write_lists(self, held, header):
        """Write both lists, and remove files that only the lists before contained."""
        before = set(self._recorded())
        pins = sorted(
            f"{each.name}=={each.version} --hash=sha256:{self.digest(file)}\n"
            for each, file in held.items()
            if each.installed
        )
        files = sorted({f"{self.digest(file)}  {file}\n" for file in held.values()})
        _write(self.path(f"{self.name}.sha256"), "".join(files))
        _write(self.path(f"{self.name}.lock"), header + "".join(pins))
        built = self.path(f"{self.name}_built.sha256")
        if os.path.exists(built):
            os.remove(built)
        for file in before - set(self._recorded()):
            if os.path.exists(self.path(file)):
                os.remove(self.path(file))


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _write(path, text):
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.partial", path)
