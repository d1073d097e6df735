#!/usr/bin/env python3
"""Pack, verify or unpack a bundle for an air-gapped machine: see --help."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # PYTHONSAFEPATH leaves it out
sys.pycache_prefix = os.devnull  # others can have written bytecode: lib finds a place for it
import lib  # noqa: E402


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("bundle")


if __name__ == "__main__":
    lib.start(main)
