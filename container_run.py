#!/usr/bin/env python3
"""Run a command, or an interactive shell, inside the environment: see --help."""

import os
import sys

import lib
from lib import errors, execute, remembered


def main():
    """Run the launch of last time, if it is still right; else compute it."""
    if not sys.argv[1:2] or not sys.argv[1].startswith("-"):
        script = remembered.recall(os.environ)
        if script is not None:
            try:
                execute.become(script, "container_run.py", sys.argv[1:], os.environ)
            except errors.LongshipError as error:
                error.tell()
                sys.exit(1)
    from lib import cli
    from lib.cli.container_run import container_run

    cli.main(container_run, "container_run.py")


if __name__ == "__main__":
    lib.start(main)
