#!/usr/bin/env python3
"""Say what is wrong with this machine or this configuration, and the fix: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("doctor")


if __name__ == "__main__":
    lib.start(main)
