#!/usr/bin/env python3
"""Set up what runs on top of the image, the Python packages first of all: see --help."""

from lib import cli
from lib.cli.set_up import set_up

if __name__ == "__main__":
    cli.main(set_up, "set_up.py")
