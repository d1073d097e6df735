"""The module index of an overlay: Python finds modules in one file, and not by many requests.

Each request to a mounted file goes to another process, and a thousand modules are 8,000 requests.
The index has what Python would find in each directory, and the compiled modules, in the order of
their names. It is made without importing any, so the same packages give the same bytes.

A copy of this file in the overlay is started by a ``.pth`` file. It is a path hook: Python searches
`sys.path` and each `__path__` in their order, as always, and only directories of the overlay answer
from the index. Modules are loaded by Python's own loader, which gets the compiled file from it.
"""

import marshal
import mmap
import os
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)

NAME = "longship_module_index"  # of the copy, the index and the .pth file
# The index: the compiled files; a table for each directory; Python's version with the offsets of
# the tables; the offset of that. Later versions of marshal write bytes that depend on how often an
# object is referred to.
MARSHAL = 2
NOT_COMPARED = b"\1\0\0\0"  # flags of bytecode with a checksum of its source, which is not compared
LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
SOURCE, NAMESPACE = 1, 3  # kinds of modules; the others are the numbers of their loaders too


class IndexedLoader(SourceFileLoader):
    """Python's own loader, with the compiled file of one module from the index."""

    content = b""  # all compiled files
    compiled = ("", 0, 0)  # path, offset and size of this one

    def path_stats(self, path):
        """Return time and size of a file; the compiled file can contain those of the source."""
        header = self.get_data(self.compiled[0])[4:16] if path == self.path else b""
        if not header or any(header[:4]):
            return super().path_stats(path)
        mtime, size = (int.from_bytes(each, "little") for each in (header[4:8], header[8:]))
        return {"mtime": float(mtime), "size": size}

    def get_data(self, path):
        """Return the content of a file."""
        file, offset, size = self.compiled
        if path != file or not self.content:
            return super().get_data(path)
        return self.content[offset : offset + size]


class IndexedFinder(FileFinder):
    """The modules of one directory, as Python's own finder has found them."""

    def __init__(self, path, table):
        super().__init__(path, *LOADERS)
        self.table = table

    def find_spec(self, fullname, target=None):
        """Return the spec of a module, or None if the directory does not contain it."""
        name = fullname.rpartition(".")[2]
        if name not in self.table:
            return None
        kind, file, is_package, compiled, offset, size = self.table[name]
        path = f"{self.path}/{file}"
        if kind == NAMESPACE:
            spec = ModuleSpec(fullname, None)
            spec.submodule_search_locations = [path]
            return spec
        if compiled:
            loader = IndexedLoader(fullname, path)
            loader.compiled = (f"{self.path}/{compiled}", offset, size)
        else:
            loader = LOADERS[kind][0](fullname, path)
        spec = ModuleSpec(fullname, loader, origin=path)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [f"{self.path}/{name}"]
        return spec


def start():
    """Use the index of this directory, unless Python could find something else in it."""
    packages = os.path.dirname(__file__)
    other_files = sys.flags.optimize or sys.pycache_prefix
    if other_files or os.environ.get("LONGSHIP_MODULE_INDEX") == "0" or can_change(packages):
        return
    try:
        with open(f"{packages}/{NAME}.bin", "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: it is empty
        return
    view = memoryview(content)
    version, tables = marshal.loads(view[int.from_bytes(view[-8:], "little") :])
    if version != python_version():
        return
    IndexedLoader.content = content

    def hook(path):
        directory = path[len(packages) :]
        if not path.startswith(packages) or directory not in tables:
            raise ImportError(path)
        return IndexedFinder(path, marshal.loads(view[tables[directory] :]))

    sys.path_hooks.insert(0, hook)
    for path in [each for each in sys.path_importer_cache if each.startswith(packages)]:
        del sys.path_importer_cache[path]


def can_change(directory):
    """Return whether a directory is writable, or something is mounted below it.

    The latter are files of `container.patched_files`.
    """
    below = f" {os.path.realpath(directory)}/"
    try:
        if not os.statvfs(directory).f_flag & os.ST_RDONLY:
            return True
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            return any(below in each for each in mounts)
    except OSError:
        return True


def python_version():
    """Return the Python that finds these modules and takes these compiled files."""
    return [sys.implementation.cache_tag, sys.hexversion]


def write(packages):
    """Write the index of a directory with compiled packages, and the file that starts it."""
    tables = {}
    with open(f"{packages}/{NAME}.bin", "wb") as index:
        write_compiled(packages, "", index, tables)
        offsets = {}
        for directory, table in tables.items():
            offsets[directory] = index.tell()
            index.write(marshal.dumps(table, MARSHAL))
        end = index.tell()
        index.write(marshal.dumps((python_version(), offsets), MARSHAL))
        index.write(end.to_bytes(8, "little"))
    with open(f"{packages}/_{NAME}.pth", "w", encoding="utf-8") as file:
        file.write(f"import {NAME}; {NAME}.start()\n")


def write_compiled(packages, directory, index, tables):
    """Write the compiled files of a directory and those below; add their tables."""
    here = packages + directory
    finder = FileFinder(here, *LOADERS)
    table = tables[directory] = {}
    for name in sorted({each.partition(".")[0] for each in os.listdir(here)} - {""}):
        spec = finder.find_spec(name)
        if spec is None:
            continue
        if spec.loader is None:
            kind, file, compiled = NAMESPACE, name, ("", 0, 0)
        else:
            kind = [loader for loader, _ in LOADERS].index(type(spec.loader))
            file = os.path.relpath(spec.origin, here)
            # a package's file is also a module of this name, which nobody imports
            used = kind == SOURCE and name != "__init__"
            compiled = copy_compiled(spec.cached, here, index) if used else ("", 0, 0)
        is_package = spec.submodule_search_locations is not None
        table[name] = (kind, file, is_package, *compiled)
        # others are left to Python's own finder
        if is_package and name != "__pycache__" and not os.path.islink(f"{here}/{name}"):
            write_compiled(packages, f"{directory}/{name}", index, tables)


def copy_compiled(path, directory, index):
    """Copy a compiled file; return path, offset and size, empty if there is none."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:  # a template that is not Python
        return "", 0, 0
    # nothing can change the source, see can_change: Python need not compare it
    index.write(content[:4] + (NOT_COMPARED if any(content[4:8]) else content[4:8]) + content[8:])
    return os.path.relpath(path, directory), index.tell() - len(content), len(content)
