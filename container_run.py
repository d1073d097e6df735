#!/usr/bin/env python3
"""Run a command, or an interactive shell, inside the environment: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands
    from lib.commands.container_run import container_run

    commands.main(container_run, "container_run.py")


if __name__ == "__main__":
    lib.start(main)
