#!/usr/bin/env python3
"""Check a job, submit it, and look after it: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands
    from lib.commands.submit import submit

    commands.main(submit, "submit.py")


if __name__ == "__main__":
    lib.start(main)
