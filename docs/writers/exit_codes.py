"""exit_codes.md: the exit codes of the scripts."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from lib import ROOT, commands
from lib.configuration.layers import load_settings
from lib.script.errors import LongshipError
from writers.markdown import code, page, plain, table

_INTRO = """\
This page lists the exit codes of all scripts. An error prints two lines on standard error, what is
wrong and what to do, and never a traceback:"""

_JOBS = """\
The exit code of a job is that of its job script, which is that of `srun`; the run's
[`record.json`](files.md#runs) contains it. The log ends with the error of the first failing
rank."""


def exit_codes_page() -> str:
    """Return the page; the codes are in the docstring of the function that ends the scripts."""
    codes = re.findall(r"^(\S.*?)  +(.+)$", inspect.getdoc(commands.main) or "", re.MULTILINE)
    rows = [(code(each), plain(about)) for each, about in codes]
    return page("Exit codes", _INTRO, _example(), table(("code", "meaning"), rows), _JOBS)


def _example() -> str:
    try:
        load_settings(Path(ROOT), {"machine": "lumy"}, {})
    except LongshipError as error:
        return f"```text\nerror: {error}\nhint: {error.hint}\n```"
    raise AssertionError("unknown machine was accepted")
