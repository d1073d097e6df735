"""The hooks of the measurement: the sampler of a node, and its totals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from extras.usage.usage import usage_of
from lib.jobs.start import Start
from lib.runtimes.runtime import runtime_of
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion


def start(start: Start) -> Start:
    """Let the first rank of each node start <run>/sampler, unless nothing is to be measured."""
    start = start._replace(at_end=(*start.at_end, "usage_end"))
    seconds = start.env.settings.configuration.jobs.usage
    if not seconds:
        return start
    # a container's daemon starts no child of a rank
    processes = "no" if runtime_of(start.env.runtime).DAEMON else "yes"
    program = start.env.paths.root / "extras/usage/sampler.py"
    line = call("exec", "python3", "-IS", program, str(seconds), processes, Expansion('"$@"'))
    return start._replace(
        env=start.env._replace(at_rank=(*start.env.at_rank, "usage_start")),
        scripts={**start.scripts, "sampler": ("RANK STEP, process IDs", [line])},
    )


def values(run: Path, record: Mapping[str, str]) -> tuple[dict[str, str], list[LongshipError]]:
    """Return what the run has used until its end or its last sample; `used` has it in one line."""
    usage, problems = usage_of(run, record)
    numbers = usage._asdict().items()
    texts = {name: "" if value is None else f"{value:.10g}" for name, value in numbers}
    return {**texts, "used": usage.words}, problems
