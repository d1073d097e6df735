#!/usr/bin/env python3
"""Make the image that everything runs in: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands
    from lib.commands.build_container import build_container

    commands.main(build_container, "build_container.py")


if __name__ == "__main__":
    lib.start(main)
