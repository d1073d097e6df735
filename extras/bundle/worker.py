"""The program that packs, verifies and unpacks bundles, with Python's standard library alone.

The script of bundle.py runs the one of this repository, unpack.sh that of the bundle.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.realpath(f"{__file__}/../../.."))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from extras.bundle import pack, unpack  # noqa: E402
from lib.repositories.git import READ_ABOVE, GitError  # noqa: E402
from lib.script.errors import LongshipError, write_error  # noqa: E402
from lib.script.worker import Steps  # noqa: E402

_MODES = {  # with the number of steps
    "pack": (pack.pack, 3),
    "verify": (unpack.verify, 1),
    "unpack-repository": (unpack.unpack_repository, 3),
    "unpack-offline": (unpack.unpack_offline, 1),
}


def main() -> None:
    """Do what the first argument says; an error is two lines and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=list(_MODES))
    parser.add_argument("bundle")
    parser.add_argument("directory", nargs="?", help="this repository, or where to unpack to")
    parser.add_argument("--no-history", action="store_true")
    for name in ("resume", "offline", "work"):
        parser.add_argument(f"--{name}", default="")
    for name, count in (("leave-out", None), ("allow", None), ("named", None), ("need", 3)):
        parser.add_argument(f"--{name}", action="append", default=[], nargs=count)
    options = parser.parse_args()
    function, steps = _MODES[options.mode]
    options.step = Steps(f"1/{steps}", options.resume)
    try:
        function(options)
    except (LongshipError, GitError) as error:
        LongshipError(str(error), getattr(error, "hint", READ_ABOVE)).print()
        sys.exit(1)
    except OSError as error:
        path = str(error.filename2 or error.filename or options.bundle)
        hint = "check its permissions (ls -ld), or name a directory that you can write to"
        write_error(os.path.dirname(path), f"cannot read or write {path}", hint, error).print()
        sys.exit(1)


if __name__ == "__main__":
    main()
