#!/usr/bin/env python3
"""Say what is wrong with this machine or this configuration, and the fix: see --help."""

import lib


def main():
    """Hand over to the command line."""
    from lib import commands
    from lib.commands.doctor import doctor

    commands.main(doctor, "doctor.py")


if __name__ == "__main__":
    lib.start(main)
