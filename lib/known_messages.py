"""Stub."""

from __future__ import annotations


def explain(log: str, *, as_json: bool) -> None:
    """Say what is known of the messages in a log."""
