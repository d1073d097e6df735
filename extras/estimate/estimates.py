"""Estimates of earlier days, and runs of the same kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.configuration.partitions import Limits
from lib.configuration.tables import find_files
from lib.jobs.request import Request
from lib.script.output import number
from lib.script.records import content_of, readable_values
from lib.script.trust import is_own


def kind(record: Mapping[str, str], arguments: Sequence[str], training: Mapping[str, Any]) -> str:
    """Return what trainings that need the same memory have in common, as the name of a file."""
    values = [record.get(each, "") for each in ("machine", "stack", "nodes", "gpus")]
    text = json.dumps([values, arguments, training], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def kind_of(request: Request) -> str:
    """Return the kind of a job."""
    settings, size = request.env.settings, request.size
    record = {"machine": settings.machine.name, "stack": settings.stack.name}
    record.update(nodes=str(size.nodes), gpus=str(size.gpus))
    return kind(record, request.arguments, settings.configuration.training)


def estimate_file(request: Request) -> Path:
    """Return the file with the last estimate of a job."""
    return request.env.paths.runs / "estimates" / f"{kind_of(request)}.json"


def read_estimate(file: Path) -> tuple[str, float]:
    """Return the day of an estimate, and the GiB of parameters, gradients and optimizer per GPU.

    They are "" and 0 if the file does not exist, or is not an estimate.
    """
    try:
        found = json.loads(content_of(file)) if is_own(file) else {}
        return str(found["estimated"])[:10], float(found["layouts"][0]["states_gib"])
    except (ValueError, LookupError, TypeError):
        return "", 0


def last_run(request: Request) -> tuple[str, float | None]:
    """Return the last run of the same kind that did not fail, and its measured peak in GiB."""
    wanted, found = kind_of(request), []
    for file in find_files(request.env.paths.runs, "*/record.json"):
        record = readable_values(file)
        if record.get("exit_code") != "0":  # it may have failed before its first step
            continue
        peak = number(record.get("gpu_peak_memory_mib", ""))
        if peak and is_own(file.parent) and _kind_of_run(file.parent, record) == wanted:
            found.append((record.get("ended", ""), file.parent.name, round(peak / 1024, 3)))
    return max(found)[1:] if found else ("", None)


def _kind_of_run(run: Path, record: Mapping[str, str]) -> str:
    arguments = content_of(run / "arguments").decode(errors="surrogateescape").split("\0")[:-1]
    try:
        training = json.loads(content_of(run / "configuration.json"))["training"]
    except (ValueError, LookupError, TypeError):
        return ""
    return kind(record, arguments, training)


def gpu_memory(request: Request) -> int:
    """Return the smallest GPU memory of the job's partitions, in GB; 0 if one is not known."""
    machine = request.env.machine
    named = [machine.partitions.get(each, Limits()).gpu_memory for each in request.size.partitions]
    return min(machine.gpu_memory if each is None else each for each in named)
