"""Describe a Python: its version, its C library, and its packages.

For each package a wheel with nothing but the metadata is written: so a resolver knows which
packages exist already, and what they require.
"""

import importlib.metadata
import json
import os
import platform
import posixpath
import re
import sys
import tarfile
import zipfile

# a venv on top of the image has these of its own
NOT_OF_THE_IMAGE = {"pip"}
_METADATA = re.compile(r"(.+)/[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_PYTHON = re.compile(r"(?:.*/)?bin/python3(?:\.\d+)?")
_LIBC = re.compile(r"(?:.*/)?libc(?:-2\.\d+)?\.so(?:\.6)?")
_GLIBC_VERSION = re.compile(rb"GNU C Library [^\n]*release version (\d+\.\d+)")


def write_description(directory, python, glibc, metadata=()):
    """Write ``python``, ``glibc``, ``packages.txt`` and ``wheels/``, which describe the target.

    `metadata` gives the METADATA of each package; the first one of a name counts, as in an import.
    """
    os.makedirs(os.path.join(directory, "wheels"), exist_ok=True)
    found = {}
    for text in metadata:
        header = text.replace("\r\n", "\n").partition("\n\n")[0]
        # a version that the name of a wheel cannot contain is in no index either
        fields = dict(re.findall(r"^(Name|Version): *([\w.+!-]+) *$", header, re.MULTILINE))
        name, version = fields.get("Name", ""), fields.get("Version", "-")
        name = re.sub(r"[-_.]+", "-", name).lower()  # as installers compare it
        if name and "-" not in version and name not in NOT_OF_THE_IMAGE and name not in found:
            found[name] = version
            stem = os.path.join(directory, "wheels", f"{name.replace('-', '_')}-{version}")
            with zipfile.ZipFile(f"{stem}-py3-none-any.whl", "w") as wheel:
                info = f"{os.path.basename(stem)}.dist-info"
                wheel.writestr(f"{info}/METADATA", header + "\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    for name, text in (("packages.txt", pins), ("glibc", glibc), ("python", python)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(text)


def describe_own(directory, base):
    """Describe the Python that runs this; a venv shares no packages of a host."""
    own = [
        each.read_text("METADATA") or each.read_text("PKG-INFO") or ""
        for each in (importlib.metadata.distributions() if base != "host" else ())
    ]
    python = "{}.{}".format(*sys.version_info)
    write_description(directory, python, platform.libc_ver()[1], own)


def describe_archive(directory, archive):
    """Describe the first python3 on the PATH of an image, from a docker archive of the image.

    No program of the image is run, so it can be for another architecture.
    """
    try:
        with tarfile.open(archive) as opened:
            image = Image(opened)
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError) as error:
        reason = str(error).partition("\n")[0]
        sys.exit(f"not a docker archive: {type(error).__name__}: {reason}")
    found = image.python()
    if not found:
        sys.exit("python3 not found on the PATH of the image")
    write_description(directory, found[1], image.glibc, image.packages(*found))


class Image:
    """The relevant files of an image, with all layers merged.

    `links` has the target of each Python in a ``bin``, "" for a file, and the marks of virtual
    environments; `glibc` is "" if not found.
    """

    def __init__(self, archive):
        manifest = json.load(archive.extractfile("manifest.json"))[0]
        config = json.load(archive.extractfile(manifest["Config"]))
        variables = config.get("config", {}).get("Env") or []
        path = dict(each.partition("=")[::2] for each in variables).get("PATH", "")
        self.search = [each.strip("/") for each in (path or "/usr/local/bin:/usr/bin").split(":")]
        self.links = {}
        self.metadata = {}
        self.glibc = ""
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                for member in files:
                    self._add(files, member)

    def _add(self, layer, member):
        path = posixpath.normpath(member.name).lstrip("/")
        directory, name = posixpath.split(path)
        if name.startswith(".wh."):
            gone = directory if name == ".wh..wh..opq" else f"{directory}/{name[4:]}"
            for found in (self.links, self.metadata):
                for each in list(found):
                    if f"{each}/".startswith(f"{gone}/"):
                        del found[each]
        elif _PYTHON.fullmatch(path) or name == "pyvenv.cfg":
            self.links[path] = member.linkname if member.issym() else ""
        elif (member.isfile() or member.islnk()) and _METADATA.fullmatch(path):
            self.metadata[path] = layer.extractfile(member).read().decode("utf-8", "replace")
        elif member.isfile() and _LIBC.fullmatch(path):
            version = _GLIBC_VERSION.search(layer.extractfile(member).read())
            self.glibc = version[1].decode() if version else self.glibc

    def python(self):
        """Return prefix and version of the first python3 on PATH, or None."""
        for directory in self.search:
            path = f"{directory}/python3"
            for _ in range(10):
                target = self.links.get(path)
                if not target:
                    break
                path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), target))
                path = path.lstrip("/")
            prefix, _, version = path.rpartition("/bin/python")
            if path in self.links and "." in version:
                above = posixpath.dirname(directory)
                return (above if f"{above}/pyvenv.cfg" in self.links else prefix), version
        return None

    def packages(self, prefix, version):
        """Yield the metadata of the packages of this Python, in the order of its search path."""
        directories = [f"{prefix}/lib/python{version}/site-packages"]
        if prefix == "usr":  # Debian and Ubuntu
            local = f"usr/local/lib/python{version}/dist-packages"
            directories = [local, "usr/lib/python3/dist-packages", *directories]
        for directory in directories:
            for path, text in sorted(self.metadata.items()):
                if _METADATA.fullmatch(path)[1] == directory:
                    yield text
