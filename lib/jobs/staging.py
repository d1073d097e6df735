"""Staging: image and packages on storage of each node's own, before the ranks of a job start."""

from __future__ import annotations

from collections.abc import Mapping

from lib.configuration.layers import Settings
from lib.configuration.paths import expand
from lib.runtimes.pyxis import uses_pyxis
from lib.script.command import array, assign, call


def staging_lines(settings: Settings, runtime: str, named: Mapping[str, str]) -> list[str]:
    """Return the lines of a job's start that copy what its ranks would read.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    runtime : str
        The name, from `lib.runtimes.choice.choose_runtime`.
    named : mapping
        What is pinned: ``image``, ``overlay``, and their checksums, where they are known.

    Returns
    -------
    list of str
        No lines where the configuration wants no copies, where nothing is to be copied, and for
        runtimes with a store of their own.

    Raises
    ------
    LongshipError
        If one of jobs.stage_dirs is no path.
    """
    jobs = settings.configuration.jobs
    pyxis = uses_pyxis(settings, runtime)
    if jobs.stage == "never" or not (pyxis or runtime in ("apptainer", "singularity")):
        return []
    roots = [expand("jobs.stage_dirs", each, settings) for each in jobs.stage_dirs]
    return [
        array("stage_roots", roots),
        assign("stage_image", named["image"]),
        assign("stage_image_sum", named["image_sha256"]),
        assign("stage_overlay", named["overlay"]),
        assign("stage_overlay_sum", named["overlay_sha256"]),
        assign("stage_as", "unpacked" if pyxis else "packed"),  # enroot mounts none
        assign("stage_runtime", runtime),
        call("stage_job", jobs.stage),
        *([call("set_container_options")] if pyxis else []),
    ]
