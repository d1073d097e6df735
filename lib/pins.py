"""Who still needs an image or overlay: a file for each launcher that names it (pins.bash)."""

from __future__ import annotations

import os
from pathlib import Path

from lib.execute import make_folder, write_file


def pin(needed: str, launcher: Path, job: str, folder: Path) -> None:
    """Keep something from being pruned while a job runs, or while a launcher lies there.

    Parameters
    ----------
    needed : str
        What the launcher names: an image's file or tag, or an overlay.
    launcher : pathlib.Path
        The launcher.
    job : str
        The Slurm job that it was written in, such as ``4711 juwels``: its id and its cluster;
        empty for none.
    folder : pathlib.Path
        Where such things lie; the file goes into ``pins`` below.

    Raises
    ------
    LongshipError
        If the scratch folder cannot be written to.
    """
    import hashlib  # 5 ms that only the writing of a launcher needs

    launcher = launcher.absolute()
    own = hashlib.sha256(os.fsencode(launcher)).hexdigest()[:12]
    file = folder / "pins" / f"{job.partition(' ')[0] or 'launcher'}-{own}"
    make_folder(file.parent)
    write_file(file, f"{needed}\n{job}\n{launcher}\n")
