#!/usr/bin/env python3
"""Make the image that everything runs in: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("build_container")


if __name__ == "__main__":
    lib.start(main)
