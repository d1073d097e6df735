"""The program that packs, verifies and unpacks bundles, with Python's standard library alone.

The script of bundle.py runs the one of this repository, unpack.sh that of the bundle.
"""

import argparse
import os
import sys

sys.path[0] = os.path.realpath(f"{__file__}/../../..")

from extras.bundle import pack, unpack  # noqa: E402
from lib.script.errors import LongshipError, write_error  # noqa: E402
from lib.script.worker import Steps  # noqa: E402

_MODES = {
    "check": pack.check,
    "pack": pack.pack,
    "verify": unpack.verify,
    "unpack-repository": unpack.unpack_repository,
    "unpack-offline": unpack.unpack_offline,
}


def main() -> None:
    """Do what the first argument says; an error is two lines and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=list(_MODES))
    parser.add_argument("bundle")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--step", default="1/1")
    parser.add_argument("--no-history", action="store_true")
    for name in ("resume", "repository", "offline", "work"):
        parser.add_argument(f"--{name}", default="")
    for name in ("leave-out", "allow"):
        parser.add_argument(f"--{name}", action="append", default=[])
    for name, count in (("archive", 2), ("need", 3)):
        parser.add_argument(f"--{name}", action="append", default=[], nargs=count)
    options = parser.parse_args()
    options.step = Steps(options.step, options.resume)
    try:
        _MODES[options.mode](options)
    except LongshipError as error:
        error.print()
        sys.exit(1)
    except OSError as error:
        path = str(error.filename2 or error.filename or options.bundle)
        hint = "check its permissions (ls -ld), or name a directory that you can write to"
        directory = os.path.dirname(path)
        write_error(directory, f"cannot read or write {path}", hint, error).print()
        sys.exit(1)


if __name__ == "__main__":
    main()
