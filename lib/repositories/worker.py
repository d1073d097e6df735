"""The worker that an emitted script starts for each external repository.

  python3 -X utf8 worker.py [OPTION...] ACTION [NAME]

It needs the standard library alone. The script holds the lock of all repositories around it.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from lib.repositories import bundles, check, git, update  # noqa: E402
from lib.repositories.replay import ConflictError  # noqa: E402
from lib.repositories.repository import Configured  # noqa: E402
from lib.script.errors import LongshipError  # noqa: E402

_ACTIONS = {
    "install": update.install,
    "update": update.update,
    "continue": update.resume,
    "abort": update.abort,
    "save-patches": update.save_patches,
    "check": check.check,
}


def main() -> None:
    """Run an action for one repository, or list those that are being updated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repositories", type=Path, help="directory of all repositories")
    parser.add_argument("--saved", type=Path, help="directory of changes before updates")
    parser.add_argument("--bundles", type=Path, help="bundles to use instead of the servers")
    parser.add_argument("--into", type=Path, help="download: directory of the bundles")
    parser.add_argument("--mirrors", type=Path, help="download: directory of the mirrors")
    parser.add_argument("--configured", nargs=5, action="append", help="a repository")
    parser.add_argument("action", choices=[*_ACTIONS, "download", "list-updates"])
    parser.add_argument("name", nargs="?")
    given = parser.parse_args()
    configured = {
        name: Configured(
            given.repositories, given.saved, given.bundles, name, url, ref, upstream, Path(patches)
        )
        for name, url, ref, upstream, patches in given.configured
    }
    git.prepare_environment()
    try:
        if given.action == "list-updates":
            print(*(name for name, each in configured.items() if update.is_in_update(each)))
        elif given.action == "download":
            bundles.download(configured[given.name], given.into, given.mirrors)
        else:
            _ACTIONS[given.action](configured[given.name])
    except (OSError, git.GitError, ConflictError) as error:
        git.show(str(error))
        hint = "read the output above, then run the command again"
        git.stop_writing(given.repositories, f"{given.name}: stopped unexpectedly", hint)


if __name__ == "__main__":
    try:
        main()
    except LongshipError as error:
        error.print()
        sys.exit(1)
