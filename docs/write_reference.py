#!/usr/bin/env python3
"""Write the pages of docs/reference/ from the code: python3 docs/write_reference.py [DIR].

Run it after a change of an option, a key or a variable, and read the diff: a test compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from lib import find_packages  # noqa: E402

find_packages()
from writers import (  # noqa: E402
    commands,
    configuration,
    environment,
    exit_codes,
    extras,
    files,
    sites,
    stacks,
)

PAGES = {
    "commands": commands.commands_page,
    "configuration": configuration.configuration_page,
    "machines": sites.machines_page,
    "site_toml": sites.site_page,
    "stack_toml": stacks.stack_page,
    "files": files.files_page,
    "environment": environment.environment_page,
    "exit_codes": exit_codes.exit_codes_page,
    "extras": extras.extras_page,
}


def main() -> None:
    """Write all pages."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs/reference"
    folder.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (folder / f"{name}.md").write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
