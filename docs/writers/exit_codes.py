"""exit_codes.md: how the scripts end."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from lib import ROOT, cli
from lib.errors import LongshipError
from lib.settings import load_settings
from writers.markdown import code, page, plain, table

_INTRO = """\
How every script ends. An error is two lines on standard error, what is wrong and what to do,
never a traceback:"""

_JOBS = """\
A job ends with the code of its job file, which is that of `srun`; it stands in the run's
[`record.json`](files.md#runs). What the first rank said that failed is the last thing in the
log."""


def exit_codes_page() -> str:
    """Return the page; the docstring of the one place that ends the scripts has the codes."""
    codes = re.findall(r"^(\S.*?)  +(.+)$", inspect.getdoc(cli.main) or "", re.MULTILINE)
    rows = [(code(each), plain(about)) for each, about in codes]
    return page("Exit codes", _INTRO, _example(), table(("code", "means"), rows), _JOBS)


def _example() -> str:
    try:
        load_settings(Path(ROOT), {"machine": "lumy"}, {})
    except LongshipError as error:
        return f"```text\nerror: {error}\nhint: {error.hint}\n```"
    raise AssertionError("there is no such machine")
