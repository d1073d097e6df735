"""Stub."""

from __future__ import annotations

from lib.command import call
from lib.paths import Paths
from lib.settings import Settings


def lines(settings: Settings, paths: Paths, runtime: str, *, as_json: bool) -> list[str]:
    """Return the lines of the diagnosis."""
    return [call("start_report", "json" if as_json else "text"), call("end_report")]
