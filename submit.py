#!/usr/bin/env python3
"""Check, submit and manage jobs: see --help."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # PYTHONSAFEPATH leaves it out
import lib  # noqa: E402


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("submit")


if __name__ == "__main__":
    lib.start(main)
