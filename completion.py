#!/usr/bin/env python3
"""Let TAB complete these scripts in bash, zsh and fish: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("completion")


if __name__ == "__main__":
    lib.start(main)
