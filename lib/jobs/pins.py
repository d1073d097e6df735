"""Pins: a file for each launcher that needs an image or overlay (pins.bash)."""

from __future__ import annotations

import os
from pathlib import Path

from lib.script.execute import make_folder, write_file


def pin(needed: str, launcher: Path, job: str, folder: Path) -> None:
    """Protect an image or overlay from pruning while a job runs, or while a launcher exists.

    Parameters
    ----------
    needed : str
        File or tag of the image, or file of the overlay.
    launcher : pathlib.Path
        Path of the launcher.
    job : str
        Slurm job that it was written in, such as ``4711 juwels``: its id and its cluster;
        empty for none.
    folder : pathlib.Path
        Directory of the images or overlays; the pin is written to its ``pins``.

    Raises
    ------
    LongshipError
        If the scratch directory is not writable.
    """
    import hashlib  # 5 ms that only the writing of a launcher needs

    launcher = launcher.absolute()
    own = hashlib.sha256(os.fsencode(launcher)).hexdigest()[:12]
    file = folder / "pins" / f"{job.partition(' ')[0] or 'launcher'}-{own}"
    make_folder(file.parent)
    write_file(file, f"{needed}\n{job}\n{launcher}\n")
