#!/usr/bin/env python3
"""Check a job, submit it, and look after it: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands

    commands.main("submit")


if __name__ == "__main__":
    lib.start(main)
