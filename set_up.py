#!/usr/bin/env python3
"""Set up what runs on top of the image, the Python packages first of all: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("set_up")


if __name__ == "__main__":
    lib.start(main)
