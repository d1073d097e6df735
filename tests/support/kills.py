"""Scripts that are killed before each of their commands in turn, functions and subshells included.

Bash's DEBUG trap counts the commands and kills the script and the whole process group at the chosen
one. Nothing is timed.
"""

import os
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from support import processes

KILL = """
longship_kill() {{
  case ${{FUNCNAME[1]:-}} in
    {reading}) ;; # they only read
    *) if ((++longship_at == {number})); then kill -KILL $$ 0; fi ;;
  esac
}}
longship_at=0
set -o functrace
trap longship_kill DEBUG
"""
# Some of the points at once, and all of them at night.
AT_SOME_POINTS = pytest.mark.parametrize(
    "every", [17, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
KILLER = str(Path(__file__).resolve().parents[1] / "stand_ins/killed_worker")
START = "set -euo pipefail\n"
MOST = 5000  # commands that a script can have
READING = (
    "record_value | image_is_stored | image_reference | engine_tag_in | sif_check | host_arch"
    " | image_fingerprint | version_name | store_active | json_text | program_version"
    " | script_text | host_name | process_start"
)


class Points:
    """Kills a clone's script at each of its commands, from the same state each time."""

    def __init__(self, clone, script, *arguments, link=True):
        self.clone = clone
        self.link = link
        self.script = clone.dry_run(script, *arguments)
        self.template = clone.scratch.with_name("a template")
        clone.scratch.rename(self.template)

    def restore(self):
        """Bring the scratch folder back; images are linked, as nothing writes into them."""
        shutil.rmtree(self.clone.scratch, ignore_errors=True)
        shutil.copytree(
            self.template,
            self.clone.scratch,
            symlinks=True,
            copy_function=os.link if self.link else shutil.copy2,
        )

    def script_killed_at(self, number):
        """Give a script that kills itself before so many commands."""
        kill = KILL.format(number=number, reading=READING)
        return self.script.replace(START, START + kill, 1)

    def killed_at(self, number):
        """Run the script and kill it before so many commands; tell whether it was."""
        text = self.script_killed_at(number)
        done = processes.run(
            ["bash", "-c", text], env=self.clone.environment, cwd=self.clone.root, check=False
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    def whole(self):
        """Run the script as it is, and return its CompletedProcess."""
        command = ["bash", "-c", self.script]
        return processes.run(command, env=self.clone.environment, cwd=self.clone.root, check=False)

    def each(self, every=1):
        """Give the number of each command after killing the script there."""
        for number in range(1, MOST, every):
            self.restore()
            if not self.killed_at(number):
                return
            yield number
        pytest.fail("the script has no end")


class WorkerPoints(Points):
    """Kills the worker that a script starts, at each of the things that it changes."""

    def script_killed_at(self, number):
        """Give a script whose worker kills it before so many changes."""
        names = f"LONGSHIP_KILLED=$$ LONGSHIP_KILLED_AT={number} PYTHONPATH={shlex.quote(KILLER)}"
        script = self.script.replace(" -I -X utf8 ", " -X utf8 ")  # it would read no PYTHONPATH
        return script.replace(START, f"{START}export PYTHONDONTWRITEBYTECODE=1 {names}\n", 1)
