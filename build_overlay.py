#!/usr/bin/env python3
"""Pack the Python packages into one file: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands
    from lib.commands.build_overlay import build_overlay

    commands.main(build_overlay, "build_overlay.py")


if __name__ == "__main__":
    lib.start(main)
