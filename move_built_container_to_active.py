#!/usr/bin/env python3
"""Put the new image in use, or go back to the one before: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands
    from lib.commands.move_built_container_to_active import move_built_container_to_active

    commands.main(move_built_container_to_active, "move_built_container_to_active.py")


if __name__ == "__main__":
    lib.start(main)
