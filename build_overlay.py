#!/usr/bin/env python3
"""Pack the Python packages into one file: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("build_overlay")


if __name__ == "__main__":
    lib.start(main)
