"""The launcher of a job: one script that each of its ranks starts."""

from __future__ import annotations

import os
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, pinned
from lib.jobs.container import pyxis_launcher_lines
from lib.jobs.pins import pin
from lib.jobs.rerun import NAMED, check_own, check_still_there
from lib.runtimes.container import run_lines
from lib.runtimes.image import image_to_start
from lib.runtimes.packages import overlay_to_start, wanted_venv
from lib.runtimes.pyxis import uses_pyxis
from lib.script.execute import write_file
from lib.script.records import read_record
from lib.script.render import render


def job_launcher(
    settings: Settings,
    paths: Paths,
    runtime: str,
    run: Path,
    *,
    job: str,
    restarted: bool,
    title: str,
) -> dict[str, str]:
    """Write the launcher of a run; a requeued one keeps its own, one started again takes the old.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `lib.runtimes.choice.choose_runtime`.
    run : pathlib.Path
        The run's folder.
    job : str
        The Slurm job.
    restarted : bool
        It was requeued.
    title : str
        The launcher's second line.

    Returns
    -------
    dict
        What it starts, for the record: image, overlay, venv, and the checksums that are known.

    Raises
    ------
    LongshipError
        If a file cannot be written, or what a run is started again with is gone.
    """
    file = run / "launcher"
    again = settings.environ.get("LONGSHIP_RERUN", "")
    requeued = restarted and file.exists() and (run / "record.json").exists()
    old = run if requeued else Path(again) if again else None
    if old is None:
        named = write_launcher(settings, paths, runtime, file, online=False, job=job, title=title)
        return _described(*named)
    check_own(old)
    found = check_still_there(old)
    _pin(found["image"], found["overlay"], paths, file, _of_cluster(settings, job))
    if old != run:
        text = (old / "launcher").read_text(encoding="utf-8", errors="surrogateescape")
        write_file(file, text, 0o755)
    return found


def write_launcher(
    settings: Settings,
    paths: Paths,
    runtime: str,
    file: Path,
    *,
    online: bool,
    job: str,
    title: str,
) -> tuple[str, str, str]:
    """Write a launcher, and keep what it names from being pruned.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.
    runtime : str
        The name, from `lib.runtimes.choice.choose_runtime`.
    file : pathlib.Path
        The launcher.
    online : bool
        Leave the Hugging Face libraries their network.
    job : str
        The Slurm job that it is written in; empty for none.
    title : str
        Its second line.

    Returns
    -------
    tuple of str
        The image, the overlay and the venv that it names.

    Raises
    ------
    LongshipError
        If a file cannot be written.
    """
    while True:
        named = _in_use(settings, paths, runtime)
        _pin(*named[:2], paths, file, _of_cluster(settings, job))
        venv = wanted_venv(settings, paths)
        if job and uses_pyxis(settings, runtime):
            lines = pyxis_launcher_lines(settings, paths, runtime, venv)
        else:
            lines = run_lines(*(settings, paths, runtime), online=online, venv=venv, for_ranks=True)
        # another one may have been put in use meanwhile: what is named must be what is pinned
        if named == _in_use(settings, paths, runtime):
            write_file(file, render(title, lines), 0o755)
            return named


def _in_use(settings: Settings, paths: Paths, runtime: str) -> tuple[str, str, str]:
    venv = wanted_venv(settings, paths)
    return (
        image_to_start(runtime, settings, paths),
        overlay_to_start(settings, paths),
        str(pinned(venv)) if venv else "",
    )


def _of_cluster(settings: Settings, job: str) -> str:
    """Add the cluster to a job's id: clusters that share a file system have jobs of the same id."""
    return f"{job} {settings.environ.get('SLURM_CLUSTER_NAME', '')}".strip() if job else ""


def _pin(image: str, overlay: str, paths: Paths, file: Path, job: str) -> None:
    if image:
        pin(image, file, job, paths.containers)
    if overlay:
        pin(overlay, file, job, paths.overlays)


def _described(image: str, overlay: str, venv: str) -> dict[str, str]:
    sums = [read_record(Path(f"{each}.json")).get("sha256", "") for each in (image, overlay)]
    mark = ""
    # a site's image: to compute it would take minutes; a missing one is told by the launcher
    if image.startswith("/") and not sums[0] and os.path.exists(image):
        found = os.stat(image)
        mark = f"{found.st_size} bytes, written at {found.st_mtime_ns / 1e9:.9f}"
    return dict(zip(NAMED, (image, sums[0], mark, overlay, sums[1], venv)))
