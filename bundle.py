#!/usr/bin/env python3
"""Pack, verify or unpack a bundle for an air-gapped machine: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("bundle")


if __name__ == "__main__":
    lib.start(main)
