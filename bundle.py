#!/usr/bin/env python3
"""Pack, verify and unpack one folder with all that a machine without network needs: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import cli
    from lib.cli.bundle import bundle

    cli.main(bundle, "bundle.py")


if __name__ == "__main__":
    lib.start(main)
