"""Hooks: what extras define under fixed names, to act in jobs and in builds.

In ``extras/NAME/job.py``:

  OPTIONS              click options of `submit.py` and of its verbs that submit; the hooks find
                       their values in ``request.asked.of(__name__)``
  check(request)       at a submission: stop, or return the request with lines of the extra
  environment(env, run)  at the start of a job, once it has a run directory: return the environment
                       that it works with
  start(start)         at the start of a job: return it with lines, keys of the record and functions
                       of bash that act at the first rank of a node and at the end
  values(run, record)  what the extra knows of a run now, as keys of its record, and what it cannot
                       read

In ``extras/NAME/overlay.py``, names of bash functions that the build of an overlay calls:

  BEFORE_COMPILE, AFTER_COMPILE    with the directory of the packages
  AFTER_PACK                       with the packed file; it adds to overlay_values, for the record

A removed directory removes its hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lib import ROOT


def hooks(name: str, file: str = "job") -> Mapping[str, Any]:
    """Return the hooks of a name by their extras, in the order of these."""
    extras = sorted(path.parent.name for path in Path(ROOT).glob(f"extras/*/{file}.py"))
    modules = {each: import_module(f"extras.{each}.{file}") for each in extras}
    return {
        each: getattr(module, name) for each, module in modules.items() if hasattr(module, name)
    }
