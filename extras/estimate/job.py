"""The hook of a submission: it warns of a job that an estimate says cannot fit."""

from __future__ import annotations

from extras.estimate.estimates import estimate_file, gpu_memory, read_estimate
from lib.jobs.request import Request
from lib.script.command import call


def check(request: Request) -> Request:
    """Warn if parameters, gradients and optimizer alone are larger than a GPU's memory."""
    if request.job.script != "run_training.sh":
        return request
    (day, states), memory = read_estimate(estimate_file(request)), gpu_memory(request)
    if not memory or states <= memory:
        return request
    warning = (
        f"the job does not fit: by the estimate of {day}, parameters, gradients and optimizer "
        f"alone are {states:.1f} GiB, and a GPU has {memory} GB"
    )
    command = call("python3", "submit.py", "estimate", request.job.path)
    hint = f"list the layouts that fit: {command}, with the same options"
    return request._replace(lines=(*request.lines, call("warn_of", warning, hint)))
