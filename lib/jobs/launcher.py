"""The launcher of a job, which each of its ranks starts, and the pins of its image and overlay."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lib.jobs.runs import NAMED, check_own, check_still_there, image_state
from lib.jobs.start import Start
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.execute import make_directory, write_file
from lib.script.records import read_file, read_record
from lib.script.render import render


def job_launcher(start: Start, *, restarted: bool, title: str) -> dict[str, str]:
    """Write the launcher of a run, or take that of the run that is requeued or re-run.

    Return what it starts, for the record: image, overlay, venv, and the checksums that are known.
    """
    env, run, job = start.env, start.run, start.facts["JobId"]
    file = run / "launcher"
    requeued = restarted and file.exists() and (run / "record.json").exists()
    old = run if requeued else start.again
    if old is None:
        return described(write_launcher(env, file, online=False, job=job, title=title))
    check_own(old)
    found = check_still_there(old)
    if read_record(old / "record.json").get("code", "") != start.record.get("code", ""):
        # it starts other code
        write_launcher(env._replace(held=found), file, online=False, job=job, title=title)
        return found
    _pin_files(env, found, file, job)
    if old != run:
        text = read_file(old / "launcher").decode(errors="surrogateescape")
        write_file(file, text, 0o755)
    return found


def write_launcher(
    env: Environment, file: Path, *, online: bool, job: str, title: str
) -> dict[str, str]:
    """Write a launcher, and pin what it starts: the image, overlay and venv that are returned.

    The job is the Slurm job that writes it, if any.
    """
    while True:
        _pin_files(env, env.files, file, job)
        lines = run_lines(env, online=online)
        # another one may have been activated meanwhile: the launcher must start what is pinned
        latest = env.afresh()
        if env.files == latest.files:
            write_file(file, render(title, lines), 0o755)
            return env.files
        env = latest


def _pin_files(env: Environment, files: Mapping[str, str], launcher: Path, job: str) -> None:
    """Pin image and overlay; a pin names the cluster too, as two can have a job of the same id."""
    cluster = env.settings.environ.get("SLURM_CLUSTER_NAME", "")
    owner = f"{job} {cluster}".strip() if job else ""
    for kind, directory in (("image", env.paths.containers), ("overlay", env.paths.overlays)):
        needed = files[kind]
        if needed and (needed.startswith(f"{directory}/") or not needed.startswith("/")):
            pin(needed, launcher, owner, directory)


def pin(needed: str, launcher: Path, job: str, directory: Path) -> None:
    """Protect an image or overlay from pruning while a job runs, or while a launcher exists.

    The pin is a file in its pins/, which store.bash reads; the job is such as ``4711 juwels``.
    """
    import hashlib  # 5 ms that only the writing of a launcher needs

    launcher = launcher.absolute()
    own = hashlib.sha256(os.fsencode(launcher)).hexdigest()[:12]
    file = directory / "pins" / f"{job.partition(' ')[0] or 'launcher'}-{own}"
    make_directory(file.parent)
    write_file(file, f"{needed}\n{job}\n{launcher}\n")


def described(files: Mapping[str, str]) -> dict[str, str]:
    """Add the checksums that records have; of a site's image without one, size and time."""
    image, overlay = files["image"], files["overlay"]
    sums = [read_record(Path(f"{each}.json")).get("sha256", "") for each in (image, overlay)]
    state = "" if sums[0] else image_state(image)  # a checksum would take minutes
    return dict(zip(NAMED, (image, sums[0], state, overlay, sums[1], files["venv"])))
