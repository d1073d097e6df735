"""The next step after a download: the copy to the target machine."""

from __future__ import annotations

from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, derive_paths
from lib.script.command import call
from lib.script.errors import LongshipError


def step_after_download(settings: Settings, here: Paths, directory: Path, command: str) -> str:
    """Return a command of the target machine, after the copy of FOLDER if that is another one."""
    relative = directory.relative_to(here.scratch_dir)
    try:
        target = derive_paths(settings).scratch_dir / relative
    except LongshipError:  # the target's paths contain variables that only the target knows
        target = Path("SCRATCH_DIR", relative)
    if target == directory:
        return command
    copy = call("rsync", "-a", f"{directory}/", f"{settings.machine.name}:{target}/")
    return f"{copy}; then, on {settings.machine.name}: {command}"
