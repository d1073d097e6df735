"""The worker that an emitted script starts for external repositories.

  python3 -I -X utf8 worker.py [OPTION...] ACTION [--name=NAME]

It needs the standard library alone. Without --name it starts itself for each repository at once: an
update changes the umask, signals and environment of its process. The script holds the lock.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from shlex import quote

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from lib.repositories import clone, git, inspection, update  # noqa: E402
from lib.repositories.repository import Configured  # noqa: E402
from lib.script.errors import LongshipError, print_messages, write_error  # noqa: E402
from lib.script.worker import Steps, in_parallel  # noqa: E402

_ACTIONS = {
    "install": update.install,
    "update": update.update,
    "continue": update.resume,
    "abort": update.abort,
    "save-patches": update.save_patches,
    "check": inspection.check,
}
_STEPS = {"install": "Cloning", "update": "Updating", "download": "Fetching"}
_SET_UP = "python3 set_up.py"
_SEE_OUTPUT = "read the output above, then run the command again"
_MOST_AT_ONCE = 8  # login nodes are shared


def main() -> None:
    """Run an action for one repository, or for all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repositories", type=Path, help="directory of all repositories")
    parser.add_argument("--bundles", type=Path, help="bundles to use instead of the servers")
    parser.add_argument("--into", type=Path, help="download: directory of the bundles")
    parser.add_argument("--mirrors", type=Path, help="download: directory of the mirrors")
    parser.add_argument("--typed", action="append", default=[], help="typed option, for hints")
    parser.add_argument("--configured", nargs=5, action="append", help="a repository")
    parser.add_argument("--resume", default="", help="command to resume with")
    parser.add_argument("action", choices=[*_ACTIONS, "download"])
    parser.add_argument("--name", help="the repository to work on")
    given = parser.parse_args()
    configured = {
        name: Configured(given.repositories, given.bundles, name, url, ref, upstream, Path(patches))
        for name, url, ref, upstream, patches in given.configured
    }
    git.prepare_environment()
    if not given.name:
        _run_all(given, configured)
        return
    try:
        if given.action == "download":
            clone.download(configured[given.name], given.into, given.mirrors)
        else:
            _ACTIONS[given.action](configured[given.name])
    except (OSError, git.GitError) as error:
        git.show(str(error))
        message = f"{given.name}: stopped unexpectedly"
        raise write_error(given.repositories, message, _SEE_OUTPUT) from error


def _run_all(given: argparse.Namespace, configured: dict[str, Configured]) -> None:
    """Run an action for all repositories at once; what each prints is shown in one piece."""
    step, names = Steps("1/1", given.resume), list(configured)
    typed = " ".join([_SET_UP, *map(quote, given.typed)])
    named = [each for each in names if given.action != "install" or not configured[each].exists()]
    if given.action in _STEPS and named:
        step(f"{_STEPS[given.action]} {' '.join(named)}")
    if given.action in ("continue", "abort"):
        names = [name for name, each in configured.items() if update.is_in_update(each)]
        if not names:
            message = f"no update in progress in {given.repositories}"
            raise LongshipError(message, f"to start one, run: {typed} update")

    def run(name: str) -> subprocess.CompletedProcess[bytes]:
        isolated = ["-I"] * sys.flags.isolated  # as this one was started
        command = [sys.executable, *isolated, "-X", "utf8", *sys.argv, f"--name={name}"]
        pipe = subprocess.PIPE
        return subprocess.run(  # it holds the lock as long as it has its file open
            command, stdout=pipe, stderr=subprocess.STDOUT, close_fds=False, check=False
        )

    failed = []
    for name, result in zip(names, in_parallel(run, names, _MOST_AT_ONCE, "done")):
        done = result.result()
        lines = os.fsdecode(done.stdout).rstrip("\n").split("\n") if done.stdout else []
        for line in lines:
            kind, _, text = line.partition(": ")
            if kind in ("error", "warning", "hint", "note"):
                # in its colour on a terminal
                print_messages(**{kind: text.replace(_SET_UP, typed)})
            else:
                git.show(line)
        if done.returncode:
            failed.append(name)
            if not lines or not lines[-1].startswith("hint: "):
                print_messages(error=f"{name}: stopped unexpectedly", hint=_SEE_OUTPUT)
    if failed:
        if len(failed) < len(configured):
            git.note(f"failed: {' '.join(failed)}; the other repositories are done")
        sys.exit(1)
    if given.action == "save-patches" and not os.environ.get("LONGSHIP_QUICKSTART"):
        print_messages(next="git add patches stacks && git commit")


if __name__ == "__main__":
    try:
        main()
    except LongshipError as error:
        error.print()
        sys.exit(1)
