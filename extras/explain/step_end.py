"""How the last job step in a log ended: what `doctor.py explain --json` says for programs."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection
from typing import Any, BinaryIO

from extras.explain.log_scan import Finding, Scan

_TAIL = 1 << 22  # bytes of a log that are searched for the step
_ATTEMPT = b"\nlongship: run "
# How the stacks print a step, also in colour, or name a checkpoint; "to step 400" is none.
_STEP = re.compile(
    rb"(?i)(?<!\bto )(?:\b|(?<=\dm))(?:step|iteration|checkpoint)[-_:= ]*(\d+)(?!\.?\d)"
)
_CAUSE = re.compile(rb"longship: the ranks cannot continue: .*")  # extras/restarts/watcher.bash
# What NCCL's RAS prints of a process that does not answer, and of ranks that are behind the others.
_BEHIND = re.compile(rb"longship: NCCL:.* on node (\S+)(?: managing GPU|\s*$)", re.MULTILINE)


def step_end(scan: Scan, stream: BinaryIO, allocated: Collection[str]) -> dict[str, Any]:
    """Return how the last attempt in a log ended, which was searched; nodes are those of the job.

    ``topic`` is that of the first message which can be why it ended ("" for none), ``restart`` is
    `never` if another attempt would fail again, or `node` if a node is to blame, ``step`` is the
    last one of the training that the log names (or None), ``nodes`` are those to blame.
    """
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - _TAIL))
    begin, tail = stream.tell(), stream.read(_TAIL)
    at = tail.rfind(_ATTEMPT) + 1
    steps = list(_STEP.finditer(tail, at))
    last = begin + steps[-1].end() if steps else 0
    # what a run has survived is not why it ended, unless its watcher ended it for that
    cause = _CAUSE.search(tail, at)
    late = [
        each
        for each in scan.findings
        if each.offset >= last
        or not each.message.text
        or (cause and each.message.final and re.search(each.message.final.encode(), cause[0]))
    ]
    found = late or scan.findings
    suspects = [each for each in found if each.message.restart == "node"]
    nodes = {_node_of(each, scan, allocated) for each in suspects} - {""}
    behind = {_named(each.decode(), allocated) for each in _BEHIND.findall(tail, at)}
    if len(behind) == 1:  # else they say only that some wait for others
        nodes |= behind - {""}
    first: Finding | None = (suspects or found or [None])[0]
    return {
        "topic": first.message.topic if first else "",
        "restart": first.message.restart if first else "",
        "step": int(steps[-1][1]) if steps else None,
        "nodes": sorted(nodes),
    }


def _node_of(finding: Finding, scan: Scan, allocated: Collection[str]) -> str:
    """Return the node that the line names, or that of its task."""
    words = re.findall(r"[\w.-]+", finding.line_text)
    named = next((each for each in map(str, words) if each in allocated), "")
    return named or scan.first.node_of(finding.task)


def _named(address: str, allocated: Collection[str]) -> str:
    """Return the node of an address; JSC's names of the fast network end in i."""
    name = socket.getfqdn(address).partition(".")[0]
    return next((each for each in (name, name[:-1]) if each in allocated), "")
