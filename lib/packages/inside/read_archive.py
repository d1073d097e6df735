"""Describe the Python of an image, from a docker archive of the image.

The layers of the archive are tar files. No program of the image is run, so it can be for another
architecture. Runs on the host.

Usage: python read_archive.py DIR ARCHIVE
"""

import json
import posixpath
import re
import sys
import tarfile

import describe_image
import program

_METADATA = re.compile(r"(.+)/[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_PYTHON = re.compile(r"(?:.*/)?bin/python3(?:\.\d+)?")
_LIBC = re.compile(r"(?:.*/)?libc(?:-2\.\d+)?\.so(?:\.6)?")
_GLIBC_VERSION = re.compile(rb"GNU C Library [^\n]*release version (\d+\.\d+)")


class Image:
    """The relevant files of an image, with all layers merged.

    `links` has the target of each Python in a ``bin``, "" for a file; `glibc` is "" if not found.
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
                self._add(files)

    def _add(self, layer):
        for member in layer:
            path = posixpath.normpath(member.name).lstrip("/")
            folder, name = posixpath.split(path)
            if name.startswith(".wh."):
                self._remove(folder if name == ".wh..wh..opq" else f"{folder}/{name[4:]}")
            elif _PYTHON.fullmatch(path):
                self.links[path] = member.linkname if member.issym() else ""
            elif (member.isfile() or member.islnk()) and _METADATA.fullmatch(path):
                text = layer.extractfile(member).read()
                self.metadata[path] = text.decode("utf-8", "replace")
            elif member.isfile() and _LIBC.fullmatch(path):
                version = _GLIBC_VERSION.search(layer.extractfile(member).read())
                self.glibc = version[1].decode() if version else self.glibc

    def _remove(self, path):
        for found in (self.links, self.metadata):
            for each in [each for each in found if each == path or each.startswith(f"{path}/")]:
                del found[each]

    def python(self):
        """Return prefix and version of the first python3 on PATH, or None."""
        for folder in self.search:
            path = f"{folder}/python3"
            for _ in range(10):
                target = self.links.get(path)
                if not target:
                    break
                path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), target))
                path = path.lstrip("/")
            prefix, _, version = path.rpartition("/bin/python")
            if path in self.links and "." in version:
                return prefix, version
        return None

    def packages(self, prefix, version):
        """Yield the metadata of the packages of this Python, in the order of its search path."""
        folders = [f"{prefix}/lib/python{version}/site-packages"]
        if prefix == "usr":  # Debian and Ubuntu
            folders = [
                f"usr/local/lib/python{version}/dist-packages",
                "usr/lib/python3/dist-packages",
                *folders,
            ]
        for folder in folders:
            for path, text in sorted(self.metadata.items()):
                if _METADATA.fullmatch(path)[1] == folder:
                    yield text


def main(folder, archive):
    """Describe the first python3 on the image's PATH."""
    try:
        with tarfile.open(archive) as opened:
            image = Image(opened)
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError) as error:
        sys.exit(
            f"not a docker archive: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        )
    found = image.python()
    if not found:
        sys.exit("python3 not found on the PATH of the image")
    describe_image.write_description(folder, found[1], image.glibc, image.packages(*found))


if __name__ == "__main__":
    program.start(main)
