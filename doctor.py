#!/usr/bin/env python3
"""Say what is wrong with this machine or this configuration, and the fix: see --help."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # PYTHONSAFEPATH leaves it out
sys.pycache_prefix = os.devnull  # others can have written bytecode: lib finds a place for it
import lib  # noqa: E402


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("doctor")


if __name__ == "__main__":
    lib.start(main)
