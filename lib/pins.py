"""Who still needs an image or overlay: a file for each launcher that names it (pins.bash)."""

from __future__ import annotations

import os
from pathlib import Path

from lib.errors import LongshipError


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
    partial = file.with_name(f"{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f"{needed}\n{job}\n{launcher}\n"
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")
        partial.replace(file)
    except OSError as error:
        raise LongshipError(
            f"cannot write {file}: {error.strerror}",
            "set paths.scratch_dir in configuration.toml to a place that you can write to",
        ) from error
